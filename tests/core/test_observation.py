"""One request from its head to its record, driven as the proxy drives it."""

import gc
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.observation import DECODED_PER_READ, PAYLOADS_PER_READ, Observation
from sidecar.core.record import RequestRecord
from sidecar.core.timeline import Timeline

SSE = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
NDJSON = [(b"content-type", b"application/x-ndjson")]
Gaps = list[tuple[float, int | None]]


def observation(
    path: bytes = b"/v1/chat/completions",
    body: Any = None,
    *,
    gaps: Gaps | None = None,
    headers: Any = (),
    method: str = "POST",
) -> Observation:
    """An observation whose request is complete at 1.0."""
    seen: Gaps = [] if gaps is None else gaps
    one = Observation(
        t0=0.0,
        method=method,
        path=path,
        headers=headers,
        request_id="r1",
        trace_id="t1",
        wall=1000.0,
        gap_sink=lambda _: lambda gap, tokens: seen.append((gap, tokens)),
    )
    raw = json.dumps({"model": "m", "stream": True} if body is None else body).encode()
    one.request_data(raw, 0.5)
    one.request_end(1.0)
    one.connected(1.0, reused=True)
    one.sent(1.1)
    return one


def sse(*payloads: Any) -> bytes:
    return b"".join(
        b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"
        for payload in payloads
    )


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": "served", "choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 17, "completion_tokens": 3}}
Reads = list[tuple[float, bytes]]

STREAM: Reads = [
    (2.0, sse(delta(role="assistant", content=""))),
    (3.0, sse(delta(reasoning="Hm"))),
    (3.5, sse(delta(reasoning="m")) + sse(delta(reasoning="m"))),
    (4.0, sse(delta(content="Hi"))),
    (6.0, b": ping\n\n"),
    (7.0, sse(delta(content="!")) + sse(delta(finish="stop"), USAGE)[:40]),
    (7.5, sse(delta(finish="stop"), USAGE)[40:] + sse(b"[DONE]")),
]


def answered(one: Observation, reads: Reads, *, status: int = 200, headers: Any = SSE) -> Observation:
    one.response_head(status, headers, 1.5)
    for at, data in reads:
        one.response_data(data, at)
    return one


def test_a_streamed_answer_from_head_to_record() -> None:
    gaps: Gaps = []
    record = answered(observation(gaps=gaps), STREAM).finish("clean", 8.0)
    stamps = {
        name: getattr(record, name)
        for name in (
            "t0",
            "t_up",
            "t_conn",
            "t_sent",
            "h",
            "b1",
            "k1",
            "o1",
            "f1",
            "f_last",
            "u",
            "z",
            "e",
            "d_end",
        )
    }
    assert stamps == {
        "t0": 0.0, "t_up": 1.0, "t_conn": 1.0, "t_sent": 1.1, "h": 1.5, "b1": 2.0, "k1": 3.0, "o1": 4.0,
        "f1": 3.0, "f_last": 7.0, "u": 7.5, "z": 7.5, "e": 8.0, "d_end": 8.0,
    }  # fmt: skip
    assert (record.outcome, record.status, record.streaming, record.operation) == (
        "completed",
        200,
        True,
        "chat",
    )
    assert (record.model, record.reused, record.wall, record.missed) == ("m", True, 1000.0, 0)
    assert (record.chunks, record.reads, record.choices, record.finish_reasons) == (5, 4, 1, ("stop",))
    assert (record.input_tokens, record.output_tokens) == (17, 3)
    assert (record.ttft, record.ttfo, record.reasoning, record.tpot, record.e2e) == (3.0, 4.0, 1.0, 2.0, 8.0)
    assert gaps == [(0.5, None), (0.0, None), (0.5, None), (3.0, None)]
    assert (record.longest_gap, [s.duration for s in record.stalls]) == (3.0, [3.0])
    assert record.bytes_in == len(b'{"model": "m", "stream": true}')
    assert record.bytes_out == sum(len(data) for _, data in STREAM)
    assert msgspec.json.encode(record)


