"""Answers that end too early: the client gets what came, and never a terminator."""

import asyncio
from typing import NamedTuple

import pytest

from .harness import on_both_loops, relay
from .messages import own_error, partial_chunks
from .wire import Step, close, fin, request, rst, send, wait

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OLD = b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_END = b"HTTP/1.1 200 OK\r\n\r\n"


class Cut(NamedTuple):
    said: bytes
    body: bytes


CUTS = {
    "length, no byte of the body": Cut(LENGTH, b""),
    "length, half of the body": Cut(LENGTH + b"hello", b"hello"),
    "chunks, before the first": Cut(CHUNKED, b""),
    "chunks, inside a size": Cut(CHUNKED + b"5\r\nhello\r\n1", b"hello"),
    "chunks, inside a chunk": Cut(CHUNKED + b"a\r\nhello", b"hello"),
    "chunks, before a chunk's end": Cut(CHUNKED + b"5\r\nhello", b"hello"),
    "chunks, between two": Cut(CHUNKED + b"5\r\nhello\r\n", b"hello"),
    "chunks, inside the last": Cut(CHUNKED + b"5\r\nhello\r\n0\r\n", b"hello"),
    "chunks, inside a trailer": Cut(CHUNKED + b"5\r\nhello\r\n0\r\nX-T: 1\r\n", b"hello"),
}

ENDINGS: dict[str, tuple[Step, str]] = {"FIN": (fin, "cut"), "close": (close, "cut"), "RST": (rst, "reset")}


@pytest.mark.parametrize(("ending", "end"), ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("asks", [ASKS, OLD], ids=["HTTP/1.1", "HTTP/1.0"])
@on_both_loops
async def test_a_cut_after_the_head_ends_with_an_abort(cut: Cut, asks: bytes, ending: Step, end: str) -> None:
    go = asyncio.Event()
    async with relay([request, send(cut.said), wait(go), ending]) as between:
        client = await between.client(asks)
        await client.head()
        await client.until(lambda: cut.body in client.received)
        assert client.end is None
        go.set()
        got = (await client.ended()).partition(b"\r\n\r\n")[2]
        assert (partial_chunks(got) if b"chunked" in client.heads[0] else got) == cut.body
        [exchange] = await between.finished(end)
        assert exchange.status == 200
        assert exchange.response_body == cut.body


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@on_both_loops
async def test_a_cut_in_the_same_piece_never_looks_whole(cut: Cut) -> None:
    async with relay([request, send(cut.said), fin]) as between:
        client = await between.client(ASKS)
        got = (await client.ended()).partition(b"\r\n\r\n")[2]
        chunked = b"HTTP/1.1" in client.received and b"chunked" in client.received
        assert cut.body.startswith(partial_chunks(got) if chunked else got)
        await between.finished("cut")


@on_both_loops
async def test_a_reset_of_a_body_without_framing_is_a_cut_too() -> None:
    go = asyncio.Event()
    async with relay([request, send(UNTIL_END + b"hello"), wait(go), rst]) as between:
        client = await between.client(ASKS)
        await client.has(b"hello")
        go.set()
        got = (await client.ended()).partition(b"\r\n\r\n")[2]
        assert partial_chunks(got) == b"hello"
        await between.finished("reset")


@on_both_loops
async def test_a_reset_of_a_body_without_framing_is_shown_to_an_old_client() -> None:
    """Bare bytes end with a FIN when they are whole, so only a reset can say that they are not."""
    go = asyncio.Event()
    async with relay([request, send(UNTIL_END + b"hello"), wait(go), rst]) as between:
        client = await between.client(OLD)
        await client.has(b"hello")
        go.set()
        await client.ended()
        assert client.end == "reset"
        await between.finished("reset")


BROKEN = {
    "a chunk size that is no number": CHUNKED + b"5\r\nhello\r\nxyz\r\n",
    "a chunk longer than its size": CHUNKED + b"5\r\nhello!!\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN)
@on_both_loops
async def test_bad_chunks_after_the_head_are_a_cut(said: bytes) -> None:
    go = asyncio.Event()
    cut = said.index(b"hello") + 5
    async with relay([request, send(said[:cut]), wait(go), send(said[cut:])]) as between:
        client = await between.client(ASKS)
        await client.has(b"hello")
        go.set()
        got = (await client.ended()).partition(b"\r\n\r\n")[2]
        assert partial_chunks(got) == b"hello"
        await between.engine.connections[0].ended()
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end in ("cut", "reset")


BEFORE_HEAD = {"nothing": b"", "half a line": b"HTTP/1.1 2", "half a head": b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"}


@pytest.mark.parametrize("ending", [fin, close, rst], ids=["FIN", "close", "RST"])
@pytest.mark.parametrize("said", BEFORE_HEAD.values(), ids=BEFORE_HEAD)
@on_both_loops
async def test_an_end_before_the_head_is_a_502_and_the_client_goes_on(said: bytes, ending: Step) -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with relay([request, send(said), ending], [request, send(ok)]) as between:
        client = await between.client(ASKS)
        if said:
            await between.engine.until(
                lambda: between.engine.connections and between.engine.connections[0].sent
            )
        message = await client.message()
        own_error(message, 502)
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end in ("cut", "reset", "unreachable")
        assert exchange.status == 502
        assert len(between.engine.connections) == 1
        assert sum(between.proxy.retries.values()) == 0
        if b"close" not in message.partition(b"\r\n\r\n")[0].lower():
            await client.send(ASKS)
            assert (await client.message()).endswith(b"\r\n\r\nok")


@on_both_loops
async def test_an_end_between_an_interim_and_the_final_answer_is_a_502() -> None:
    async with relay([request, send(b"HTTP/1.1 103 Early Hints\r\n\r\n"), fin]) as between:
        client = await between.client(ASKS)
        assert await client.message() == b"HTTP/1.1 103 Early Hints\r\n\r\n"
        own_error(await client.message(), 502)


@on_both_loops
async def test_bytes_behind_an_answer_never_reach_anyone_and_end_the_engine_connection() -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    async with relay([request, send(ok + evil)], [request, send(ok)]) as between:
        client = await between.client(ASKS)
        assert (await client.message()).endswith(b"\r\n\r\nok")
        await between.engine.connections[0].ended()
        await client.send(ASKS)
        assert (await client.message()).endswith(b"\r\n\r\nok")
        assert b"evil" not in client.received
        await between.finished("clean", "clean")
