"""Exports taken apart and put together, with OpenTelemetry's own classes as the judge."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sidecar.core.otlp_frames import Frame, MalformedError, join, split


def export(*shape: tuple[str, str, list[str]]) -> ExportTraceServiceRequest:
    """(service, scope, names of spans) of each resource."""
    request = ExportTraceServiceRequest()
    for service, scope, names in shape:
        resource_spans = request.resource_spans.add(schema_url="https://r")
        resource_spans.resource.attributes.add(key="service.name").value.string_value = service
        scope_spans = resource_spans.scope_spans.add(schema_url="https://s")
        scope_spans.scope.name = scope
        for name in names:
            scope_spans.spans.add(name=name, start_time_unix_nano=1, trace_id=bytes(16))
    return request


TWO = export(("a", "x", ["1", "2", "3" * 300]), ("b", "y", ["4"]))


def names(frames: list[Frame]) -> list[str]:
    parsed = ExportTraceServiceRequest.FromString(join(frames))
    return [span.name for r in parsed.resource_spans for s in r.scope_spans for span in s.spans]


def test_what_is_put_together_again_is_the_same_message() -> None:
    frames = split(TWO.SerializeToString(), 10)
    assert len(frames) == 4
    assert ExportTraceServiceRequest.FromString(join(frames)) == TWO


def test_a_part_keeps_its_resource_and_scope() -> None:
    frames = split(TWO.SerializeToString(), 10)
    part = ExportTraceServiceRequest.FromString(join([frames[3], frames[0]]))
    assert part == export(("b", "y", ["4"]), ("a", "x", ["1"]))


def test_spans_of_one_resource_and_scope_come_together() -> None:
    frames = split(TWO.SerializeToString(), 10)
    again = ExportTraceServiceRequest.FromString(join([frames[0], frames[3], frames[1]]))
    assert again == export(("a", "x", ["1", "2"]), ("b", "y", ["4"]))


def test_a_field_of_a_later_version_stays_in_its_span() -> None:
    unknown = b"\xa2\x06\x03abc"  # field 100, length-delimited
    span = b"\x2a\x01n" + unknown
    scope = b"\x12" + bytes([len(span)]) + span
    resource = b"\x12" + bytes([len(scope)]) + scope
    whole = b"\x0a" + bytes([len(resource)]) + resource
    (frame,) = split(whole, 10)
    assert frame.span == span
    assert join([frame]) == whole


def test_nothing_is_an_empty_export() -> None:
    assert split(b"", 10) == []
    assert join([]) == b""


BROKEN = [
    ("text", b"hello, world"),
    ("a length beyond the end", b"\x0a\x7f\x00"),
    ("an endless number", b"\xff" * 20),
    ("cut off", TWO.SerializeToString()[:-1]),
    ("a group, which OTLP has none of", b"\x0b\x0c"),
]


@pytest.mark.parametrize("data", [row[1] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_what_is_no_export_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        split(data, 10)


def test_more_spans_than_allowed_are_refused() -> None:
    with pytest.raises(MalformedError, match="more than 3 spans"):
        split(TWO.SerializeToString(), 3)
    assert len(split(TWO.SerializeToString(), 4)) == 4


def test_a_span_of_a_megabyte_is_refused() -> None:
    for name, fits in (("n" * 250_000, True), ("n" * 1_000_000, False)):
        data = export(("a", "x", [name])).SerializeToString()
        if fits:
            assert len(split(data, 10)) == 1
        else:
            with pytest.raises(MalformedError, match="a span of more than 262144 bytes"):
                split(data, 10)


HOSTILE = [
    ("empty resources", b"\x0a\x00" * 4_000_000),
    ("numbers", b"\x08\x00" * 4_000_000),
    ("empty spans", b"\x0a\x85\x80\x80\x04\x12\x80\x80\x80\x04" + b"\x12\x00" * (1 << 22)),
]


@pytest.mark.parametrize("data", [row[1] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_millions_of_nothings_are_refused_soon(data: bytes) -> None:
    start = time.process_time()
    with pytest.raises(MalformedError):
        split(data, 5000)
    assert time.process_time() - start < 1.0  # 80,000 fields, against minutes for all


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_split(data: bytes) -> None:
    try:
        frames = split(data, 10)
    except MalformedError:
        return
    assert sorted(split(join(frames), 10)) == sorted(frames)
