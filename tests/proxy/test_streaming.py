"""Pieces pass as they come: no buffering, no empty chunk, interim answers, early answers, pipelining."""

import asyncio

import pytest

from .harness import on_both_loops, relay
from .messages import dechunked, downstream, partial_chunks, upstream
from .wire import body, fin, head, request, send, wait

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

HEADS = {
    "chunked": SSE,
    "with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n",
    "until the end": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("old", [False, True], ids=["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("said", HEADS.values(), ids=HEADS)
@on_both_loops
async def test_every_piece_reaches_the_client_before_the_next_is_sent(said: bytes, old: bool) -> None:
    pieces = [b"data: event%d\n\n!!" % number for number in range(4)]
    steps, gates = [request, send(said)], [asyncio.Event() for _ in pieces]
    for gate, piece in zip(gates, pieces, strict=True):
        steps += [wait(gate), send(b"10\r\n" + piece + b"\r\n" if said == SSE else piece)]
    assert all(len(piece) == 16 for piece in pieces)
    steps += [send(b"0\r\n\r\n") if said == SSE else send(b""), fin]
    async with relay(steps) as between:
        client = await between.client(ASKS.replace(b"1.1", b"1.0") if old else ASKS)
        await client.head()
        for gate, piece in zip(gates, pieces, strict=True):
            assert piece not in client.received
            gate.set()
            await client.has(piece)
        [exchange] = await between.finished("clean")
        assert exchange.response_body == b"".join(pieces)


CHUNK_FORMS = {
    "a chunk in three pieces": [b"5\r\nhe", b"l", b"lo\r\n", b"0\r\n\r\n"],
    "framing alone in a piece": [b"5\r\n", b"hello", b"\r\n", b"0\r\n", b"\r\n"],
    "byte by byte": [b"%c" % byte for byte in b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"],
    "many chunks in a piece": [b"1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n"],
    "leading zeros and extensions": [b'0005;a="b"\r\nhello\r\n000;c\r\n\r\n'],
    "a whole chunk in each piece": [b"2\r\nhe\r\n", b"3\r\nllo\r\n", b"0\r\n\r\n"],
    "whole chunks with sizes in every spelling": [b"01\r\nh\r\n", b"4;x\r\nello\r\n", b"0\r\n\r\n"],
    "the last chunk behind another": [b"2\r\nhe\r\n", b"3\r\nllo\r\n0\r\n\r\n"],
}


@pytest.mark.parametrize("pieces", CHUNK_FORMS.values(), ids=CHUNK_FORMS)
@on_both_loops
async def test_chunks_at_any_split_give_the_same_body_and_no_empty_chunk(pieces: list[bytes]) -> None:
    steps = [request, send(SSE)]
    for piece in pieces:
        steps += [send(piece), turn]
    async with relay(steps) as between:
        client = await between.client(ASKS)
        message = await client.message()
        assert dechunked(message.partition(b"\r\n\r\n")[2]) == (b"hello", b"")
        await between.finished("clean")


LOOKS_WHOLE = {
    "the rest of a size": (
        [b"1\r\nh\r\n1", b"5\r\n12345\r\n", b"x" * 14 + b"\r\n"],
        b"h12345\r\n" + b"x" * 14,
    ),
    "data after a size": ([b"1\r\nh\r\n5\r\n", b"2\r\nab\r\n"], b"h2\r\nab"),
    "data after data": ([b"c\r\nhhhhh", b"2\r\nab\r\n", b"\r\n"], b"hhhhh2\r\nab\r\n"),
}


@pytest.mark.parametrize(("pieces", "said"), LOOKS_WHOLE.values(), ids=LOOKS_WHOLE)
@on_both_loops
async def test_a_piece_that_only_looks_like_a_whole_chunk_is_none(pieces: list[bytes], said: bytes) -> None:
    steps = [request, send(SSE)]
    for piece in [b"1\r\n>\r\n", *pieces, b"0\r\n\r\n"]:
        steps += [send(piece), turn]
    async with relay(steps) as between:
        client = await between.client(ASKS)
        message = await client.message()
        assert dechunked(message.partition(b"\r\n\r\n")[2]) == (b">" + said, b"")
        [exchange] = await between.finished("clean")
        assert exchange.response_body == b">" + said


async def turn(_: object) -> None:
    """Step: let everyone else on the loop run, so that pieces arrive apart."""
    for _ in range(5):
        await asyncio.sleep(0)


@on_both_loops
async def test_expect_is_forwarded_and_its_100_comes_before_the_body() -> None:
    sent = b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    steps = [head, send(b"HTTP/1.1 100 Continue\r\n\r\n"), body(3), send(OK)]
    async with relay(steps) as between:
        client = await between.client(sent)
        assert await client.message() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert upstream(between.engine.heads[0]) == sent
        await client.send(b"abc")
        assert downstream(await client.message()) == OK
        await between.finished("clean")


@on_both_loops
async def test_expect_is_answered_by_the_engine_alone() -> None:
    sent = b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    refusal = b"HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with relay([head, send(refusal), fin]) as between:
        client = await between.client(sent)
        assert downstream(await client.message()) == refusal.replace(b"Connection: close\r\n", b"")
        [exchange] = await between.finished("clean")
        assert exchange.status == 417


EARLY = {
    "with a length": OK,
    "in chunks": b"HTTP/1.1 413 Too Large\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("answer", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@on_both_loops
async def test_an_answer_complete_before_the_body_is_relayed_and_the_engine_dropped(
    answer: bytes, chunked: bool
) -> None:
    framing = (
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n" if chunked else b"Content-Length: 8\r\n\r\nhalf"
    )
    rest = b"4\r\nrest\r\n0\r\n\r\n" if chunked else b"rest"
    steps = [head, body(9 if chunked else 4), send(answer)]
    async with relay(steps, [request, send(OK)]) as between:
        client = await between.client(b"POST /x HTTP/1.1\r\nHost: h\r\n" + framing)
        message = downstream(await client.message())
        assert message.partition(b"\r\n\r\n")[0].split(b"\r\n")[0] == answer.split(b"\r\n")[0]
        assert message.endswith(answer.partition(b"\r\n\r\n")[2])
        await between.engine.connections[0].ended()
        await between.finished("clean")
        try:
            await client.send(rest + ASKS)
        except ConnectionError:
            return
        await client.until(lambda: client.end or b"\r\n\r\nok" in client.received[client.position :])
        assert b"400" not in client.received
        if client.end is None:
            assert downstream(await client.message()) == OK
        assert all(b"rest" not in conn.received for conn in between.engine.connections)


@on_both_loops
async def test_an_answer_that_begins_before_the_body_is_complete_runs_beside_it() -> None:
    """Full duplex: the engine streams while the client still uploads."""
    go = asyncio.Event()
    steps = [head, body(4), send(SSE + b"3\r\none\r\n"), body(4), send(b"3\r\ntwo\r\n0\r\n\r\n")]
    async with relay(steps) as between:
        client = await between.client(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf")
        await client.has(b"one")
        await client.send(b"rest")
        message = await client.message()
        assert dechunked(message.partition(b"\r\n\r\n")[2])[0] == b"onetwo"
        [exchange] = await between.finished("clean")
        assert exchange.request_body == b"halfrest"
        go.set()


@on_both_loops
async def test_pipelined_requests_are_answered_in_order() -> None:
    first, second, third = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n",
        b"HTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\n3",
    )
    asks = (
        b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"
        b"POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"
        b"GET /3 HTTP/1.1\r\nHost: h\r\n\r\n"
    )
    steps = [request, send(first), request, send(second), request, send(third)]
    async with relay(steps) as between:
        client = await between.client(asks)
        answers = [downstream(await client.message()) for _ in range(3)]
        assert [answer.split(b"\r\n")[0] for answer in answers] == [
            b"HTTP/1.1 200 OK",
            b"HTTP/1.1 200 OK",
            b"HTTP/1.1 404 No",
        ]
        assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == [
            b"1",
            b"1\r\n2\r\n0\r\n\r\n",
            b"3",
        ]
        await between.finished("clean", "clean", "clean")
        assert [head.split(b" ")[1] for head in between.engine.heads] == [b"/1", b"/2", b"/3"]
        starts = [exchange.start.t0 for exchange in between.exchanges]
        ends = [exchange.named("finish")[0][1] for exchange in between.exchanges]
        assert starts[1] >= ends[0] - 0.001, "a pipelined request begins when the one before it ends"
        assert starts == sorted(starts)


@on_both_loops
async def test_a_client_that_pipelines_and_closes_its_last_gets_all_answers() -> None:
    asks = ASKS + b"GET /y HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    async with relay([request, send(OK), request, send(OK)]) as between:
        client = await between.client(asks)
        assert downstream(await client.message()) == OK
        assert downstream(await client.message()) == OK
        await client.ended()
        assert client.end == "eof"
        await between.finished("clean", "clean")


@on_both_loops
async def test_the_observer_gets_stamps_in_order() -> None:
    sent = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
    async with relay([request, send(SSE + b"3\r\none\r\n0\r\n\r\n")]) as between:
        client = await between.client(sent)
        assert partial_chunks((await client.message()).partition(b"\r\n\r\n")[2][:-5]) == b"one"
        [exchange] = await between.finished("clean")
        stamps = {
            "t0": exchange.start.t0,
            "t_up": exchange.named("request_end")[0][0],
            "t_conn": exchange.named("connected")[0][0],
            "t_sent": exchange.named("sent")[0][0],
            "h": exchange.named("response_head")[0][2],
            "b1": exchange.named("observe")[0][1],
            "e": exchange.named("finish")[0][1],
        }
        order = ["t0", "t_conn", "t_sent", "h", "b1", "e"]
        assert [stamps[name] for name in order] == sorted(stamps[name] for name in order), stamps
        assert stamps["t0"] <= stamps["t_up"] <= stamps["t_sent"]
        assert exchange.named("connected")[0][1] is False
