"""Where the time of a population went, for engines that only publish histograms: means over one window.

The engine's counters grew by so many requests and so many seconds between two readings; the sidecar takes the
requests that ended between the same two instants of its own clock. Means of the two are compared, never
quantiles: percentiles of parts do not add up (DESIGN section 6).

    coverage = requests of the sidecar / requests of the engine, both as sequences (choices)

Below 1, others talk to the engine as well, so its means are of other requests too: `partial`, and nothing is
subtracted. Answers in one piece have no first token that anybody outside sees: with more than UNARY of them
the window is not joined.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

from sidecar.core.engine_window import EngineWindow, between
from sidecar.core.join import GENERATIONS, join
from sidecar.core.record import RequestRecord
from sidecar.core.signals import Reading

SECONDS = 60.0  # a window's least length
ENOUGH = 20  # requests that the engine must have counted
UNARY = 0.01
FULL_COVERAGE = (0.98, 1.02)  # a request may end between the engine's count and ours
KEPT = 20_000
KEPT_SECONDS = 900.0

Cohort = Literal["first_token", "finished"]
COHORTS: tuple[Cohort, ...] = ("first_token", "finished")
Status = Literal["ok", "partial", "unary"]

# What the engine counts once a request, as it ends; the first that it has counts the cohort.
_AT_END = ("prefill", "decode", "queue", "e2e")
_OF_ENGINE = ("queue", "prefill", "decode")


class Ended(NamedTuple):
    """What a window needs of one request; times are the sidecar's."""

    model: str  # the engine's label: the base model of an adapter
    first_token: float | None
    finished: float | None  # None: it did not complete
    ended: float
    sequences: int
    upload: float
    connect: float
    ttft: float | None  # None: in one piece
    generation: float | None


class WindowBreakdown(NamedTuple):
    """Means of one model over one window, seconds."""

    model: str
    start: float
    end: float
    status: Status
    coverage: float
    requests: int  # of the sidecar
    phases: dict[str, float]


class Requests:
    """The requests of the last quarter of an hour, KEPT at most."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque(maxlen=KEPT)

    def add(self, record: RequestRecord, model: str) -> None:
        """A request has ended; `model`: its label."""
        if record.operation not in GENERATIONS:
            return
        phases = join(record, None, "none")
        if phases is None:
            return
        self._ended.append(
            Ended(
                model=model,
                first_token=record.f1 if record.streaming else None,
                finished=record.ended if record.outcome == "completed" else None,
                ended=record.ended,
                sequences=max(record.choices, 1),
                upload=phases.upload,
                connect=phases.connect,
                ttft=record.ttft,
                generation=phases.generation,
            )
        )
        while self._ended[0].ended < record.ended - KEPT_SECONDS:
            self._ended.popleft()

    def within(self, cohort: Cohort, start: float, end: float) -> list[Ended]:
        """Those whose first token, or end, came after `start` and not after `end`."""
        at: Callable[[Ended], float | None] = attrgetter(cohort)
        return [each for each in self._ended if (when := at(each)) is not None and start < when <= end]


def sequences(requests: Iterable[Ended], model: str) -> int:
    """How many sequences of a model these requests had."""
    return sum(each.sequences for each in requests if each.model == model)


def engine_count(window: EngineWindow, cohort: Cohort, model: str) -> float | None:
    """How many sequences of a cohort the engine counted; None when it does not say."""
    names = ("ttft",) if cohort == "first_token" else _AT_END
    for name in names:
        for key, grown in window.phases.items():
            if key.signal == name and key.model == model:
                return grown.count
    return None


def latest_window(readings: Sequence[Reading]) -> EngineWindow | None:
    """The shortest window up to the last reading that is long enough and has enough requests."""
    for earlier in reversed(readings[:-1]):
        if readings[-1].at - earlier.at < SECONDS:
            continue
        window = between(earlier, readings[-1])
        if window is None:
            return None
        counted = [engine_count(window, "finished", model) or 0 for model in models_of(window)]
        if sum(counted) >= ENOUGH:
            return window
    return None


def models_of(window: EngineWindow) -> list[str]:
    """The models of which the engine counts phases."""
    return sorted({key.model for key in window.phases})


def join_window(window: EngineWindow, requests: Requests) -> list[WindowBreakdown]:
    """The means of each model that had requests in the window."""
    finished = requests.within("finished", window.start, window.end)
    found = (_of_model(window, model, finished) for model in models_of(window))
    return [each for each in found if each is not None]


def _of_model(window: EngineWindow, model: str, finished: list[Ended]) -> WindowBreakdown | None:
    counted = engine_count(window, "finished", model)
    if not counted:
        return None
    own = [each for each in finished if each.model == model]
    ours = sequences(own, model)
    coverage = ours / counted
    phases = {
        key.signal: grown.sum / grown.count
        for key, grown in window.phases.items()
        if key.model == model and key.signal in _OF_ENGINE and grown.count
    }
    streamed = [each for each in own if each.ttft is not None and each.generation is not None]
    status: Status = "ok"
    if not FULL_COVERAGE[0] <= coverage <= FULL_COVERAGE[1]:
        status = "partial"
    elif ours - sequences(streamed, model) > UNARY * ours:
        status = "unary"
    elif "prefill" in phases:
        phases |= _remainders(phases, streamed)
    return WindowBreakdown(model, window.start, window.end, status, coverage, ours, phases)


def _remainders(engine: dict[str, float], streamed: list[Ended]) -> dict[str, float]:
    count = sum(each.sequences for each in streamed)
    sums = dict.fromkeys(("upload", "connect", "ttft", "generation"), 0.0)
    for each in streamed:
        for name in sums:
            sums[name] += each.sequences * getattr(each, name)
    means = {name: total / count for name, total in sums.items()}
    before = means["upload"] + means["connect"] + engine.get("queue", 0.0) + engine["prefill"]
    means["unattributed"] = means["ttft"] - before
    if "decode" in engine:
        means["stretch"] = means["generation"] - engine["decode"]
    return means
