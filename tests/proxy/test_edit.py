"""Asking for usage: what is put into a request, what is taken out of its answer, when nothing is touched."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.proxy.edit import MAX_BODY, MAX_HELD, Asks, EventFilter, ask_for_usage

from .harness import on_both_loops, relay
from .messages import dechunked
from .wire import body, close, head, request, send

ASKED = b'"stream_options":{"include_usage":true},'
BODY = b' {"model": "m", "stream": true, "messages": []}'

BODIES: dict[str, tuple[bytes, bytes | None, str]] = {
    "a stream that says nothing": (
        BODY, b' {' + ASKED + b'"model": "m", "stream": true, "messages": []}', "usage_asked",
    ),
    "usage refused by the client": (
        b'{"stream":true,"stream_options":{"include_usage":false}}', None, "client_choice",
    ),
    "usage asked by the client": (
        b'{"stream":true,"stream_options":{"include_usage":true}}', None, "client_choice",
    ),
    "other stream options": (b'{"stream":true,"stream_options":{}}', None, "client_choice"),
    "stream options set to null": (b'{"stream":true,"stream_options":null}', None, "client_choice"),
    "not streamed": (b'{"stream":false}', None, "not_streamed"),
    "nothing said of streaming": (b'{"model":"m"}', None, "not_streamed"),
    "stream as text": (b'{"stream":"true"}', None, "not_json"),
    "no object": (b'[{"stream":true}]', None, "not_json"),
    "cut off": (b'{"stream":true,', None, "not_json"),
    "a byte order mark": (b'\xef\xbb\xbf{"stream":true}', None, "not_json"),
    "too long": (b'{"stream":true,"a":"' + b"x" * MAX_BODY + b'"}', None, "too_long"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "sent", "result"), BODIES.values(), ids=BODIES)
def test_what_is_put_into_a_body(body: bytes, sent: bytes | None, result: str) -> None:
    assert ask_for_usage(body) == (body if sent is None else sent, result)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key != "stream_options"), JSON, max_size=4))
def test_an_edited_body_differs_by_the_one_member(said: dict[str, Any]) -> None:
    body = json.dumps({**said, "stream": True}).encode()
    edited, result = ask_for_usage(body)
    assert result == "usage_asked"
    assert json.loads(edited) == {**said, "stream": True, "stream_options": {"include_usage": True}}
    assert edited.replace(ASKED, b"", 1) == body


def event(**said: Any) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


TEXT = event(choices=[{"index": 0, "delta": {"content": 'say "usage"'}}])
BESIDE = event(choices=[{"index": 0, "delta": {}}], usage={"completion_tokens": 3})
ALONE = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"

ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "usage alone is taken out": (TEXT + ALONE + DONE, TEXT + DONE),
    "usage beside a choice stays": (TEXT + BESIDE + DONE, TEXT + BESIDE + DONE),
    "one a choice, as llama.cpp counts several": (TEXT + ALONE + TEXT + ALONE + DONE, TEXT + TEXT + DONE),
    "null usage stays": (
        TEXT + event(choices=[], usage=None) + DONE, TEXT + event(choices=[], usage=None) + DONE,
    ),
    "an error stays whatever is beside it": (
        event(choices=[], usage={}, error={"m": 1}), event(choices=[], usage={}, error={"m": 1}),
    ),
    "an event of a type stays": (b"event: x\n" + ALONE, b"event: x\n" + ALONE),
    "a comment stays": (b": ping\n\n" + ALONE + DONE, b": ping\n\n" + DONE),
    "what is no event stays": (b"{}" * 9, b"{}" * 9),
    "an LF too many stays": (BESIDE + b"\n" + BESIDE + b"\n" + DONE, BESIDE + b"\n" + BESIDE + b"\n" + DONE),
    "three LFs too many stay": (BESIDE + b"\n\n\n" + DONE, BESIDE + b"\n\n\n" + DONE),
    "an LF behind what is taken out stays": (TEXT + ALONE + b"\n" + DONE, TEXT + b"\n" + DONE),
    "other line ends pass": (ALONE.replace(b"\n", b"\r\n"), ALONE.replace(b"\n", b"\r\n")),
}  # fmt: skip


@given(st.sampled_from(list(ANSWERS)), st.lists(st.integers(1, 40), max_size=30))
def test_what_is_taken_out_of_an_answer_however_it_is_cut(name: str, cuts: list[int]) -> None:
    said, expected = ANSWERS[name]
    out, usage_filter = b"", EventFilter()
    for cut in (*cuts, len(said)):
        out, said = out + usage_filter.feed(said[:cut]), said[cut:]
    assert out + usage_filter.end() == expected


@pytest.mark.parametrize(("said", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_taken_out_wherever_an_answer_is_cut_in_two(said: bytes, expected: bytes) -> None:
    for cut in range(len(said) + 1):
        usage_filter = EventFilter()
        out = usage_filter.feed(said[:cut]) + usage_filter.feed(said[cut:]) + usage_filter.end()
        assert out == expected, said[:cut]


def test_whole_events_are_never_held() -> None:
    usage_filter = EventFilter()
    assert usage_filter.feed(TEXT + TEXT[:9]) == TEXT
    assert usage_filter.feed(TEXT[9:]) == TEXT


def test_an_event_without_end_passes_once_it_is_too_long() -> None:
    usage_filter, said = EventFilter(), b"data: " + b"x" * MAX_HELD
    assert usage_filter.feed(said) == said
    assert usage_filter.feed(ALONE) == ALONE, "nothing is taken out any more"


# --- over sockets


def asks(body: bytes = BODY, path: bytes = b"/v1/chat/completions", extra: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%b\r\n%b" % (path, len(body), extra, body)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER = [send(STREAM + chunk(TEXT)), send(chunk(ALONE)), send(chunk(DONE) + b"0\r\n\r\n")]


@pytest.mark.parametrize("cut", [0, 1, 30], ids=["body with the head", "body later", "body in two pieces"])
@on_both_loops
async def test_the_engine_is_asked_and_the_client_never_knows(cut: int) -> None:
    async with relay([request, *ANSWER]) as between:
        between.proxy.asks = Asks(usage=True)
        whole = asks()
        split = len(whole) - cut if cut else len(whole)
        client = await between.client(whole[:split])
        if cut:
            await between.exchange()
            await client.send(whole[split:])
        got = await client.message()
        [seen] = await between.finished("clean")
        assert dechunked(got.partition(b"\r\n\r\n")[2]) == (TEXT + DONE, b"")
        [sent] = between.engine.connections[0].messages
        assert sent.endswith(b"\r\n\r\n" + ask_for_usage(BODY)[0])
        assert b"Content-Length: %d\r\n" % (len(BODY) + len(ASKED)) in sent
        assert seen.request_body == BODY, "the observer sees what the client sent"
        assert seen.response_body == TEXT + ALONE + DONE, "and what the engine said"
        assert dict(between.proxy.edits) == {"usage_asked": 1, "event_removed": 1}


UNTOUCHED = {
    "not asked to": (asks(), False, {}),
    "not streamed": (asks(b'{"stream":false}'), True, {"not_streamed": 1}),
    "the client's own choice": (asks(b'{"stream":true,"stream_options":{}}'), True, {"client_choice": 1}),
    "another API": (asks(path=b"/v1/messages"), True, {}),
    "compressed": (asks(extra=b"Content-Encoding: gzip\r\n"), True, {"compressed": 1}),
    "signed": (asks(extra=b"Content-Digest: x\r\n"), True, {"signed": 1}),
    "over 256 KiB": (asks(b'{"a":"' + b"x" * MAX_BODY + b'","stream":true}'), True, {"too_long": 1}),
}


@pytest.mark.parametrize(("sent", "asked", "counted"), UNTOUCHED.values(), ids=UNTOUCHED)
@on_both_loops
async def test_on_any_doubt_all_bytes_pass(sent: bytes, asked: bool, counted: dict[str, int]) -> None:
    async with relay([request, *ANSWER]) as between:
        between.proxy.asks = Asks(usage=asked)
        client = await between.client(sent)
        got = await client.message()
        await between.finished("clean")
        assert dechunked(got.partition(b"\r\n\r\n")[2]) == (TEXT + ALONE + DONE, b"")
        [passed] = between.engine.connections[0].messages
        assert passed.partition(b"\r\n\r\n")[2] == sent.partition(b"\r\n\r\n")[2]
        assert dict(between.proxy.edits) == counted


EXPECTS = b"Expect: 100-continue\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@on_both_loops
async def test_a_client_that_waits_for_100_gets_it_and_its_request_passes_as_it_is() -> None:
    """Its body can't be waited for: it comes only once the engine has said that it wants it."""
    async with relay([head, send(CONTINUE), body(len(BODY)), *ANSWER]) as between:
        between.proxy.asks = Asks(usage=True)
        client = await between.client(asks(extra=EXPECTS)[: -len(BODY)])
        assert await client.message() == CONTINUE
        await client.send(BODY)
        got = await client.message()
        await between.finished("clean")
        assert dechunked(got.partition(b"\r\n\r\n")[2]) == (TEXT + ALONE + DONE, b"")
        assert between.engine.connections[0].received.endswith(b"\r\n\r\n" + BODY)
        assert dict(between.proxy.edits) == {"expects_continue": 1}