@given(cuts=st.lists(st.integers(0, 120), max_size=6))
def test_any_split_of_the_reads_gives_the_same_record(cuts: list[int]) -> None:
    whole = answered(observation(), STREAM).finish("clean", 8.0)
    pieces: Reads = []
    for at, data in STREAM:
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        pieces += [(at, data[a:b]) for a, b in pairwise(edges)]
    assert answered(observation(), pieces).finish("clean", 8.0) == whole


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_byte_by_byte_and_with_every_line_end_it_is_the_same_record(end: bytes) -> None:
    whole = answered(observation(), STREAM).finish("clean", 8.0)
    single = [(at, bytes([byte])) for at, data in STREAM for byte in data.replace(b"\n", end)]
    record = answered(observation(), single).finish("clean", 8.0)
    assert msgspec.structs.replace(record, bytes_out=whole.bytes_out) == whole


TRICKS = {
    "a second data line": b'data: {"choices":\ndata: [{"delta":{"content":"a"}}]}\n\n',
    "a line break that the standard reads as the end of the line": b'data: {"choices":\n[]}\n\n',
    "the same with CR": b'data: {"choices":\r[]}\n\n',
    "an id after the data": b'data: {"choices":[{"delta":{"content":"a"}}]}\nid: 3\n\n',
    "a comment after the data": b'data: {"choices":[{"delta":{"content":"a"}}]}\n:x\n\n',
    "CRLF and LF": b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\n',
    "a third line end": b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n\n',
    "the blank line missing": b'data: {"choices":[{"delta":{"content":"a"}}]}\n',
    "more behind it": b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {',
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS.keys())
def test_the_short_cut_for_one_event_reads_what_the_framer_reads(trick: bytes) -> None:
    reads: Reads = [(2.0, sse(delta(content="Hi"))), (3.0, trick), (4.0, sse(delta(content="!")))]
    by_byte = [(at, bytes([byte])) for at, data in reads for byte in data]
    short, long = answered(observation(), reads), answered(observation(), by_byte)
    assert short.faults == long.faults
    assert short.finish("cut", 5.0) == long.finish("cut", 5.0)


def test_an_answer_that_is_not_streamed() -> None:
    body = {
        "model": "served",
        "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
        "timings": {"prompt_ms": 3.5},
    }
    raw = json.dumps(body).encode()
    one = observation(body={"model": "m"})
    assert one.streaming is False
    record = answered(one, [(2.0, raw[:20]), (3.0, raw[20:])], headers=JSON).finish("clean", 3.0)
    assert (record.outcome, record.streaming, record.finish_reasons) == ("completed", False, ("stop",))
    assert (record.input_tokens, record.cached_input_tokens, record.output_tokens) == (5, 4, 9)
    assert (record.ttft, record.ttfo, record.tpot, record.waited, record.longest_gap) == (None,) * 5
    assert (record.ttfb, record.e2e, record.engine) == (2.0, 3.0, {"timings": {"prompt_ms": 3.5}})


def test_a_stream_of_lines_is_read_too() -> None:
    lines = b"".join(
        json.dumps(chunk).encode() + b"\n" for chunk in (delta(content="Hi"), delta(finish="stop"))
    )
    record = answered(observation(), [(2.0, lines[:10]), (3.0, lines[10:-1])], headers=NDJSON).finish(
        "clean", 4.0
    )
    assert (record.outcome, record.streaming, record.ttft) == ("completed", True, 3.0)


def test_text_completions_are_observed_in_depth() -> None:
    def finished(index: int, given: int) -> dict[str, Any]:
        choice = {"index": index, "text": "", "finish_reason": "length"}
        return {"choices": [choice], "usage": {"prompt_tokens": given, "completion_tokens": 12}}

    reads: Reads = [
        (2.0, b"data: null\n\n"),
        (3.0, sse({"choices": [{"index": 0, "text": "a"}]}, {"choices": [{"index": 1, "text": "b"}]})),
        (4.0, sse(finished(1, 3))),
        (5.0, sse(finished(0, 4))),
        (5.0, sse(b"[DONE]")),
    ]
    one = observation(b"/v1/completions", {"model": "m", "prompt": ["x", "y"], "stream": True})
    record = answered(one, reads).finish("clean", 6.0)
    assert (record.operation, record.outcome, record.ttft, record.missed) == (
        "text_completion",
        "completed",
        3.0,
        0,
    )
    assert (record.input_tokens, record.output_tokens, record.choices) == (7, 24, 2)


Finish = Callable[[Observation], RequestRecord]

ENDS: dict[str, tuple[Reads, str, str, dict[str, Any]]] = {
    "no terminal marker": (STREAM[:4], "clean", "truncated", {"ttft": 3.0, "e2e": 9.0}),
    "[DONE] without a finish reason": (
        [*STREAM[:4], (8.0, sse(b"[DONE]"))], "clean", "completed", {},
    ),
    "a finish reason without [DONE]": (
        [*STREAM[:4], (8.0, sse(delta(finish="length")))], "clean", "completed", {},
    ),
    "[DONE] without the blank line is none": (
        [*STREAM[:4], (8.0, b"data: [DONE]\n")], "clean", "truncated", {},
    ),
    "nothing at all": ([], "clean", "truncated", {"waited": 9.0}),
    "comments alone": ([(2.0, b": ping\n\n")], "clean", "truncated", {"waited": 9.0}),
    "an error event": (
        [*STREAM[:4], (8.0, sse({"error": {"code": 500}}, b"[DONE]"))],
        "clean", "error_in_stream", {"error": "error_event"},
    ),
    "an error by the event's type": (
        [*STREAM[:4], (8.0, b"event: error\ndata: gone\n\n")],
        "clean", "error_in_stream", {"error": "error_event", "ttft": 3.0},
    ),
    "an error before a token": (
        [(2.0, sse({"error": "queue full"}))],
        "clean", "error_in_stream", {"ttft": None, "waited": 9.0},
    ),
    "aborted": (
        [*STREAM[:4], (8.0, sse(delta(finish="abort"), b"[DONE]"))],
        "clean", "truncated", {"error": "finish_reason_abort"},
    ),
    "cut": (STREAM[:4], "cut", "truncated", {"error": "cut", "e2e": None, "e": None, "longest_gap": 5.0}),
    "reset": (STREAM[:4], "reset", "upstream_reset", {"error": "reset"}),
    "the client left before a token": (
        STREAM[:1], "client_left", "client_disconnected_before_output", {"waited": 9.0, "error": None},
    ),
    "the client left after output": (STREAM[:4], "client_left", "client_disconnected", {"waited": None}),
    "the client left after the terminal marker": (
        STREAM, "client_left", "completed", {"e2e": 7.5, "e": None},
    ),
    "a time limit": (STREAM[:4], "timeout", "timeout", {"error": "timeout"}),
}  # fmt: skip


@pytest.mark.parametrize(("reads", "end", "outcome", "fields"), ENDS.values(), ids=ENDS.keys())
def test_how_a_stream_ended(reads: Reads, end: Any, outcome: str, fields: dict[str, Any]) -> None:
    record = answered(observation(), reads).finish(end, 9.0)
    assert record.outcome == outcome
    assert {name: getattr(record, name) for name in fields} == fields
    assert record.ended == 9.0


NO_STREAM: dict[str, tuple[int | None, Any, str, int | None, str, dict[str, Any]]] = {
    "refused by the engine": (
        503, JSON, "clean", None, "overloaded", {"streaming": True, "e2e": 9.0, "waited": None},
    ),
    "an error page": (500, [], "clean", None, "upstream_error", {"status": 500}),
    "no connection": (None, None, "unreachable", 502, "upstream_unreachable", {"status": 502, "waited": 9.0}),
    "too many connections": (None, None, "rejected", 503, "overloaded", {"status": 503}),
    "the client left before the head": (
        None, None, "client_left", None, "client_disconnected_before_output", {"waited": 9.0, "status": None},
    ),
    "reset before the head": (None, None, "reset", 502, "upstream_reset", {"status": 502, "error": "reset"}),
    "a type that is not read": (
        200, [(b"content-type", b"text/html")], "clean", None, "completed", {"waited": None},
    ),
    "no type": (200, [], "clean", None, "completed", {"streaming": False}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "headers", "end", "told", "outcome", "fields"), NO_STREAM.values(), ids=NO_STREAM.keys()
)
def test_how_a_request_without_a_stream_ended(
    status: int | None, headers: Any, end: Any, told: int | None, outcome: str, fields: dict[str, Any]
) -> None:
    one = observation()
    if status is not None:
        answered(one, [(2.0, b'{"error": {"message": "no"}}')], status=status, headers=headers)
    record = one.finish(end, 9.0, told)
    assert record.outcome == outcome
    assert {name: getattr(record, name) for name in fields} == fields


def test_other_operations_are_timed_by_head_and_body() -> None:
    one = observation(b"/v1/embeddings")
    record = answered(one, [(2.0, b'event: message_start\ndata: {"type": "message_start"}\n\n')]).finish(
        "clean", 3.0
    )
    assert (record.operation, record.model, record.streaming) == ("embeddings", "m", True)
    assert (record.outcome, record.ttft, record.waited, record.ttfb, record.e2e) == (
        "completed", None, None, 2.0, 3.0,
    )  # fmt: skip


def test_requests_that_nobody_knows_are_not_read() -> None:
    one = observation(b"/v1/models", method="GET")
    record = answered(one, [(2.0, b"{}")], headers=JSON).finish("clean", 3.0)
    assert (record.operation, record.model, record.streaming, record.outcome) == (
        "other",
        None,
        False,
        "completed",
    )


def test_the_model_is_the_answers_when_the_request_could_not_be_read() -> None:
    one = observation(headers=[(b"content-encoding", b"gzip")])
    assert (one.model, one.streaming) == (None, None)
    answered(one, STREAM[:2])
    assert (one.model, one.streaming) == ("served", True)
    assert one.facts.readable is False


def test_the_live_view() -> None:
    one = observation()
    assert (one.model, one.streaming, one.last_token_at, one.silent_since(4.0)) == ("m", True, None, 4.0)
    answered(one, STREAM[:1])
    assert (one.last_token_at, one.silent_since(4.0)) == (None, 4.0)
    one.response_data(STREAM[1][1], 5.0)
    assert (one.last_token_at, one.silent_since(7.0)) == (5.0, 2.0)
    one.response_data(sse(delta(finish="stop")), 8.0)
    assert one.silent_since(99.0) == 0.0


def test_the_gap_sink_is_asked_for_once_when_the_model_is_known() -> None:
    asked: list[str | None] = []

    def sink(one: Observation) -> Callable[[float, int | None], None]:
        asked.append(one.model)
        return lambda gap, tokens: None

    one = Observation(
        t0=0.0,
        method="POST",
        path=b"/v1/chat/completions",
        headers=(),
        request_id="r",
        trace_id="t",
        wall=0.0,
        gap_sink=sink,
    )
    answered(one, STREAM[:2])
    assert asked == []
    for at, data in STREAM[2:]:
        one.response_data(data, at)
    assert asked == ["served"]


@pytest.mark.parametrize("reads", [STREAM, STREAM[:1], []])
def test_a_finished_observation_is_freed_without_the_garbage_collector(reads: Reads) -> None:
    gc.collect()
    gc.disable()
    try:
        record = answered(observation(), reads).finish("clean", 8.0)
        assert record.outcome
        assert not [one for one in gc.get_objects() if isinstance(one, Observation | Timeline)]
    finally:
        gc.enable()


def test_without_a_gap_sink_gaps_go_nowhere() -> None:
    one = Observation(
        t0=0.0,
        method="POST",
        path=b"/v1/chat/completions",
        headers=(),
        request_id="r",
        trace_id="t",
        wall=0.0,
    )
    assert answered(one, STREAM).finish("clean", 8.0).chunks == 5


def test_what_a_socket_read_can_hold_is_decoded_whole() -> None:
    """An error, a finish reason or the usage may be anywhere in the backlog of a slow client."""
    token = sse(delta(content="x"))
    tokens = token * ((DECODED_PER_READ - 1000) // len(token))
    record = answered(observation(), [(2.0, tokens + sse(USAGE, {"error": {"message": "no"}}))]).finish(
        "clean", 3.0
    )
    assert (record.outcome, record.missed, record.output_tokens) == ("error_in_stream", 0, 3)
    assert record.chunks == tokens.count(b"data:")


def test_of_one_read_no_more_is_decoded_and_the_rest_is_framed() -> None:
    tokens = sse(delta(content="x" * 1000)) * 400
    one = answered(observation(), [(2.0, tokens), (3.0, sse(delta(content="x")))])
    size = len(json.dumps(delta(content="x" * 1000)))
    decoded = DECODED_PER_READ // size
    assert one.timeline.chunks == decoded + 1
    assert one.faults == 400 - decoded


def test_of_one_read_a_bounded_number_of_payloads_is_decoded() -> None:
    one = answered(observation(), [(2.0, sse({}) * (PAYLOADS_PER_READ + 5))])
    assert one.faults == 5


def test_pieces_of_one_read_share_its_budget() -> None:
    event = sse(delta(content="x" * 1000))
    one = answered(observation(), [(2.0, event)] * 400)
    whole = answered(observation(), [(2.0, event * 400)])
    assert (one.faults, one.timeline.chunks) == (whole.faults, whole.timeline.chunks)
    assert one.faults > 0


def test_done_is_seen_even_behind_the_budget_and_what_was_missed_is_not_called_truncated() -> None:
    burst = sse(delta(content="x" * 1000)) * 400
    assert answered(observation(), [(2.0, burst + sse(b"[DONE]"))]).timeline.terminal
    record = answered(observation(), [(2.0, burst + sse(delta(finish="stop")))]).finish("clean", 3.0)
    assert (record.outcome, record.tpot) == ("completed", None)


def test_an_event_over_a_mebibyte_is_skipped_and_counted() -> None:
    big = sse(delta(content="x" * (1 << 20)))
    reads: Reads = [(2.0, sse(delta(content="a")))]
    reads += [(2.0 + at / 65536, big[at : at + 65536]) for at in range(0, len(big), 65536)]
    reads += [(90.0, sse(delta(content="b"), b"[DONE]"))]
    record = answered(observation(), reads).finish("clean", 91.0)
    assert (record.chunks, record.missed, record.outcome, record.longest_gap) == (2, 1, "completed", 88.0)


def test_after_detaching_nothing_is_concluded_from_the_rest() -> None:
    one = answered(observation(), STREAM[:4])
    one.detach()
    one.response_data(STREAM[5][1], 7.0)
    record = one.finish("clean", 99.0)
    assert (record.observed, record.outcome, record.ttft, record.tpot) == (False, "completed", 3.0, None)
    assert (record.f_last, record.stalls) == (4.0, ())
    assert record.bytes_out == sum(len(data) for _, data in [*STREAM[:4], STREAM[5]])


def test_a_compressed_answer_that_nobody_decompressed_is_not_called_truncated() -> None:
    gzip = [*SSE, (b"content-encoding", b"gzip")]
    record = answered(observation(), [(2.0, b"\x1f\x8b\x08\x00\n\n\xff")], headers=gzip).finish("clean", 3.0)
    assert (record.outcome, record.observed, record.waited) == ("completed", False, None)
    record = answered(observation(), STREAM, headers=gzip).finish("clean", 8.0)
    assert (record.outcome, record.observed) == ("completed", True)


def test_client_write_wait_is_kept_apart() -> None:
    gaps: Gaps = []
    one = answered(observation(gaps=gaps), STREAM[:4])
    one.waiting(4.0)
    one.response_data(STREAM[5][1], 7.0)
    one.write_wait(4.0, 7.25)
    one.response_data(STREAM[6][1], 7.5)
    one.waiting(7.5)
    one.write_wait(7.5, 9.5)
    record = one.finish("clean", 8.0)
    assert gaps == [(0.5, None), (0.0, None), (0.5, None)]
    assert (record.client_write_wait, record.write_wait_generation) == (5.25, 3.0)
    assert (record.longest_gap, record.stalls, record.tpot) == (0.5, (), None)
    assert (record.e, record.d_end, record.e2e, record.delivered) == (8.0, 9.5, 8.0, 9.5)


def test_the_backlog_that_a_wait_leaves_has_no_gaps_of_the_engine() -> None:
    gaps: Gaps = []
    one = answered(observation(gaps=gaps), STREAM[:4])
    token = sse(delta(content="a"))
    one.waiting(4.0)
    one.write_wait(4.0, 7.0)
    before = list(gaps)
    one.response_data(token * 3 + b": " + b"x" * 70_000 + b"\n\n", 7.0)  # a full read: there is more
    one.response_data(token * 4, 7.125)  # the last of it
    assert gaps == before
    one.response_data(token, 7.625)
    one.response_data(token * 2, 8.625)
    assert gaps == [*before, (0.5, None), (1.0, None), (0.0, None)]


def test_a_stream_that_its_own_client_holds_up_is_not_silent() -> None:
    one = answered(observation(), STREAM[:4])
    assert one.silent_since(10.0) == 6.0
    one.waiting(5.0)
    assert one.silent_since(10.0) == 0.0
    one.write_wait(5.0, 11.0)
    assert one.silent_since(12.0) == 8.0


def test_a_wait_that_is_open_at_the_end_counts() -> None:
    one = answered(observation(), STREAM[:4])
    one.waiting(4.0)
    assert one.finish("client_left", 304.0).client_write_wait == 300.0


def test_calls_in_an_odd_order_do_not_raise() -> None:
    one = Observation(
        t0=5.0,
        method="POST",
        path=b"/v1/chat/completions",
        headers=(),
        request_id="r",
        trace_id="t",
        wall=0.0,
    )
    one.response_data(STREAM[1][1], 1.0)
    one.write_wait(3.0, 2.0)
    one.waiting(None)
    one.request_end(1.0)
    one.request_data(b"more", 1.0)
    one.request_end(2.0)
    one.response_head(200, SSE, 2.0)
    one.detach()
    one.response_head(200, SSE, 2.0)
    answered(one, STREAM)
    assert one.finish("clean", 3.0).f1 == 3.0


WIRE = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [
                sse(delta(content="a")),
                sse(delta(finish="stop")),
                sse(USAGE),
                sse(b"[DONE]"),
                b"data: {",
                b"\n\n",
                b"\r",
            ]
        ),
    ),
    max_size=8,
)


@given(
    pieces=WIRE,
    headers=st.sampled_from([SSE, JSON, NDJSON, []]),
    cuts=st.lists(st.integers(0, 80), max_size=4),
)
def test_no_bytes_raise_and_no_split_matters(pieces: list[bytes], headers: Any, cuts: list[int]) -> None:
    data = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [(2.0, data[a:b]) for a, b in pairwise(edges)]
    whole = answered(observation(), [(2.0, data)], headers=headers).finish("clean", 3.0)
    assert answered(observation(), parts, headers=headers).finish("clean", 3.0) == whole
    singles = [(2.0, bytes([byte])) for byte in data]
    assert answered(observation(), singles, headers=headers).finish("clean", 3.0) == whole
