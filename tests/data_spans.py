"""The recorded spans, as protobuf and as OpenTelemetry's SDK has them."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from sidecar.core.otlp_frames import split
from sidecar.core.span_match import EngineSpan
from sidecar.otlp_messages import read_span

SPANS = Path(__file__).parent / "data" / "spans" / "vllm"
_IDS = ("traceId", "spanId", "parentSpanId")
_VALUES = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}


def recorded(name: str) -> Iterator[dict[str, Any]]:
    """Each export request of a recording, as it was noted."""
    for line in (SPANS / f"{name}.jsonl").read_text().splitlines():
        yield json.loads(line)


def exports(name: str) -> list[bytes]:
    """The same as vLLM sent them: serialized."""
    return [_serialized(request) for request in recorded(name)]


def _serialized(request: dict[str, Any]) -> bytes:
    text = {"resourceSpans": request["resourceSpans"]}
    for span in _each(text):
        for key in _IDS:
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return ParseDict(text, ExportTraceServiceRequest()).SerializeToString()


def engine_spans(name: str) -> list[EngineSpan]:
    """What the matching reads of all spans of a recording."""
    return [read_span(frame, {}) for export in exports(name) for frame in split(export, 1000)]


def sdk_spans(name: str) -> list[ReadableSpan]:
    """Spans that OpenTelemetry's exporters take."""
    found = []
    for request in recorded(name):
        for resource_spans in request["resourceSpans"]:
            resource = Resource(_attributes(resource_spans["resource"]["attributes"]))
            for scope_spans in resource_spans["scopeSpans"]:
                scope = InstrumentationScope(scope_spans["scope"]["name"])
                found += [_sdk_span(span, resource, scope) for span in scope_spans["spans"]]
    return found


def _sdk_span(span: dict[str, Any], resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    trace_id = int(span["traceId"], 16)
    parent = span.get("parentSpanId")
    return ReadableSpan(
        name=span["name"],
        context=_context(trace_id, span["spanId"], remote=False),
        parent=_context(trace_id, parent, remote=True) if parent else None,
        resource=resource,
        attributes=_attributes(span["attributes"]),
        kind=SpanKind[span["kind"].removeprefix("SPAN_KIND_")],
        instrumentation_scope=scope,
        start_time=int(span["startTimeUnixNano"]),
        end_time=int(span["endTimeUnixNano"]),
    )


def _context(trace_id: int, span_id: str, *, remote: bool) -> SpanContext:
    return SpanContext(trace_id, int(span_id, 16), remote, TraceFlags(1))


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _VALUES[kind](value) for pair in pairs for kind, value in pair["value"].items()}


def _each(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource_spans in request["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            yield from scope_spans["spans"]
