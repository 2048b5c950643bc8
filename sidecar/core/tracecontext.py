"""W3C Trace Context: a `traceparent` parsed and derived.

Source: https://www.w3.org/TR/trace-context/ (level 1, sections 3.2 and 3.3). Pure: random bytes are
an argument. A header that does not follow the grammar is treated as absent, as section 4.3 asks.
"""

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
RANDOM_BYTES = 24
SPAN_ID_BYTES = 8


class TraceContext(NamedTuple):
    """The position of one request in a trace; ids are lower-case hex."""

    trace_id: str
    parent_id: str | None  # the caller's span, None when the trace starts here
    span_id: str  # the id that the sidecar's own span has and sends upstream
    sampled: bool | None  # the caller's decision, None when it made none
    link: tuple[str, str] | None = None  # trace and span id of a caller whose trace is not continued

    def header(self, sampled: bool) -> bytes:
        """The `traceparent` value to send upstream."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}".encode()


def derive(traceparent: bytes | None, random: bytes, *, trust: bool = True) -> TraceContext:
    """Continue the caller's trace, or start one.

    `random` holds RANDOM_BYTES unpredictable bytes: 16 for a trace id, 8 for a span id. A caller that is
    not to be trusted with trace ids and sampling gets a new trace with a link to its own.
    """
    span_id = span_id_of(random[16:])
    caller = _parse(traceparent)
    if caller is not None and trust:
        trace_id, parent_id, sampled = caller
        return TraceContext(trace_id, parent_id, span_id, sampled)
    link = None if caller is None else caller[:2]
    return TraceContext(_non_zero(random[:16]).hex(), None, span_id, None, link)


def span_id_of(random: bytes) -> str:
    """A span id out of the first SPAN_ID_BYTES bytes."""
    return _non_zero(random[:SPAN_ID_BYTES]).hex()


def chosen(trace: TraceContext, ratio: float) -> bool:
    """Whether to export a trace for itself: as the caller decided, else `ratio` of all traces.

    Every party that uses the same ratio of the trace id's low 64 bits decides alike
    (OpenTelemetry's TraceIdRatioBased sampler).
    """
    if trace.sampled is not None:
        return trace.sampled
    return int(trace.trace_id[16:], 16) < round(ratio * (1 << 64))


def _parse(value: bytes | None) -> tuple[str, str, bool] | None:
    match = _TRACEPARENT.fullmatch(value.strip()) if value else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    invalid = (
        version == b"ff"
        or (version == b"00" and rest)
        or not trace_id.strip(b"0")
        or not parent_id.strip(b"0")
    )
    return None if invalid else (trace_id.decode(), parent_id.decode(), bool(int(flags, 16) & 1))


def _non_zero(raw: bytes) -> bytes:
    return raw if any(raw) else b"\x01" * len(raw)
