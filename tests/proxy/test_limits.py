"""Limits of size, of number and of time."""

import asyncio
import socket

import pytest

from sidecar.config import Limits
from sidecar.proxy import Proxy, Upstream

from .harness import on_both_loops, relay
from .messages import downstream, own_error, upstream
from .wire import Wire, all_read, head, request, send, wait

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
POSTS = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SSE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SWEPT = 3.0
"""Seconds within which a limit of a few tenths of a second has to act; the sweep may take one."""


def with_fields(count: int) -> bytes:
    """A GET with `count` fields, Host among them."""
    return (
        b"GET /x HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(count - 1)) + b"\r\n"
    )


PASSES = {
    "a target of 60 KiB": b"GET /" + b"a" * 61_440 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "a field of 60 KiB": b"GET /x HTTP/1.1\r\nHost: h\r\nX-A: " + b"a" * 61_440 + b"\r\n\r\n",
    "256 fields": with_fields(256),
}


@pytest.mark.parametrize("sent", PASSES.values(), ids=PASSES)
@on_both_loops
async def test_what_is_within_the_limits_passes(sent: bytes) -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(sent)
        assert downstream(await client.message()) == OK
        assert upstream(between.engine.connections[0].messages[0]) == sent


REFUSED = {
    "a target over 64 KiB": (b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    "a field over 64 KiB": (b"GET /x HTTP/1.1\r\nHost: h\r\nX-A: " + b"a" * 66_000 + b"\r\n\r\n", 431),
    "a field name over 64 KiB": (b"GET /x HTTP/1.1\r\nHost: h\r\nX" + b"a" * 66_000 + b": 1\r\n\r\n", 431),
    "257 fields": (with_fields(257), 431),
    "5,000 fields": (with_fields(5000), 431),
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
@on_both_loops
async def test_a_head_over_a_limit_is_refused(sent: bytes, status: int) -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client()
        try:
            await client.send(sent)
        except ConnectionError:
            pass
        own_error(await client.message(), status)
        await client.ended()
        assert between.engine.connections == []
        assert sum(between.proxy.rejected.values()) == 1


@on_both_loops
async def test_a_target_that_never_ends_is_refused_while_it_comes() -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(b"GET /")
        try:
            for _ in range(200):
                await client.send(b"a" * 4096)
        except ConnectionError:
            pass
        await client.until(lambda: client.end or client.received)
        if client.received:
            own_error(await client.message(), 414)


PARTS_OF_A_HEAD = {
    "one byte": b"G",
    "half a line": b"GET /x HT",
    "half a head": b"GET /x HTTP/1.1\r\nHost: h\r\nX-",
    "all but the last line end": ASKS[:-2],
}


def check_timed_out(client: Wire, before: int = 0) -> None:
    """The connection ended, silently or with 408; neither is promised for a head that is late."""
    rest = bytes(client.received[before:])
    assert rest == b"" or rest.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("part", PARTS_OF_A_HEAD.values(), ids=PARTS_OF_A_HEAD)
@on_both_loops
async def test_a_head_that_is_late_ends_the_connection(part: bytes) -> None:
    async with relay([request, send(OK)], head_timeout=0.2) as between:
        client = await between.client(part)
        await client.ended(SWEPT)
        check_timed_out(client)
        assert between.engine.connections == []


@on_both_loops
async def test_a_head_that_drips_is_late_too() -> None:
    async with relay([request, send(OK)], head_timeout=0.3) as between:
        client = await between.client(b"GET /x HTTP/1.1\r\nHost: h\r\nX-A: ")
        try:
            async with asyncio.timeout(SWEPT):
                while client.end is None:
                    await client.send(b"a")
                    await asyncio.sleep(0.05)
        except ConnectionError:
            await client.ended()
        check_timed_out(client)
        assert between.engine.connections == []


@on_both_loops
async def test_a_second_head_that_is_late_ends_the_connection_after_the_first_answer() -> None:
    async with relay([request, send(OK)], head_timeout=0.2) as between:
        client = await between.client(ASKS + b"GET /y HT")
        assert downstream(await client.message()) == OK
        await client.ended(SWEPT)
        check_timed_out(client, client.position)


LINE_ENDS_BETWEEN = {
    "behind a body, in a read of its own": (POSTS + b"0123456789", [b"\r\n"]),
    "behind a head, in a read of its own": (ASKS, [b"\r\n"]),
    "in the read of the body": (POSTS + b"0123456789\r\n", []),
    "its two bytes apart": (POSTS + b"0123456789", [b"\r", b"\n"]),
    "several": (POSTS + b"0123456789", [b"\r\n\r\n", b"\r\n"]),
}


@pytest.mark.parametrize(("sent", "behind"), LINE_ENDS_BETWEEN.values(), ids=LINE_ENDS_BETWEEN)
@on_both_loops
async def test_an_empty_line_between_requests_is_no_head_that_is_late(
    sent: bytes, behind: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9112 section 2.2: a server ignores it. That the limit has acted is seen on a head that began later."""
    monkeypatch.setattr("sidecar.proxy.proxy.SLOW_SWEEP_EVERY", 1)
    async with relay([request, send(OK), request, send(OK)], head_timeout=0.2) as between:
        client = await between.client(sent)
        assert downstream(await client.message()) == OK
        for piece in behind:
            await client.send(piece)
            await all_read(client)
        late = await between.client(b"GET /x HT")
        await late.ended(SWEPT)
        assert (client.end, client.received[client.position :]) == (None, b"")
        await client.send(ASKS)
        assert downstream(await client.message()) == OK


@pytest.mark.parametrize("used", [False, True], ids=["never used", "after an answer"])
@on_both_loops
async def test_an_idle_connection_is_closed(used: bool) -> None:
    async with relay([request, send(OK)], idle_timeout=0.2) as between:
        client = await between.client(ASKS if used else b"")
        if used:
            await client.message()
        await client.ended(SWEPT)
        assert client.end == "eof"
        assert len(client.received) == client.position


@on_both_loops
async def test_the_idle_limit_leaves_a_silent_stream_alone() -> None:
    limits = {"idle_timeout": 0.2, "head_timeout": 0.2, "body_timeout": 0.2, "client_write_timeout": 0.2}
    go = asyncio.Event()
    async with relay([request, send(SSE), wait(go), send(b"2\r\nhi\r\n0\r\n\r\n")], **limits) as between:
        client = await between.client(ASKS)
        await client.head()
        await asyncio.sleep(1.5)
        assert client.end is None
        go.set()
        await client.has(b"hi")
        await between.finished("clean")


@on_both_loops
async def test_a_body_that_stops_coming_is_a_408_and_the_engine_is_dropped() -> None:
    async with relay([head], body_timeout=0.2) as between:
        client = await between.client(POSTS + b"0123")
        await client.until(lambda: client.received or client.end, SWEPT)
        own_error(await client.message(), 408)
        await client.ended()
        await between.engine.connections[0].ended()
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end in ("timeout", "rejected")
        assert exchange.status == 408


@on_both_loops
async def test_a_client_that_is_slow_to_upload_is_not_taken_for_a_silent_engine() -> None:
    asks = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
    async with relay([head], body_timeout=1.3, response_head_timeout=0.1) as between:
        client = await between.client(asks)
        own_error(await client.message(), 408)


@on_both_loops
async def test_a_body_that_drips_is_not_late() -> None:
    async with relay([head, request_body, send(OK)], body_timeout=0.5) as between:
        client = await between.client(POSTS)
        for _ in range(10):
            await asyncio.sleep(0.15)
            await client.send(b"x")
        assert downstream(await client.message()) == OK


async def request_body(conn: Wire) -> None:
    await conn.take(10)


@on_both_loops
async def test_a_body_that_waits_for_the_engine_is_not_late() -> None:
    size = 64 << 20  # more than all buffers on the way
    async with relay([request, send(OK)], body_timeout=0.2, engine_reads=False, buffers=65536) as between:
        asks = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size
        client = await between.client(asks, buffers=65536)
        sending = asyncio.ensure_future(client.send(b"x" * size))
        await asyncio.sleep(1.5)
        assert not sending.done()
        assert client.received == b""
        (await between.engine.connected()).read_on()
        await sending
        assert downstream(await client.message()) == OK


@on_both_loops
async def test_a_client_that_takes_nothing_for_too_long_is_dropped() -> None:
    flood = b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n"

    async def pour(conn: Wire) -> None:
        try:
            while True:
                await conn.send(b"x" * 65536)
        except (ConnectionError, TimeoutError):
            pass

    async with relay([request, send(flood), pour], client_write_timeout=0.3, buffers=65536) as between:
        await between.client(ASKS, buffers=16384, reading=False)
        engine = await between.engine.connected()
        await engine.ended(SWEPT)
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end in ("client_left", "timeout")


@on_both_loops
async def test_an_engine_that_does_not_answer_in_time_is_a_504() -> None:
    async with relay([request], response_head_timeout=0.2) as between:
        client = await between.client(ASKS)
        await client.until(lambda: client.received or client.end, SWEPT)
        own_error(await client.message(), 504)
        await between.engine.connections[0].ended()
        [exchange] = await between.finished("timeout")
        assert exchange.status == 504


@on_both_loops
async def test_an_engine_that_does_not_take_the_connection_is_a_504() -> None:
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    address = full.getsockname()
    waiting = [socket.socket() for _ in range(8)]
    for sock in waiting:
        sock.setblocking(False)
        sock.connect_ex(address)
    proxy = Proxy(Upstream(*address), Limits(connect_timeout="0.3s"))
    try:
        listening = await proxy.start("127.0.0.1", 0)
        client = Wire(socket.create_connection(listening))
        await client.send(ASKS)
        message = await client.message()
        own_error(message, int(message[9:12]))
        assert message[9:12] in (b"504", b"502")
        await client.close()
        leaver = Wire(socket.create_connection(listening))
        await leaver.send(ASKS)
        async with asyncio.timeout(SWEPT):
            while not proxy.open:
                await asyncio.sleep(0.005)
            await leaver.rst()
            while proxy.open:
                await asyncio.sleep(0.005)
    finally:
        await proxy.stop()
        for sock in [full, *waiting]:
            sock.close()


@on_both_loops
async def test_a_connection_over_the_number_is_a_503_and_room_is_given_back() -> None:
    async with relay([request, send(OK), request, send(OK)], max_connections=2) as between:
        first, second = await between.client(ASKS), await between.client()
        assert downstream(await first.message()) == OK
        third = await between.client(ASKS)
        await third.until(lambda: third.received or third.end)
        own_error(await third.message(), 503)
        await third.ended()
        assert sum(between.proxy.rejected.values()) == 1
        await second.close()
        async with asyncio.timeout(SWEPT):
            while True:
                another = await between.client(ASKS)
                message = await another.message()
                if message.startswith(b"HTTP/1.1 200"):
                    break
                await another.close()
                await asyncio.sleep(0.01)
