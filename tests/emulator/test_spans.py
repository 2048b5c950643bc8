"""Spans have the shape of those that vLLM 0.32 exported, and the engine's own values."""

import json
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.emulator.answers import Answer, Piece
from sidecar.emulator.asked import read_chat, read_completion
from sidecar.emulator.clock import ClockError, WallClock
from sidecar.emulator.engine import Ended, Run
from sidecar.emulator.sequence import Sequence, Work
from sidecar.emulator.spans import attributes, export_request, span_of, trace_of
from tests.replay import DATA

RECORDED = [json.loads(line) for line in (DATA / "emulator" / "vllm_spans.jsonl").read_text().splitlines()]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e1001-00f067aa0ba90001-01"
CLOCK = WallClock(unix=5000.0, origin=100.0)
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 3, "temperature": 0}


def ended(
    body: dict[str, Any] = CHAT, traceparent: str | None = PARENT, choice: int = 0, read=read_chat
) -> Ended:
    """Arrived at 110, queued 110.5, started 112, first 115, last 119: three tokens each."""
    asked = read(json.dumps(body).encode(), ("m",), 4096)
    count = len(asked.prompts) * asked.n
    sequences = tuple(
        Sequence(n, Work(6, 3), 110.0, 110.5, 112.0, 115.0, 119.0, tokens=3) for n in range(count)
    )
    answers = (Answer((Piece("content", "a"),) * 3, "length"),) * count
    prefix = "chatcmpl-" if read is read_chat else "cmpl-"
    run = Run("abc", f"{prefix}abc", asked, trace_of(traceparent), answers, sequences, None, None)  # type: ignore[arg-type]
    return Ended(run, choice, "length")


def types_of(attributes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["key"], next(iter(each["value"]))) for each in attributes]


def ours(span) -> list[tuple[str, str]]:
    camel = {"double_value": "doubleValue", "int_value": "intValue", "string_value": "stringValue"}
    return [(each.key, camel[each.value.WhichOneof("value")]) for each in span.attributes]


SHAPES = {
    "with a parent, temperature 0": (CHAT, PARENT, "4bf92f3577b34da6a3ce929d0e0e1001"),
    "without a parent, with a temperature": (
        CHAT | {"temperature": 0.7},
        None,
        "e4075c9498a02c88599deb48fbc3fabf",
    ),
}


@pytest.mark.parametrize(("body", "traceparent", "trace_id"), SHAPES.values(), ids=SHAPES)
def test_a_span_has_the_recorded_shape(body, traceparent, trace_id) -> None:
    recorded = next(each for each in RECORDED if each["span"]["traceId"] == trace_id)
    span = span_of(ended(body, traceparent), CLOCK)
    theirs = recorded["span"]
    assert ours(span) == types_of(theirs["attributes"])
    assert (span.name, span.flags, span.status.code) == (theirs["name"], theirs["flags"], 0)
    assert span.kind == Span.SPAN_KIND_SERVER
    if "parentSpanId" in theirs:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (
            theirs["traceId"],
            theirs["parentSpanId"],
        )
    else:
        assert (len(span.trace_id), span.parent_span_id) == (16, b"")


def test_an_export_has_the_recorded_scope_and_resource() -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    body = export_request([span_of(ended(), CLOCK)], "id-1")
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (of_scope,) = of_resource.scope_spans
    assert of_scope.scope.name == RECORDED[0]["scope"]["name"]
    theirs = {key for key, _ in types_of(RECORDED[0]["resource"]["attributes"])}
    own = {each.key for each in of_resource.resource.attributes}
    assert own == {key for key in theirs if not key.startswith("telemetry.sdk")}, "it is no SDK"


def test_latencies_are_the_phases_and_the_wall_clock_s_differences() -> None:
    said = attributes(ended(), ended().sequence.phases, CLOCK)
    assert {key.rpartition(".")[2]: value for key, value in said.items() if "latency" in key} == {
        "time_to_first_token": 5.0,
        "e2e": 9.0,
        "time_in_queue": 1.5,
        "time_in_model_prefill": 3.0,
        "time_in_model_decode": 4.0,
        "time_in_model_inference": 7.0,
    }


def test_a_step_of_the_clock_while_it_runs_moves_what_is_wall_clock_and_nothing_else() -> None:
    """Set back by 100 s between arrival and first token."""
    stepped = WallClock(5000.0, 100.0, ClockError(steps=((-100.0, 14.0),)))
    right, wrong = (attributes(ended(), ended().sequence.phases, clock) for clock in (CLOCK, stepped))
    assert {key for key in right if right[key] != wrong[key]} == {
        "gen_ai.latency.time_to_first_token",
        "gen_ai.latency.e2e",
    }
    assert (wrong["gen_ai.latency.time_to_first_token"], wrong["gen_ai.latency.e2e"]) == (-95.0, -91.0)
    span = span_of(ended(), stepped)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (5010 * 10**9, 4919 * 10**9)


COMPLETION = {"prompt": ["a b", "c"], "n": 2, "max_tokens": 3}
# body, how it is read, choice; the id
IDS = {
    "chat: the response's": (CHAT, read_chat, 0, "chatcmpl-abc"),
    "chat, second of two choices: the same": (CHAT | {"n": 2}, read_chat, 1, "chatcmpl-abc"),
    "completion: and the index of the prompt": (COMPLETION, read_completion, 1, "cmpl-abc-0"),
    "completion, second prompt": (COMPLETION, read_completion, 2, "cmpl-abc-1"),
}


@pytest.mark.parametrize(("body", "read", "choice", "expected"), IDS.values(), ids=IDS)
def test_request_ids(body, read, choice, expected) -> None:
    one = ended(body, choice=choice, read=read)
    assert attributes(one, one.sequence.phases, CLOCK)["gen_ai.request.id"] == expected


def test_the_spans_of_one_request_are_siblings_with_ids_of_their_own() -> None:
    first, second = (span_of(ended(CHAT | {"n": 2}, choice=choice), CLOCK) for choice in (0, 1))
    assert first.span_id != second.span_id
    assert (first.trace_id, first.parent_span_id) == (second.trace_id, second.parent_span_id)
    assert all(each.attributes[-1].value.int_value == 1 for each in (first, second)), "each with n = 1"


def test_a_parent_that_is_not_sampled_gets_no_span() -> None:
    assert span_of(ended(traceparent=PARENT[:-2] + "00"), CLOCK) is None


def test_a_sequence_whose_client_left_has_no_span() -> None:
    left = ended()
    left.sequence.tokens = 2
    assert span_of(left, CLOCK) is None
