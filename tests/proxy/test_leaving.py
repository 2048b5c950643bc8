"""A client that leaves, by FIN, close or RST, at any moment: the engine's connection is aborted at once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from .harness import Relay, on_both_loops, relay
from .wire import PROMPT, Step, Wire, body, head, ports, queued, request, send

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
POSTS = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def by_fin(client: Wire) -> None:
    client.fin()


async def by_close(client: Wire) -> None:
    await client.close()


async def by_rst(client: Wire) -> None:
    await client.rst()


Leave = Callable[[Wire], Awaitable[None]]
LEAVES = pytest.mark.parametrize("leave", [by_fin, by_close, by_rst], ids=["FIN", "close", "RST"])

# What the client sends, what the engine does, and the bytes that the client has got when it leaves.
MOMENTS: dict[str, tuple[bytes, list[Step], bytes]] = {
    "before the head": (ASKS, [request], b""),
    "after an interim answer": (ASKS, [request, send(b"HTTP/1.1 103 Hints\r\n\r\n")], b"103 Hints\r\n\r\n"),
    "before the first token": (ASKS, [request, send(SSE)], b"\r\n\r\n"),
    "mid-stream": (ASKS, [request, send(SSE + b"5\r\nhello\r\n")], b"hello\r\n"),
    "inside a chunk": (ASKS, [request, send(SSE + b"a\r\nhello")], b"hello"),
    "unary, before the body": (
        POSTS + b"0123456789",
        [request, send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")],
        b"\r\n\r\n",
    ),
    "unary, inside the body": (
        POSTS + b"0123456789",
        [request, send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello")],
        b"hello",
    ),
    "until the end, inside the body": (ASKS, [request, send(b"HTTP/1.1 200 OK\r\n\r\nhello")], b"hello"),
    "HTTP/1.0, mid-stream": (
        ASKS.replace(b"1.1", b"1.0"),
        [request, send(SSE + b"5\r\nhello\r\n")],
        b"hello",
    ),
    "mid-upload": (POSTS + b"0123", [head, body(4)], b""),
    "mid-upload in chunks": (
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n",
        [head, body(7)],
        b"",
    ),
    "mid-upload, with the answer running": (
        POSTS + b"0123",
        [head, body(4), send(SSE + b"5\r\nhello\r\n")],
        b"hello\r\n",
    ),
    "with another request behind": (ASKS + ASKS, [request, send(SSE + b"5\r\nhello\r\n")], b"hello\r\n"),
}


@LEAVES
@pytest.mark.parametrize(("sent", "steps", "seen"), MOMENTS.values(), ids=MOMENTS)
@on_both_loops
async def test_the_engine_is_aborted_at_once(
    sent: bytes, steps: list[Step], seen: bytes, leave: Leave
) -> None:
    there = asyncio.Event()

    async def arrived(_: Wire) -> None:
        there.set()

    async with relay([*steps, arrived]) as between:
        client = await between.client(sent)
        await asyncio.wait_for(there.wait(), PROMPT)
        await client.has(seen)
        engine = await between.engine.connected()
        assert engine.end is None
        await leave(client)
        await engine.ended(PROMPT)
        await between.finished("client_left")
        assert len(between.engine.connections) == 1
        if leave is by_fin:
            await client.ended(PROMPT)
            assert not client.received.endswith(b"0\r\n\r\n")


@LEAVES
@on_both_loops
async def test_a_client_that_leaves_in_the_breath_of_its_request(leave: Leave) -> None:
    async with relay([request]) as between:
        client = await between.client(ASKS)
        await leave(client)
        if leave is by_fin:
            assert await client.ended(PROMPT) == b""
        await between.settled(PROMPT)
        for conn in between.engine.connections:
            await conn.ended(PROMPT)
        assert {exchange.end for exchange in between.exchanges} <= {"client_left"}
        between.engine.failures.clear()


async def stalled(between: Relay) -> tuple[Wire, Wire]:
    """A client that takes nothing, and its engine's connection, which can send nothing more."""
    client = await between.client(ASKS, buffers=8192, reading=False)
    engine = await between.engine.connected()
    await engine.until(lambda: engine.heads)
    quiet = 0
    while quiet < 20:
        quiet = 0 if engine.push(b"8000\r\n" + b"x" * 32768 + b"\r\n") else quiet + 1
        await asyncio.sleep(0.005 if quiet else 0)
    return client, engine


@pytest.mark.parametrize("leave", [by_fin, by_rst], ids=["FIN", "RST"])
@on_both_loops
async def test_a_client_that_leaves_while_a_full_buffer_waits_for_it(leave: Leave) -> None:
    async with relay([request, send(SSE)], buffers=65536) as between:
        client, engine = await stalled(between)
        await leave(client)
        await engine.ended(PROMPT)
        await between.finished("client_left")


async def send_until_unread(client: Wire) -> None:
    """Sends until the proxy leaves a piece in its kernel's buffer, which still has room for a FIN."""
    mine, theirs = ports(client.sock)
    loop = asyncio.get_running_loop()
    while True:
        await client.send(b"x" * 32768)
        patience = loop.time() + 0.1
        while queued(theirs, mine)[1] > 0:
            if loop.time() > patience:
                return
            await asyncio.sleep(0)


@pytest.mark.parametrize("leave", [by_fin, by_rst], ids=["FIN", "RST"])
@on_both_loops
async def test_a_client_that_leaves_while_the_reading_of_its_upload_is_paused(leave: Leave) -> None:
    """No read can report it: the sweep has to look at the connection's TCP state."""
    posts = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 900000000\r\n\r\n"
    async with relay([], engine_reads=False, buffers=65536) as between:
        client = await between.client(posts)
        await send_until_unread(client)
        await leave(client)
        engine = await between.engine.connected()
        await between.finished("client_left", within=PROMPT)
        engine.read_on()
        await engine.ended(PROMPT)


@on_both_loops
async def test_leaving_after_the_answer_ends_nothing() -> None:
    async with relay([request, send(OK), request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await between.finished("clean")
        client.fin()
        assert (await client.ended()).endswith(b"ok")
        other = await between.client(ASKS)
        await other.message()
        assert len(between.engine.connections) == 1
        await between.finished("clean", "clean")


@on_both_loops
async def test_many_clients_leave_at_once() -> None:
    async with relay([request, send(SSE + b"5\r\nhello\r\n")]) as between:
        clients = [await between.client(ASKS) for _ in range(40)]
        for client in clients:
            await client.has(b"hello")
        await asyncio.gather(*(client.rst() for client in clients))
        await asyncio.gather(*(conn.ended(PROMPT) for conn in between.engine.connections))
        await between.finished(*["client_left"] * 40)
