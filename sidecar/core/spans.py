"""A finished request as spans: plain values, to be exported by the shell.

One CLIENT span a request, below it `first output` and `generation`, events for what happened in between.
Every time is the request's one reading of the wall clock plus a difference of monotonic stamps. What the
engine says of itself is durations, so it becomes attributes, never spans with invented times.
No span holds text of a prompt or an answer.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from sidecar.core import semconv
from sidecar.core.outcome import Outcome
from sidecar.core.record import RequestRecord
from sidecar.core.semconv import Version
from sidecar.core.server_timings import ServerTimings
from sidecar.core.tracecontext import SPAN_ID_BYTES, TraceContext, span_id_of

Attribute = str | bool | int | float | tuple[str, ...]
Verdict = ServerTimings | Literal["ambiguous"]
"""What the engine's spans say of one request; "ambiguous" when they can't be told from another's."""

RANDOM_BYTES = 2 * SPAN_ID_BYTES  # for the children's ids
MAX_STALL_EVENTS = 32
MAX_TEXT = 256  # characters of a value that a client chose

# A client that left ended its request itself: no error of anybody's.
_NO_ERRORS: frozenset[Outcome] = frozenset(
    {"completed", "client_disconnected", "client_disconnected_before_output"}
)


class SpanEvent(msgspec.Struct, frozen=True):
    """Something that happened at one time (Unix ns) of a span."""

    name: str
    time: int
    attributes: dict[str, Attribute] = {}


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span; ids are lower-case hex, times Unix ns."""

    name: str
    kind: Literal["client", "internal"]
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    end: int
    attributes: dict[str, Attribute] = {}
    events: tuple[SpanEvent, ...] = ()
    link: tuple[str, str] | None = None  # trace and span id of a caller whose trace was not continued
    failed: bool = False


def request_spans(
    record: RequestRecord,
    trace: TraceContext,
    random: bytes,
    *,
    server: tuple[str, int] | None = None,
    engine: str | None = None,
    said: Verdict | None = None,
    phases: Mapping[str, float | str] | None = None,
    version: Version = "latest",
) -> tuple[Span, ...]:
    """The client span first, then its children.

    `random`: RANDOM_BYTES unpredictable bytes. `server`: the engine's address. `engine`: its name, where
    known. `said`: what its spans say of this request. `phases`: attribute name -> seconds, from the join.
    """
    attributes = _attributes(record, engine)
    if server is not None:
        attributes[semconv.SERVER_ADDRESS], attributes[semconv.SERVER_PORT] = server
    attributes |= _of_engine(said)
    attributes |= phases or {}
    failed = record.outcome not in _NO_ERRORS
    if failed:
        attributes[semconv.ERROR_TYPE] = record.outcome
    client = Span(
        name=_name(record),
        kind="client",
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        start=_wall(record, record.t0),
        end=_wall(record, record.ended if record.d_end is None else record.d_end),
        attributes=semconv.spelled(attributes, version),
        events=_events(record),
        link=trace.link,
        failed=failed,
    )
    return (client, *_children(record, trace, random))


def _wall(record: RequestRecord, time: float) -> int:
    return round(record.wall * 1e9) + round((time - record.t0) * 1e9)


def _name(record: RequestRecord) -> str:
    operation = semconv.OPERATIONS.get(record.operation)
    if operation is None:
        return record.method
    return f"{operation} {record.model[:MAX_TEXT]}" if record.model else operation


def _attributes(record: RequestRecord, engine: str | None) -> dict[str, Attribute]:
    model = record.model[:MAX_TEXT] if record.model else None
    observed: dict[str, Attribute | None] = {
        semconv.HTTP_METHOD: record.method,
        semconv.HTTP_STATUS: record.status,
        semconv.REQUEST_ID: record.id[:MAX_TEXT],
        semconv.OUTCOME: record.outcome,
    }
    operation = semconv.OPERATIONS.get(record.operation)
    if operation is not None:
        observed |= {
            semconv.OPERATION_NAME: operation,
            semconv.PROVIDER_NAME: engine or semconv.UNKNOWN_PROVIDER,
            semconv.REQUEST_MODEL: model,
            semconv.REQUEST_STREAM: record.streaming,
            semconv.REQUEST_CHOICES: record.choices if record.choices > 1 else None,
            semconv.FINISH_REASONS: tuple(text[:MAX_TEXT] for text in record.finish_reasons[:16]) or None,
            semconv.TIME_TO_FIRST_CHUNK: record.ttfb if record.streaming else None,
            semconv.INPUT_TOKENS: record.input_tokens,
            semconv.OUTPUT_TOKENS: record.output_tokens,
            semconv.CACHED_INPUT_TOKENS: record.cached_input_tokens,
            semconv.REASONING_TOKENS: record.reasoning_tokens,
            semconv.TTFT: record.ttft,
            semconv.TTFO: record.ttfo,
            semconv.TPOT: record.tpot,
            semconv.LONGEST_GAP: record.longest_gap if record.streaming else None,
            semconv.STALLS: len(record.stalls) or None,
            semconv.WRITE_WAIT: record.client_write_wait or None,
            semconv.BUFFERED: record.buffered or None,
        }
    return {name: value for name, value in observed.items() if value is not None}


def _of_engine(said: Verdict | None) -> dict[str, Attribute]:
    if said is None:
        return {}
    if not isinstance(said, ServerTimings):
        return {semconv.ENGINE_MATCH: said}
    durations = {
        semconv.ENGINE_QUEUE: said.queue,
        semconv.ENGINE_PREFILL: said.prefill,
        semconv.ENGINE_DECODE: said.decode,
        semconv.ENGINE_TTFT: said.ttft,
        semconv.ENGINE_E2E: said.e2e,
    }
    return {name: seconds for name, seconds in durations.items() if seconds is not None}


def _events(record: RequestRecord) -> tuple[SpanEvent, ...]:
    """In the order of time. Of an answer that is not streamed only the end is an event."""
    end = record.e if record.z is None else record.z
    times: list[tuple[str, float | None, dict[str, Attribute]]] = [("end", end, {})]
    if record.streaming:
        times += [("first token", record.f1, {}), ("first output", record.o1, {})]
        times += [
            (
                "stall",
                stall.ended,
                {semconv.STALL_DURATION: stall.duration, semconv.STALL_DURING: stall.during},
            )
            for stall in record.stalls[:MAX_STALL_EVENTS]
        ]
    events = [SpanEvent(name, _wall(record, at), about) for name, at, about in times if at is not None]
    return tuple(sorted(events, key=lambda event: (event.time, event.name == "end")))


def _children(record: RequestRecord, trace: TraceContext, random: bytes) -> tuple[Span, ...]:
    """`first output`: the wait for the answer itself. `generation`: first to last token."""
    if not record.streaming:
        return ()
    intervals = (("first output", record.t0, record.o1), ("generation", record.f1, record.f_last))
    return tuple(
        Span(
            name=name,
            kind="internal",
            trace_id=trace.trace_id,
            span_id=span_id_of(random[index * SPAN_ID_BYTES :]),
            parent_id=trace.span_id,
            start=_wall(record, start),
            end=_wall(record, end),
        )
        for index, (name, start, end) in enumerate(intervals)
        if start is not None and end is not None
    )
