"""W3C Trace Context: a `traceparent` parsed and derived.

Source: https://www.w3.org/TR/trace-context/ (level 1, sections 3.2 and 3.3). Pure: random bytes are
an argument. A header that does not follow the grammar is treated as absent, as section 4.3 asks.
"""

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
RANDOM_BYTES = 24


class TraceContext(NamedTuple):
    """The position of one request in a trace; ids are lower-case hex."""

    trace_id: str
    parent_id: str | None  # the caller's span, None when the trace starts here
    span_id: str  # the id that the sidecar's own span has and sends upstream
    sampled: bool | None  # the caller's decision, None when it made none

    def header(self, sampled: bool) -> bytes:
        """The `traceparent` value to send upstream."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}".encode()


def derive(traceparent: bytes | None, random: bytes) -> TraceContext:
    """Continue the caller's trace, or start one.

    `random` holds RANDOM_BYTES unpredictable bytes: 16 for a trace id, 8 for a span id.
    """
    span_id = _non_zero(random[16:24]).hex()
    caller = _parse(traceparent)
    if caller is None:
        return TraceContext(_non_zero(random[:16]).hex(), None, span_id, None)
    trace_id, parent_id, sampled = caller
    return TraceContext(trace_id, parent_id, span_id, sampled)


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