@on_both_loops
async def test_a_client_that_sends_its_body_without_waiting_for_100_is_edited() -> None:
    async with relay([request, send(CONTINUE), *ANSWER]) as between:
        between.proxy.asks = Asks(usage=True)
        client = await between.client(asks(extra=EXPECTS))
        assert await client.message() == CONTINUE
        assert dechunked((await client.message()).partition(b"\r\n\r\n")[2]) == (TEXT + DONE, b"")
        await between.finished("clean")
        assert dict(between.proxy.edits) == {"usage_asked": 1, "event_removed": 1}


@on_both_loops
async def test_an_answer_with_a_length_passes_whole_and_is_counted() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(ALONE)
    async with relay([request, send(plain + ALONE)]) as between:
        between.proxy.asks = Asks(usage=True)
        client = await between.client(asks())
        assert (await client.message()).endswith(ALONE)
        await between.finished("clean")
        assert dict(between.proxy.edits) == {"usage_asked": 1, "answer_passed": 1}


@on_both_loops
async def test_what_was_held_of_an_event_still_reaches_the_client_before_a_cut() -> None:
    async with relay([request, send(STREAM + chunk(TEXT + ALONE[:20])), close]) as between:
        between.proxy.asks = Asks(usage=True)
        client = await between.client(asks())
        got = await client.ended()
        await between.finished("cut")
        assert got.endswith(chunk(TEXT) + chunk(ALONE[:20]))


