"""Spans as OTLP messages, and an engine's messages as what the matching needs.

The one file that knows OpenTelemetry's protobuf classes (`opentelemetry-proto`); it is imported only when
tracing is on.
"""

from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from sidecar import __version__
from sidecar.core.otlp_frames import Frame, MalformedError
from sidecar.core.semconv import SCHEMA_URLS, Version
from sidecar.core.span_match import EngineSpan
from sidecar.core.spans import Attribute, Span

MAX_ATTRIBUTES = 128  # of an engine's span, that are read
MAX_TEXT = 256  # characters of its names and values that are kept
_PARENT_LOCAL: Final = 0x100  # the flag bits that say whether the parent is in another process
_PARENT_REMOTE: Final = 0x300

_KINDS = {
    "client": trace_pb2.Span.SPAN_KIND_CLIENT,
    "internal": trace_pb2.Span.SPAN_KIND_INTERNAL,
}


class Encoder:
    """The sidecar's own spans as frames."""

    def __init__(self, version: Version, service: str) -> None:
        """`service`: the resource's `service.name`."""
        resource = Resource(
            attributes=[_pair("service.name", service), _pair("service.version", __version__)]
        )
        scope = InstrumentationScope(name="inference-sidecar", version=__version__)
        self._resource = trace_pb2.ResourceSpans(resource=resource).SerializeToString()
        self._scope = trace_pb2.ScopeSpans(scope=scope, schema_url=SCHEMA_URLS[version]).SerializeToString()

    def frame(self, span: Span) -> Frame:
        """One span, serialized."""
        message = trace_pb2.Span(
            trace_id=bytes.fromhex(span.trace_id),
            span_id=bytes.fromhex(span.span_id),
            parent_span_id=bytes.fromhex(span.parent_id or ""),
            flags=_PARENT_REMOTE if span.kind == "client" and span.parent_id else _PARENT_LOCAL,
            name=_text(span.name),
            kind=_KINDS[span.kind],
            start_time_unix_nano=span.start,
            end_time_unix_nano=span.end,
            attributes=[_pair(name, value) for name, value in span.attributes.items()],
            events=[
                trace_pb2.Span.Event(
                    name=event.name,
                    time_unix_nano=event.time,
                    attributes=[_pair(name, value) for name, value in event.attributes.items()],
                )
                for event in span.events
            ],
        )
        if span.link is not None:
            trace_id, span_id = map(bytes.fromhex, span.link)
            message.links.add(trace_id=trace_id, span_id=span_id)
        if span.failed:
            message.status.code = trace_pb2.Status.STATUS_CODE_ERROR
        return Frame(self._resource, self._scope, message.SerializeToString())


def read_span(frame: Frame, scopes: dict[bytes, str]) -> EngineSpan:
    """What the matching needs of a span; `scopes` keeps the names of an export's scopes.

    Raises MalformedError for what is no span.
    """
    try:
        span = trace_pb2.Span.FromString(frame.span)
        scope = scopes.get(frame.scope)
        if scope is None:
            scope = scopes[frame.scope] = trace_pb2.ScopeSpans.FromString(frame.scope).scope.name[:MAX_TEXT]
    except DecodeError:
        raise MalformedError("not a span") from None
    if len(span.trace_id) != 16 or len(span.span_id) != 8:
        raise MalformedError("a span without its ids")
    return EngineSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        scope=scope,
        name=span.name[:MAX_TEXT],
        seconds=max(0, span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        attributes={
            pair.key[:MAX_TEXT]: value
            for pair in span.attributes[:MAX_ATTRIBUTES]
            if (value := _plain(pair.value)) is not None
        },
    )


def rejected(response: bytes) -> int:
    """How many spans a collector's answer says it did not take; 0 for an answer that is none."""
    try:
        return ExportTraceServiceResponse.FromString(response).partial_success.rejected_spans
    except DecodeError:
        return 0


def _pair(name: str, value: Attribute) -> KeyValue:
    return KeyValue(key=name, value=_any(value))


def _any(value: Attribute) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=_text(value))
    return AnyValue(array_value=ArrayValue(values=[_any(text) for text in value]))


def _text(value: str) -> str:
    """Half of a surrogate pair, which JSON can hold, is no UTF-8."""
    return value.encode("utf-8", "replace").decode()


def _plain(value: AnyValue) -> str | float | None:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return value.string_value[:MAX_TEXT]
    if kind == "double_value":
        return value.double_value
    return value.int_value if kind == "int_value" else None
