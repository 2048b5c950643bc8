"""When the two views of a request are joined, and what is counted of it.

What the engine says inside its answer is there when the request ends. A span of the engine comes later: a
request without in-band timings waits for it, when spans are received, and is counted as `missing` once the
deadline has passed.
"""

from collections import deque
from typing import Literal

from sidecar import catalogue
from sidecar.core.join import PHASES, TOTALS, PhaseBreakdown, Source, join
from sidecar.core.record import RequestRecord
from sidecar.core.server_timings import ServerTimings
from sidecar.engines.in_band import timings_of
from sidecar.history import Kept
from sidecar.metrics import Metrics

DEADLINE = 11.0  # seconds after the end of a request: a second after tracing has given up
LATEST = 64  # requests whose span may still be made
PHASE_ATTRIBUTE, JOIN_ATTRIBUTE = "llm.phase", "llm.join"
SIZES = ((256, "256"), (1024, "1k"), (4096, "4k"), (16384, "16k"), (65536, "64k"))


class Joins:
    """Joins each finished request once."""

    def __init__(self, metrics: Metrics, *, spans: bool = False) -> None:
        """`spans`: spans of the engine may come, by `span`."""
        self._metrics = metrics
        self._spans = spans
        self._waiting: dict[int, Kept] = {}  # by identity of the record, oldest first
        self._latest: deque[Kept] = deque(maxlen=LATEST)

    def finished(self, kept: Kept) -> None:
        """A request has ended and is in the history."""
        record = kept.record
        timings = timings_of(record.engine, streaming=bool(record.streaming))
        complete = timings is not None and timings.prefill is not None
        if complete or not self._spans or join(record, None, "none") is None:
            self._join(kept, timings, "in_band")
        else:
            self._waiting[id(record)] = kept

    def span(self, record: RequestRecord, said: ServerTimings | Literal["ambiguous"]) -> None:
        """What the engine's span says of a request that has ended; the first to come counts."""
        kept = self._waiting.pop(id(record), None)
        if kept is None:
            return
        if said == "ambiguous":
            self._join(kept, None, "span", ambiguous=True)
        else:
            self._join(kept, said, "span")

    def expire(self, now: float) -> None:
        """No span comes any more for what ended DEADLINE before `now`."""
        while self._waiting:
            identity, kept = next(iter(self._waiting.items()))
            if kept.record.ended > now - DEADLINE:
                return
            del self._waiting[identity]
            timings = timings_of(kept.record.engine, streaming=bool(kept.record.streaming))
            self._join(kept, timings, "in_band")

    def attributes(self, record: RequestRecord) -> dict[str, float | str]:
        """What a request's span tells of the join: the latest requests only."""
        phases = next((kept.phases for kept in reversed(self._latest) if kept.record is record), None)
        if phases is None:
            return {}
        parts = {f"{PHASE_ATTRIBUTE}.{name}": seconds for name, seconds in phases.parts().items()}
        return {**parts, JOIN_ATTRIBUTE: phases.status}

    def _join(
        self, kept: Kept, timings: ServerTimings | None, source: Source, *, ambiguous: bool = False
    ) -> None:
        kept.phases = join(kept.record, timings, source, ambiguous=ambiguous)
        if kept.phases is not None:
            self._latest.append(kept)
            count(self._metrics, kept.record, kept.phases, timings)


def count(
    metrics: Metrics, record: RequestRecord, phases: PhaseBreakdown, timings: ServerTimings | None
) -> None:
    """Counts one joined request; only a sound join enters the histograms."""
    model = metrics.model_label(record.model)
    metrics.counter(catalogue.JOINS.name, model, phases.status, phases.source).inc()
    if phases.status != "ok":
        return
    parts = phases.parts()
    if phases.stretch is None:
        parts.pop("generation", None)  # a total only beside all of its parts
    for name in (*PHASES, *TOTALS):
        seconds = parts.get(name)
        if seconds is None:
            continue
        metrics.histogram(catalogue.PHASE.name, model, name).observe(max(seconds, 0.0))
        if seconds < 0:
            metrics.counter(catalogue.PHASE_NEGATIVE.name, model, name).inc(-seconds)
    _fit(metrics, model, record, timings)


def _fit(metrics: Metrics, model: str, record: RequestRecord, timings: ServerTimings | None) -> None:
    """Adds to the sums of the regression of prefill time on uncached prompt length."""
    if timings is None or timings.prefill is None or record.input_tokens is None:
        return
    cached = record.cached_input_tokens
    if cached is None:
        cached = timings.cached_input_tokens
    if cached is None or not 0 <= cached <= record.input_tokens:
        return
    uncached = record.input_tokens - cached
    size = next((name for limit, name in SIZES if uncached <= limit), "inf")
    x, y = uncached / 1000, timings.prefill
    for term, value in (("n", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
        metrics.counter(catalogue.PREFILL_FIT.name, model, size, term).inc(value)
