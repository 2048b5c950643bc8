"""OTLP trace exports taken apart into spans and put together again, without a look inside a span.

An `ExportTraceServiceRequest` nests spans in scopes in resources, as length-delimited protobuf fields
(https://github.com/open-telemetry/opentelemetry-proto, trace/v1/trace.proto). What is forwarded stays
byte for byte what it was, and a hostile export costs no more than its size: decoded whole, an export of
16 MiB could become gigabytes of empty messages.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

_RESOURCE_SPANS = 1  # of the request
_SCOPE_SPANS = 2  # of ResourceSpans
_SPANS = 2  # of ScopeSpans
_KEPT = frozenset({1, 3})  # of both: resource or scope, schema_url
FIELDS_A_SPAN = 16  # read for each span allowed; an exporter sends about four
MAX_FRAME = 1 << 18  # so that one span decoded stays within some megabytes
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class Frame(NamedTuple):
    """One span, serialized, with what it is nested in: a ResourceSpans and a ScopeSpans without spans."""

    resource: bytes
    scope: bytes
    span: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.resource) + len(self.scope) + len(self.span)


class MalformedError(Exception):
    """Not a trace export, or one that holds more than it may."""


def split(export: bytes, max_spans: int) -> list[Frame]:
    """The spans of an export.

    Raises MalformedError for what is none, for more than `max_spans` spans, for a span over MAX_FRAME
    bytes, and for so many other fields that no exporter sends them.
    """
    frames: list[Frame] = []
    reader = _Reader(FIELDS_A_SPAN * max_spans)
    for resource_spans in reader.members(export, _RESOURCE_SPANS):
        resource = reader.header(resource_spans)
        for scope_spans in reader.members(resource_spans, _SCOPE_SPANS):
            scope = reader.header(scope_spans)
            for span in reader.members(scope_spans, _SPANS):
                frame = Frame(resource, scope, span)
                if len(frames) >= max_spans:
                    raise MalformedError(f"more than {max_spans} spans")
                if frame.size > MAX_FRAME:
                    raise MalformedError(f"a span of more than {MAX_FRAME} bytes")
                frames.append(frame)
    return frames


def join(frames: Iterable[Frame]) -> bytes:
    """An export of these spans; those of one resource and scope come together."""
    nested: dict[bytes, dict[bytes, list[bytes]]] = {}
    for frame in frames:
        nested.setdefault(frame.resource, {}).setdefault(frame.scope, []).append(frame.span)
    return b"".join(
        _member(_RESOURCE_SPANS, resource + b"".join(_scopes(scopes))) for resource, scopes in nested.items()
    )


def _scopes(scopes: dict[bytes, list[bytes]]) -> Iterator[bytes]:
    for scope, spans in scopes.items():
        yield _member(_SCOPE_SPANS, scope + b"".join(_member(_SPANS, span) for span in spans))


class _Reader:
    """Reads fields until its budget of them is used up."""

    def __init__(self, budget: int) -> None:
        self._budget = budget

    def header(self, message: bytes) -> bytes:
        """The fields that describe what spans are nested in."""
        kept = (_member(number, value) for number, value in self._fields(message) if number in _KEPT)
        return b"".join(kept)

    def members(self, message: bytes, wanted: int) -> Iterator[bytes]:
        """The values of field `wanted`."""
        return (value for number, value in self._fields(message) if number == wanted)

    def _fields(self, message: bytes) -> Iterator[tuple[int, bytes]]:
        """Number and value of each length-delimited field; others are skipped."""
        at, end = 0, len(message)
        while at < end:
            self._budget -= 1
            if self._budget < 0:
                raise MalformedError("too many fields")
            tag, at = _varint(message, at)
            if tag & 7 != _LENGTH:
                at = _skip(message, at, tag & 7)
                continue
            length, at = _varint(message, at)
            if length > end - at:
                raise MalformedError("cut off")
            yield tag >> 3, message[at : at + length]
            at += length


def _skip(message: bytes, at: int, kind: int) -> int:
    if kind == _VARINT:
        return _varint(message, at)[1]
    if kind not in (_FIXED64, _FIXED32):
        raise MalformedError("not protobuf")
    at += 8 if kind == _FIXED64 else 4
    if at > len(message):
        raise MalformedError("cut off")
    return at


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedError("cut off")


def _member(number: int, value: bytes) -> bytes:
    out = bytearray([number << 3 | _LENGTH])
    length = len(value)
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + value
