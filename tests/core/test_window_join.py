"""Means over one window: the same requests on both sides, or no subtraction."""

from typing import Any

import pytest

from sidecar.core.engine_window import EngineWindow, Increase
from sidecar.core.record import RequestRecord
from sidecar.core.signals import Distribution, EngineSignals, Key, Reading
from sidecar.core.window_join import (
    KEPT_SECONDS,
    Requests,
    engine_count,
    join_window,
    latest_window,
    sequences,
)


def record(ended: float, **fields: Any) -> RequestRecord:
    """Begins 4 s before its end; upload 0.1 s, connect 0.1 s, first token after 1 s, last after 3 s."""
    t0 = ended - 4.0
    stamps = {"t_up": t0 + 0.1, "t_conn": t0 + 0.2, "f1": t0 + 1.0, "f_last": t0 + 3.0, "e": ended}
    given = {"operation": "chat", "streaming": True, "outcome": "completed", "choices": 1, **stamps, **fields}
    return RequestRecord(
        id="r", trace_id="", method="POST", model="m", status=200, wall=0.0, t0=t0, ended=ended, **given
    )


def window(count: float = 2, model: str = "m", **seconds: float) -> EngineWindow:
    """From 100 to 160; each request with these seconds of a phase."""
    given = {"queue": 0.2, "prefill": 0.4, "decode": 1.9, "ttft": 0.7, **seconds}
    return EngineWindow(
        100.0, 160.0, {}, {Key(name, model): Increase(count, count * each) for name, each in given.items()}
    )


def requests(*records: RequestRecord, model: str = "m") -> Requests:
    found = Requests()
    for each in records:
        found.add(each, model)
    return found


JOINED = {
    "queue": 0.2, "prefill": 0.4, "decode": 1.9, "upload": 0.1, "connect": 0.1, "ttft": 1.0, "generation": 2.0,
    "unattributed": 0.2, "stretch": 0.1,
}  # fmt: skip
ENGINE = {"queue": 0.2, "prefill": 0.4, "decode": 1.9}

CASES: dict[str, tuple[Requests, EngineWindow, str, float, dict[str, float]]] = {
    "all requests pass the sidecar": (requests(record(110), record(150)), window(), "ok", 1.0, JOINED),
    "half of them do": (requests(record(110)), window(), "partial", 0.5, ENGINE),
    "several sidecars' worth on our side: more than the engine counted": (
        requests(*[record(110 + at) for at in range(4)]), window(), "partial", 2.0, ENGINE,
    ),
    "one on each edge: after the start, up to the end": (
        requests(record(100), record(101), record(160), record(161)), window(), "ok", 1.0, JOINED,
    ),
    "two choices are two sequences": (requests(record(110, choices=2)), window(), "ok", 1.0, JOINED),
    "what did not complete is in neither": (
        requests(record(110), record(120), record(130, outcome="truncated", e=None)), window(), "ok", 1.0, JOINED,
    ),
    "answers in one piece have no first token": (
        requests(record(110), record(120, streaming=False, f1=None, f_last=None)), window(), "unary", 1.0, ENGINE,
    ),
    "an engine without a queue": (
        requests(record(110), record(150)),
        window()._replace(phases={k: v for k, v in window().phases.items() if k.signal != "queue"}),
        "ok", 1.0,
        {name: seconds for name, seconds in JOINED.items() if name != "queue"} | {"unattributed": 0.4},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "status", "coverage", "phases"), CASES.values(), ids=CASES.keys())
def test_means(
    ours: Requests, theirs: EngineWindow, status: str, coverage: float, phases: dict[str, float]
) -> None:
    [joined] = join_window(theirs, ours)
    assert (joined.model, joined.status, joined.coverage) == ("m", status, pytest.approx(coverage))
    assert joined.phases == pytest.approx(phases)


def test_a_model_of_which_the_engine_counted_nothing_has_no_window() -> None:
    assert join_window(window(count=0), requests(record(110))) == []


def test_of_another_model_nothing_is_counted() -> None:
    [joined] = join_window(window(), requests(record(110), record(120), model="other"))
    assert (joined.status, joined.coverage) == ("partial", 0.0)


def test_the_two_cohorts_are_by_first_token_and_by_end() -> None:
    """One whose first token came before the window's start, and its end after it."""
    found = requests(record(102), record(150), record(163))
    first = found.within("first_token", 100.0, 160.0)
    done = found.within("finished", 100.0, 160.0)
    assert (sequences(first, "m"), sequences(done, "m")) == (1 + 1, 2)
    assert [each.finished for each in done] == [102, 150]
    assert [each.first_token for each in first] == [147.0, 160.0]
    assert engine_count(window(count=7), "first_token", "m") == 7
    assert engine_count(window(), "finished", "another") is None


def test_old_ones_are_forgotten() -> None:
    found = requests(record(100), record(100 + KEPT_SECONDS + 1))
    assert len(found.within("finished", 0, 1e9)) == 1


def reading(at: float, count: float, started: float = 1.0) -> Reading:
    spread = Distribution((1.0,), (count, 0.0), count, count * 0.4)
    return Reading(at, EngineSignals("vllm", started, {}, {}, {Key("prefill", "m"): spread}))


WINDOWS: dict[str, tuple[list[Reading], tuple[float, float] | None]] = {
    "no reading": ([], None),
    "one": ([reading(0, 5)], None),
    "too short": ([reading(0, 0), reading(59, 100)], None),
    "long enough": ([reading(0, 0), reading(40, 50), reading(100, 100)], (40, 100)),
    "too few requests: extended": ([reading(0, 0), reading(40, 90), reading(100, 100)], (0, 100)),
    "too few in all of it": ([reading(0, 0), reading(100, 19)], None),
    "the engine began anew": ([reading(0, 0), reading(100, 50, started=2.0)], None),
}


@pytest.mark.parametrize(("readings", "span"), WINDOWS.values(), ids=WINDOWS.keys())
def test_which_window_is_taken(readings: list[Reading], span: tuple[float, float] | None) -> None:
    found = latest_window(readings)
    assert (None if found is None else (found.start, found.end)) == span
