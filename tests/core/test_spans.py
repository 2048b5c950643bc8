"""A record as spans, compared whole. Times by hand: the wall clock at t0, plus differences."""

from typing import Any

import pytest

from sidecar.core.outcome import Outcome
from sidecar.core.record import RequestRecord, Stall
from sidecar.core.server_timings import ServerTimings
from sidecar.core.spans import MAX_STALL_EVENTS, Span, SpanEvent, request_spans
from sidecar.core.tracecontext import TraceContext

TRACE = TraceContext("a" * 32, "b" * 16, "c" * 16, True)
RANDOM = bytes(range(1, 17))
FIRST, SECOND = "0102030405060708", "090a0b0c0d0e0f10"
WALL = 1_700_000_000
S = 1_000_000_000
T0 = WALL * S

STREAMED: dict[str, Any] = {
    "id": "r1", "trace_id": TRACE.trace_id, "method": "POST", "operation": "chat", "model": "m",
    "streaming": True, "status": 200, "outcome": "completed", "wall": float(WALL), "t0": 10.0,
    "b1": 10.25, "k1": 10.5, "o1": 12.0, "f1": 10.5, "f_last": 18.5, "z": 19.0, "e": 19.5, "d_end": 20.0,
    "ended": 19.5, "observed": True, "chunks": 9, "choices": 1, "finish_reasons": ("stop",),
    "input_tokens": 7, "cached_input_tokens": 4, "output_tokens": 17, "reasoning_tokens": 3,
    "longest_gap": 3.0, "stalls": (Stall(3.0, "output", 16.0),), "client_write_wait": 0.5,
}  # fmt: skip
UNARY: dict[str, Any] = {
    "id": "r2", "trace_id": TRACE.trace_id, "method": "POST", "operation": "text_completion", "model": "m",
    "streaming": False, "status": 200, "outcome": "completed", "wall": float(WALL), "t0": 10.0, "b1": 11.0,
    "f1": 11.0, "o1": 11.0, "f_last": 11.0, "z": 11.0, "e": 11.0, "d_end": 11.0, "ended": 11.0,
    "observed": True, "choices": 1, "finish_reasons": ("length",), "output_tokens": 2, "longest_gap": 1.0,
}  # fmt: skip


def record(base: dict[str, Any] = STREAMED, **fields: Any) -> RequestRecord:
    return RequestRecord(**{**base, **fields})


def test_a_streamed_request() -> None:
    spans = request_spans(record(), TRACE, RANDOM, server=("127.0.0.1", 8000), engine="vllm")
    assert spans == (
        Span(
            name="chat m", kind="client", trace_id="a" * 32, span_id="c" * 16, parent_id="b" * 16,
            start=T0, end=T0 + 10 * S,
            attributes={
                "http.request.method": "POST",
                "http.response.status_code": 200,
                "llm.request.id": "r1",
                "llm.outcome": "completed",
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "vllm",
                "gen_ai.request.model": "m",
                "gen_ai.request.stream": True,
                "gen_ai.response.finish_reasons": ("stop",),
                "gen_ai.response.time_to_first_chunk": 0.25,
                "gen_ai.usage.input_tokens": 7,
                "gen_ai.usage.output_tokens": 17,
                "gen_ai.usage.cache_read.input_tokens": 4,
                "gen_ai.usage.reasoning.output_tokens": 3,
                "llm.time_to_first_token": 0.5,
                "llm.time_to_first_output": 2.0,
                "llm.time_per_output_token": 0.5,
                "llm.longest_gap": 3.0,
                "llm.stalls": 1,
                "llm.client_write_wait": 0.5,
                "server.address": "127.0.0.1",
                "server.port": 8000,
            },
            events=(
                SpanEvent("first token", T0 + S // 2),
                SpanEvent("first output", T0 + 2 * S),
                SpanEvent("stall", T0 + 6 * S, {"llm.stall.duration": 3.0, "llm.stall.during": "output"}),
                SpanEvent("end", T0 + 9 * S),
            ),
        ),
        Span(
            name="first output", kind="internal", trace_id="a" * 32, span_id=FIRST, parent_id="c" * 16,
            start=T0, end=T0 + 2 * S,
        ),
        Span(
            name="generation", kind="internal", trace_id="a" * 32, span_id=SECOND, parent_id="c" * 16,
            start=T0 + S // 2, end=T0 + 17 * S // 2,
        ),
    )  # fmt: skip


def test_an_answer_that_is_not_streamed_is_one_span_without_first_tokens() -> None:
    (span,) = request_spans(record(UNARY), TRACE, RANDOM)
    assert span == Span(
        name="text_completion m", kind="client", trace_id="a" * 32, span_id="c" * 16, parent_id="b" * 16,
        start=T0, end=T0 + S,
        attributes={
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "llm.request.id": "r2",
            "llm.outcome": "completed",
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "_OTHER",
            "gen_ai.request.model": "m",
            "gen_ai.request.stream": False,
            "gen_ai.response.finish_reasons": ("length",),
            "gen_ai.usage.output_tokens": 2,
        },
        events=(SpanEvent("end", T0 + S),),
    )  # fmt: skip


def test_a_request_that_is_no_generation_is_a_plain_http_span() -> None:
    other = RequestRecord(
        id="r3", trace_id=TRACE.trace_id, method="GET", operation="other", model=None, streaming=None,
        status=404, outcome="client_error", wall=float(WALL), t0=10.0, e=10.5, ended=10.5,
    )  # fmt: skip
    (span,) = request_spans(other, TRACE, RANDOM)
    assert (span.name, span.failed) == ("GET", True)
    assert span.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 404,
        "llm.request.id": "r3",
        "llm.outcome": "client_error",
        "error.type": "client_error",
    }


