"""Which request a span of the engine belongs to, and what it says of it.

A span belongs to the request whose own span is its parent or a further ancestor; else to the one whose
request id it carries; else to the only one of its trace. Otherwise nobody can tell, and it is said so.
Spans come late (vLLM exports every 5 s) and children come before their parents, so a request is kept for a
while after its end, and what is not certain before that is decided then.

Pure: times are seconds of one monotonic clock. Cost is bounded: so many spans a trace, so many requests.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

import msgspec

from sidecar.core.server_timings import ServerTimings
from sidecar.core.spans import Verdict

MAX_TRACE_SPANS = 2000  # of one trace, whose parents are remembered; an older one is forgotten
MAX_SPANS = 100_000  # of all traces
MAX_UNDECIDED = 100  # of one trace
MAX_ENDED = 20_000
MAX_READINGS = 8  # of one request; already two leave open which one is meant
MAX_DEPTH = 64

# vLLM makes its ids of ours: `chatcmpl-ID`, `cmpl-ID-0` a prompt, `resp_ID_0` (captured from 0.32.0).
_ID_SHAPES = (re.compile(r"chatcmpl-(.+)"), re.compile(r"cmpl-(.+)-\d+"), re.compile(r"resp_(.+)_\d+"))


class EngineSpan(msgspec.Struct, frozen=True):
    """What matters of a span; ids are lower-case hex, `seconds` is its length by the engine's clock."""

    trace_id: str
    span_id: str
    parent_id: str | None
    scope: str
    name: str
    seconds: float
    attributes: Mapping[str, str | float]


class Reading(msgspec.Struct, frozen=True):
    """What a span says of the request that it is about."""

    engine: str
    timings: ServerTimings
    request_id: str | None = None


Stage = Callable[[str], float | None]
"""Seconds of all spans of this name below the span at hand; None when there are none."""

Read = Callable[[EngineSpan, Stage], Reading | None]


class Rank(IntEnum):
    """How a span was matched, the surest first."""

    ANCESTOR = 0
    REQUEST_ID = 1
    TRACE = 2


class Known(msgspec.Struct, eq=False):
    """A request in flight, or one that ended a moment ago."""

    trace_id: str
    span_id: str  # of the sidecar's span, which the engine was given as the parent
    request_id: str
    until: float | None = None  # when it is given up; None while it is in flight
    several: bool = False  # more than one prompt or choice: the engine has several requests for it
    unclear: bool = False  # a span may be about it, or about another
    spans: list[tuple[Rank, EngineSpan]] = []
    engine: str | None = None
    said: Verdict | None = None  # the latest; None while nothing is certain


class _Above(NamedTuple):
    """What is remembered of a span for the sake of those around it."""

    parent_id: str | None
    name: str
    seconds: float


class _Trace(msgspec.Struct, eq=False):
    requests: dict[str, Known] = {}  # by span id
    spans: dict[str, _Above] = {}  # by span id
    undecided: list[tuple[float, EngineSpan]] = []  # and when they came