@on_both_loops
async def test_a_retry_sends_the_edited_request_again() -> None:
    async with relay([request, *ANSWER, request, close], [request, *ANSWER]) as between:
        between.proxy.asks = Asks(usage=True)
        client = await between.client()
        for _ in range(2):
            await client.send(asks())
            assert dechunked((await client.message()).partition(b"\r\n\r\n")[2]) == (TEXT + DONE, b"")
        await between.finished("clean", "clean")
        messages = [message for engine in between.engine.connections for message in engine.messages]
        assert [message.partition(b"\r\n\r\n")[2] for message in messages] == [ask_for_usage(BODY)[0]] * 3


@on_both_loops
async def test_a_client_that_leaves_before_its_body_is_there_ends_the_wait() -> None:
    async with relay([request]) as between:
        between.proxy.asks = Asks(usage=True)
        client = await between.client(asks()[:-5])
        await between.exchange()
        await client.close()
        await between.finished("client_left")
        assert between.engine.connections == []


TRT_EVENT = b'event: trtllm.perf_metrics\ndata: {"Server-Timing": "server_queue;dur=1.5"}\n\n'
TIMED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer-Timing: server_queue;dur=1.5\r\nContent-Length: 2\r\n\r\n{}"
TIMINGS = {
    "a stream: the event behind [DONE] is taken out": (
        b"", STREAM + chunk(TEXT + DONE) + chunk(TRT_EVENT) + b"0\r\n\r\n", TEXT + DONE, True,
    ),
    "in one piece: the field is taken out": (b"", TIMED, b"{}", True),
    "a client that asks itself gets them": (
        b"X-TRTLLM-return-metrics: 1\r\n", STREAM + chunk(TEXT + DONE + TRT_EVENT) + b"0\r\n\r\n",
        TEXT + DONE + TRT_EVENT, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("extra", "answer", "body", "asked"), TIMINGS.values(), ids=TIMINGS)
@on_both_loops
async def test_timings_are_asked_for_seen_and_kept_from_the_client(
    extra: bytes, answer: bytes, body: bytes, asked: bool
) -> None:
    async with relay([request, send(answer)]) as between:
        between.proxy.asks = Asks(timings=True)
        client = await between.client(asks(extra=extra))
        message = await client.message()
        [exchange] = await between.finished("clean")
    head, _, rest = message.partition(b"\r\n\r\n")
    assert between.engine.heads[0].lower().count(b"x-trtllm-return-metrics: 1\r\n") == 1
    assert b"server-timing" not in head.lower()
    assert (dechunked(rest)[0] if b"chunked" in head else rest) == body
    assert between.proxy.edits["timings_asked"] == asked
    seen = exchange.response_body + repr(exchange.named("response_head")).encode()
    assert b"server_queue;dur=1.5" in seen, "the observer sees what the engine said"