OUTCOMES: list[tuple[Outcome, bool]] = [
    ("completed", False),
    ("client_disconnected_before_output", False),
    ("client_disconnected", False),
    ("client_error", True),
    ("overloaded", True),
    ("upstream_error", True),
    ("upstream_unreachable", True),
    ("upstream_reset", True),
    ("truncated", True),
    ("error_in_stream", True),
    ("timeout", True),
]


@pytest.mark.parametrize(("outcome", "failed"), OUTCOMES)
def test_what_failed_has_an_error_type_and_a_client_that_left_is_no_error(
    outcome: Outcome, failed: bool
) -> None:
    span = request_spans(record(outcome=outcome), TRACE, RANDOM)[0]
    assert span.failed is failed
    assert span.attributes.get("error.type") == (outcome if failed else None)
    assert span.attributes["llm.outcome"] == outcome


def test_a_stream_that_broke_before_a_token_has_no_children() -> None:
    nothing = {"b1": None, "k1": None, "o1": None, "f1": None, "f_last": None, "z": None, "e": None}
    (span,) = request_spans(
        record(**nothing, d_end=None, ended=12.0, stalls=(), outcome="upstream_reset"), TRACE, RANDOM
    )
    assert (span.end, span.events) == (T0 + 2 * S, ())


SAID = [
    ("nothing", None, {}),
    ("that it can't be told", "ambiguous", {"llm.engine.match": "ambiguous"}),
    (
        "its parts",
        ServerTimings(queue=0.125, prefill=0.25, decode=8.0, ttft=0.375, e2e=9.0),
        {
            "llm.engine.queue": 0.125,
            "llm.engine.prefill": 0.25,
            "llm.engine.decode": 8.0,
            "llm.engine.time_to_first_token": 0.375,
            "llm.engine.duration": 9.0,
        },
    ),
    ("a part", ServerTimings(queue=0.125), {"llm.engine.queue": 0.125}),
]


@pytest.mark.parametrize(("said", "expected"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
def test_what_the_engine_says_becomes_attributes(said: Any, expected: dict[str, object]) -> None:
    plain = request_spans(record(), TRACE, RANDOM)
    spans = request_spans(record(), TRACE, RANDOM, said=said)
    assert {k: v for k, v in spans[0].attributes.items() if k.startswith("llm.engine")} == expected
    assert [(span.start, span.end) for span in spans] == [(span.start, span.end) for span in plain]


def test_phases_of_the_join_become_attributes() -> None:
    span = request_spans(record(), TRACE, RANDOM, phases={"llm.phase.queue": 0.5})[0]
    assert span.attributes["llm.phase.queue"] == 0.5


def test_a_caller_whose_trace_is_not_continued_is_a_link() -> None:
    trace = TraceContext("d" * 32, None, "c" * 16, None, ("a" * 32, "b" * 16))
    span = request_spans(record(), trace, RANDOM)[0]
    assert (span.trace_id, span.parent_id, span.link) == ("d" * 32, None, ("a" * 32, "b" * 16))


def test_the_older_conventions_name_the_engine_otherwise() -> None:
    span = request_spans(record(), TRACE, RANDOM, engine="vllm", version="1.36")[0]
    assert span.attributes["gen_ai.system"] == "vllm"
    assert "gen_ai.provider.name" not in span.attributes


def test_stalls_and_texts_of_the_client_are_bounded() -> None:
    stalls = tuple(Stall(2.0, "output", 11.0 + index / 100) for index in range(1000))
    span = request_spans(record(stalls=stalls, model="m" * 10_000, id="r" * 10_000), TRACE, RANDOM)[0]
    assert len([event for event in span.events if event.name == "stall"]) == MAX_STALL_EVENTS == 32
    assert span.attributes["llm.stalls"] == 1000
    assert len(span.name) + len(str(span.attributes)) < 3000


def test_a_stall_of_unknown_time_is_counted_but_no_event() -> None:
    span = request_spans(record(stalls=(Stall(3.0, "output"),)), TRACE, RANDOM)[0]
    assert [event.name for event in span.events] == ["first token", "first output", "end"]
    assert span.attributes["llm.stalls"] == 1