class SpanMatcher:
    """The requests that spans may belong to. `read` knows the engines' names."""

    def __init__(self, read: Read, keep: float) -> None:
        """`keep`: seconds after its end in which a request waits for spans."""
        self._read, self._keep = read, keep
        self._traces: dict[str, _Trace] = {}
        self._by_request_id: dict[str, list[Known]] = {}
        self._known: dict[str, Known] = {}
        self._ended: deque[Known] = deque()
        self._spans = 0  # remembered, of all traces

    def __len__(self) -> int:
        return len(self._known)

    def opened(self, trace_id: str, span_id: str, request_id: str) -> None:
        """A request is on its way to the engine."""
        known = Known(trace_id, span_id, request_id)
        self._known[span_id] = known
        self._by_request_id.setdefault(request_id, []).append(known)
        self._traces.setdefault(trace_id, _Trace()).requests[span_id] = known

    def ended(self, span_id: str, now: float, several: bool) -> Known:
        """It is over. Returns it, with what is certain of it already."""
        known = self._known[span_id]
        known.several = several
        known.until = now + self._keep
        self._ended.append(known)
        self._settle(known, certain_only=True)
        return known

    def add(self, spans: Iterable[EngineSpan], now: float) -> tuple[list[str | None], list[Known]]:
        """Spans came from an engine.

        Returns the trace of each, as the requests know it, None for one that belongs to no request; and
        the requests that have ended and of which something became certain.
        """
        homes: list[str | None] = []
        touched: dict[str, Known] = {}
        traces: dict[str, _Trace] = {}
        for span in spans:
            trace = self._traces.get(span.trace_id)
            if trace is not None:
                traces[span.trace_id] = trace
                self._remember(span, trace)
            homes.append(self._home(span, trace, touched, now))
        for trace in traces.values():
            self._retry(trace, touched, now)
        return homes, [known for known in touched.values() if self._settle(known, certain_only=True)]

    def expire(self, now: float) -> Iterator[Known]:
        """Requests whose time is over, with what is said of them in the end; each is forgotten."""
        while self._ended and ((self._ended[0].until or 0.0) <= now or len(self._ended) > MAX_ENDED):
            known = self._ended.popleft()
            self._settle(known, certain_only=False)
            self._forget(known)
            yield known

    def knows(self, trace_id: str) -> bool:
        """Whether a request of this trace is in flight or ended a moment ago."""
        return trace_id in self._traces

    # --- which request

    def _home(
        self, span: EngineSpan, trace: _Trace | None, touched: dict[str, Known], now: float
    ) -> str | None:
        """Give a span to its request; returns the trace that it is part of."""
        reading = self._read(span, _nothing)
        if trace is None and (reading is None or reading.request_id is None):
            return None
        if reading is not None:
            rank, requests = self._match(span, reading.request_id, trace)
            if len(requests) == 1:
                _give(span, rank, requests[0], touched)
            elif rank is Rank.REQUEST_ID:
                for known in requests:
                    known.unclear = True
            elif trace is not None and len(requests) > 1 and len(trace.undecided) < MAX_UNDECIDED:
                trace.undecided.append((now, span))
            if trace is None:
                return requests[0].trace_id if requests else None
        return span.trace_id

    def _match(
        self, span: EngineSpan, request_id: str | None, trace: _Trace | None
    ) -> tuple[Rank, list[Known]]:
        if trace is not None:
            known = _ancestor(span, trace)
            if known is not None:
                return Rank.ANCESTOR, [known]
        for candidate in _ids(request_id):
            requests = self._by_request_id.get(candidate)
            if requests:
                return Rank.REQUEST_ID, requests
        return Rank.TRACE, [] if trace is None else list(islice(trace.requests.values(), 2))

    def _remember(self, span: EngineSpan, trace: _Trace) -> None:
        before = len(trace.spans)
        if span.span_id in trace.spans or self._spans >= MAX_SPANS:
            return
        trace.spans[span.span_id] = _Above(span.parent_id, span.name, span.seconds)
        if before >= MAX_TRACE_SPANS:
            del trace.spans[next(iter(trace.spans))]
        self._spans += len(trace.spans) - before

    def _retry(self, trace: _Trace, touched: dict[str, Known], now: float) -> None:
        """Spans that came before the ones above them."""
        left = []
        for came, span in trace.undecided:
            known = _ancestor(span, trace)
            if known is not None:
                _give(span, Rank.ANCESTOR, known, touched)
            elif now - came <= 2 * self._keep:
                left.append((came, span))
        trace.undecided = left

    # --- what is said of it

    def _settle(self, known: Known, certain_only: bool) -> bool:
        """Put what is known now into `said`, of a request that has ended; whether that is news."""
        if known.until is None:
            return False
        readings = self._readings(known, certain_only)
        said: Verdict | None = None
        if len(readings) == 1 and not known.several:
            known.engine, said = readings[0].engine, readings[0].timings
        elif readings or (not certain_only and self._unclear(known)):
            said = "ambiguous"
        if said is None or said == known.said:
            return False
        known.said = said
        return True

    def _readings(self, known: Known, certain_only: bool) -> list[Reading]:
        """Those that were matched most surely; complete ones go before a router's, which has no parts."""
        if not known.spans:
            return []
        best = min(rank for rank, _ in known.spans)
        if certain_only and best is Rank.TRACE:
            return []
        trace = self._traces[known.trace_id]
        of_best = (
            self._read(span, lambda name, span=span: _stage(span, name, trace))  # type: ignore[misc]
            for rank, span in known.spans
            if rank is best
        )
        readings = [reading for reading in of_best if reading is not None]
        complete = [reading for reading in readings if reading.timings.complete]
        return complete if complete or certain_only else readings

    def _unclear(self, known: Known) -> bool:
        over = known.until or 0.0
        undecided = self._traces[known.trace_id].undecided
        return known.unclear or any(over - self._keep <= came <= over for came, _ in undecided)

    def _forget(self, known: Known) -> None:
        del self._known[known.span_id]
        same_id = self._by_request_id[known.request_id]
        same_id.remove(known)
        if not same_id:
            del self._by_request_id[known.request_id]
        trace = self._traces[known.trace_id]
        del trace.requests[known.span_id]
        if not trace.requests:
            self._spans -= len(trace.spans)
            del self._traces[known.trace_id]


def _nothing(_name: str) -> None: ...


def _give(span: EngineSpan, rank: Rank, known: Known, touched: dict[str, Known]) -> None:
    """An engine that got no answer sends a span again: it counts once."""
    is_new = all(span.span_id != other.span_id for _, other in known.spans)
    if is_new and len(known.spans) < MAX_READINGS:
        known.spans.append((rank, span))
        touched[known.span_id] = known


def _ancestor(span: EngineSpan, trace: _Trace) -> Known | None:
    """The request whose span is above this one, as far as the spans in between are known."""
    for above in _ids_above(_Above(span.parent_id, span.name, span.seconds), trace):
        known = trace.requests.get(above)
        if known is not None:
            return known
    return None


def _stage(root: EngineSpan, name: str, trace: _Trace) -> float | None:
    below = [
        span.seconds
        for span in trace.spans.values()
        if span.name == name and root.span_id in _ids_above(span, trace)
    ]
    return sum(below) if below else None


def _ids_above(span: _Above, trace: _Trace) -> Iterator[str]:
    above: _Above | None = span
    for _ in range(MAX_DEPTH):
        if above is None or above.parent_id is None:
            return
        yield above.parent_id
        above = trace.spans.get(above.parent_id)


def _ids(request_id: str | None) -> Iterator[str]:
    """The request ids that an engine may have made this one of, itself first."""
    if request_id:
        yield request_id
        for shape in _ID_SHAPES:
            match = shape.fullmatch(request_id)
            if match is not None:
                yield match[1]
