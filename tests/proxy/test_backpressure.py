"""A reader that takes nothing stops the writer on the other side; what is held in between is bounded."""

import asyncio
import hashlib

import pytest

from .harness import Relay, on_both_loops, relay
from .wire import Wire, body, head, pattern, ports, queued, request, send

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"

TOTAL = 8 << 20
STUCK = 6 << 20
"""A writer has to be stopped before this: the kernel's buffers of all four sockets are small here, and how much
the proxy itself holds is measured apart."""
HELD = 512 << 10
"""Bytes that the sidecar may hold of one stalled stream."""


async def push_until_stuck(wire: Wire, other: Wire, content: bytes, at: int = 0) -> int:
    """Sends from `content` until nothing more is taken for a while; returns how far it came.

    Whether the flow has stopped is asked of the kernel: nothing moves on either side any more.
    """
    still, last = 0, (-1, -1)
    while still < 40 and at < len(content):
        at += wire.push(content[at : at + 65536])
        now = (at, other.count)
        still = still + 1 if now == last else 0
        last = now
        await asyncio.sleep(0.004 if still > 20 else 0)
    return at


def held_between(relay: Relay, source: Wire, sink: Wire, sent: int) -> int:
    """Bytes that are in neither end's program nor in any of the four sockets: those in the proxy's memory."""
    kernel = 0
    for wire in (source, sink):
        mine, theirs = ports(wire.sock)
        kernel += sum(queued(mine, theirs)) + sum(queued(theirs, mine))
    return sent - sink.count - kernel


@pytest.mark.parametrize("framing", ["length", "until the end", "chunked"])
@on_both_loops
async def test_a_client_that_stops_reading_pauses_the_engine_and_gets_every_byte_later(framing: str) -> None:
    content = pattern(TOTAL)
    if framing == "chunked":
        content = b"".join(b"8000\r\n" + content[at : at + 32768] + b"\r\n" for at in range(0, TOTAL, 32768))
        said, content = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", content + b"0\r\n\r\n"
    elif framing == "length":
        said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % TOTAL
    else:
        said = b"HTTP/1.1 200 OK\r\n\r\n"
    async with relay([request, send(said)], attach=None, buffers=65536) as between:
        client = await between.client(ASKS, buffers=16384, reading=False)
        engine = await between.engine.connected()
        await engine.until(lambda: engine.sent == len(said))
        sent = await push_until_stuck(engine, client, content)
        assert sent < STUCK, "the engine is never paused"
        held = held_between(between, engine, client, sent)
        assert held <= HELD, held
        client.read_on()
        await finish(engine, client, content, sent)
        if framing == "until the end":
            engine.fin()
        [exchange] = await between.finished("clean", within=20)
        assert exchange.response_body
        waits = exchange.named("write_wait")
        assert waits, "a wait of the client was never reported"
        assert all(start < end for start, end in waits)
        await compare(client, framing)


async def finish(engine: Wire, client: Wire, content: bytes, sent: int) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        await loop.sock_sendall(engine.sock, content[sent:])


async def compare(client: Wire, framing: str) -> None:
    chunked = framing != "length"
    await client.until(
        lambda: client.received.endswith(b"\r\n0\r\n\r\n") if chunked else client.count >= TOTAL + 30, 20
    )
    message = await client.message()
    rest = message.partition(b"\r\n\r\n")[2]
    if chunked:
        parts, at = [], 0
        while True:
            stop = rest.index(b"\r\n", at)
            size = int(rest[at:stop], 16)
            if not size:
                break
            parts.append(rest[stop + 2 : stop + 2 + size])
            at = stop + 2 + size + 2
        rest = b"".join(parts)
    assert hashlib.sha256(rest).digest() == hashlib.sha256(pattern(TOTAL)).digest()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@on_both_loops
async def test_an_engine_that_stops_reading_pauses_the_upload_and_gets_every_byte_later(
    chunked: bool,
) -> None:
    content = pattern(TOTAL)
    asks = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % TOTAL
    if chunked:
        asks = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        content = b"".join(b"8000\r\n" + content[at : at + 32768] + b"\r\n" for at in range(0, TOTAL, 32768))
        content += b"0\r\n\r\n"
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    answered = asyncio.Event()
    async with relay([request, send(ok)], engine_reads=False, buffers=65536) as between:
        client = await between.client(asks, buffers=65536)
        engine = await between.engine.connected()
        sent = await push_until_stuck(client, engine, content)
        assert sent < STUCK, "the client is never paused"
        held = held_between(between, client, engine, sent)
        assert held <= HELD, held
        engine.read_on()
        await finish(client, engine, content, sent)
        await client.until(lambda: client.received.endswith(b"ok"), 20)
        answered.set()
        [exchange] = await between.finished("clean")
        assert exchange.request_body
        assert exchange.response_body == b"ok"


@on_both_loops
async def test_a_slow_client_among_others_delays_none_of_them() -> None:
    flood = b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 4_000_000
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with relay([request, send(flood)], [request, send(ok)], buffers=65536) as between:
        slow = await between.client(ASKS, buffers=16384, reading=False)
        await between.engine.connected()
        await (await between.exchange()).until(lambda: between.exchanges[0].named("observe"))
        other = await between.client(ASKS)
        assert (await other.message()).endswith(b"ok")
        slow.read_on()
        await slow.until(lambda: slow.count >= 4_000_000)
        await between.finished("clean", "clean")


@on_both_loops
async def test_an_upload_passes_as_it_comes() -> None:
    """Nothing waits for the whole body: each piece reaches the engine before the next is sent."""
    asks = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\r\n"
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with relay([head, body(12), send(ok)]) as between:
        client = await between.client(asks)
        engine = await between.engine.connected()
        await engine.until(lambda: engine.heads)
        for piece in (b"aaaa", b"bbbb", b"cccc"):
            await client.send(piece)
            await engine.has(piece)
        assert (await client.message()).endswith(b"ok")
