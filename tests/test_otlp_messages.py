"""A span of ours as the message that OpenTelemetry's classes read, field by field."""

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1 import trace_pb2

from sidecar import __version__
from sidecar.core.otlp_frames import Frame, MalformedError, join
from sidecar.core.spans import Span, SpanEvent
from sidecar.otlp_messages import MAX_ATTRIBUTES, Encoder, read_span, rejected

SPAN = Span(
    name="chat m", kind="client", trace_id="0a" * 16, span_id="0b" * 8, parent_id="0c" * 8, start=1, end=2,
    attributes={"text": "é\ud800", "whole": 3, "part": 0.5, "yes": True, "list": ("a", "b")},
    events=(SpanEvent("first token", 3, {"x": 1}),), link=("0d" * 16, "0e" * 8), failed=True,
)  # fmt: skip


def parsed(span: Span, version: str = "latest") -> dict[str, object]:
    request = ExportTraceServiceRequest.FromString(join([Encoder(version, "s").frame(span)]))
    return MessageToDict(request)["resourceSpans"][0]


def test_a_span() -> None:
    whole = parsed(SPAN)
    assert whole["resource"] == {
        "attributes": [
            {"key": "service.name", "value": {"stringValue": "s"}},
            {"key": "service.version", "value": {"stringValue": __version__}},
        ]
    }
    scope_spans = whole["scopeSpans"][0]
    assert scope_spans["scope"] == {"name": "inference-sidecar", "version": __version__}
    assert scope_spans["schemaUrl"] == "https://opentelemetry.io/schemas/1.44.0"
    assert scope_spans["spans"] == [
        {
            "traceId": "CgoKCgoKCgoKCgoKCgoKCg==",  # MessageToDict writes bytes in base64
            "spanId": "CwsLCwsLCws=",
            "parentSpanId": "DAwMDAwMDAw=",
            "flags": 0x300,
            "name": "chat m",
            "kind": "SPAN_KIND_CLIENT",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
            "attributes": [
                {"key": "text", "value": {"stringValue": "é?"}},
                {"key": "whole", "value": {"intValue": "3"}},
                {"key": "part", "value": {"doubleValue": 0.5}},
                {"key": "yes", "value": {"boolValue": True}},
                {
                    "key": "list",
                    "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}},
                },
            ],
            "events": [
                {
                    "timeUnixNano": "3",
                    "name": "first token",
                    "attributes": [{"key": "x", "value": {"intValue": "1"}}],
                }
            ],
            "links": [{"traceId": "DQ0NDQ0NDQ0NDQ0NDQ0NDQ==", "spanId": "Dg4ODg4ODg4="}],
            "status": {"code": "STATUS_CODE_ERROR"},
        }
    ]


def test_a_root_and_a_child_have_no_remote_parent() -> None:
    root = Span(name="n", kind="client", trace_id="0a" * 16, span_id="0b" * 8, parent_id=None, start=1, end=2)
    child = Span(
        name="n", kind="internal", trace_id="0a" * 16, span_id="0b" * 8, parent_id="0c" * 8, start=1, end=2
    )
    for span, kind in ((root, "SPAN_KIND_CLIENT"), (child, "SPAN_KIND_INTERNAL")):
        message = parsed(span)["scopeSpans"][0]["spans"][0]
        assert (message["flags"], message["kind"]) == (0x100, kind)
        assert not {"status", "links"} & message.keys()


ANSWERS = [
    ("empty", b"", 0),
    ("all taken", ExportTraceServiceResponse().SerializeToString(), 0),
    (
        "some not taken",
        ExportTraceServiceResponse(
            partial_success=ExportTracePartialSuccess(rejected_spans=3)
        ).SerializeToString(),
        3,
    ),
    ("garbage", b"<html>", 0),
]


@pytest.mark.parametrize(("answer", "count"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_what_a_collector_answers(answer: bytes, count: int) -> None:
    assert rejected(answer) == count


def frame(scope: bytes = b"", **fields: object) -> Frame:
    return Frame(b"", scope, trace_pb2.Span(**fields).SerializeToString())


WRONG = [
    ("garbage", Frame(b"", b"", b"\xff\xff")),
    ("no ids", frame(name="n")),
    ("a short trace id", frame(trace_id=b"1", span_id=b"12345678")),
    ("a scope that is none", Frame(b"", b"\x0a\x05", frame(trace_id=bytes(16), span_id=bytes(8)).span)),
]


@pytest.mark.parametrize("of", [row[1] for row in WRONG], ids=[row[0] for row in WRONG])
def test_what_is_no_span_is_refused(of: Frame) -> None:
    with pytest.raises(MalformedError):
        read_span(of, {})


def test_long_texts_of_a_span_are_cut() -> None:
    span = trace_pb2.Span(trace_id=bytes(16), span_id=bytes(8), name="n" * 1000)
    span.attributes.add(key="k" * 1000).value.string_value = "v" * 1000
    scope = trace_pb2.ScopeSpans()
    scope.scope.name = "s" * 1000
    read = read_span(Frame(b"", scope.SerializeToString(), span.SerializeToString()), {})
    assert (read.name, read.scope, read.attributes) == ("n" * 256, "s" * 256, {"k" * 256: "v" * 256})


def test_attributes_that_are_read_are_bounded_and_of_a_plain_kind() -> None:
    span = trace_pb2.Span(trace_id=bytes(16), span_id=bytes(8), start_time_unix_nano=5, end_time_unix_nano=2)
    span.attributes.add(key="list").value.array_value.values.add(string_value="x")
    span.attributes.add(key="yes").value.bool_value = True
    span.attributes.add(key="none")
    for number in range(1000):
        span.attributes.add(key=str(number)).value.int_value = number
    read = read_span(Frame(b"", b"", span.SerializeToString()), {})
    assert set(read.attributes) == {str(number) for number in range(MAX_ATTRIBUTES - 3)}
    assert (read.seconds, read.parent_id) == (0.0, None)
