"""What the sidecar answers itself when the engine fails, and faults of the observer, which change nothing."""

import asyncio
import time
from typing import Any

import pytest

from .harness import Recorder, on_both_loops, relay
from .messages import dechunked, downstream, field, own_error, without
from .wire import Wire, head, request, send

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    "asks",
    [ASKS, b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"],
    ids=["GET", "POST"],
)
@on_both_loops
async def test_an_engine_that_is_not_there_is_a_502(asks: bytes) -> None:
    async with relay([]) as between:
        await between.engine.refuse()
        client = await between.client(asks)
        message = await client.message()
        own_error(message, 502)
        [exchange] = await between.finished("unreachable")
        assert exchange.status == 502
        assert exchange.named("connected") == []
        if field(message, b"connection") != [b"close"]:
            await client.send(asks)
            own_error(await client.message(), 502)


@on_both_loops
async def test_an_engine_that_is_not_there_while_the_client_still_uploads() -> None:
    async with relay([]) as between:
        await between.engine.refuse()
        client = await between.client(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 30000\r\n\r\nabc")
        own_error(await client.message(), 502)
        await between.finished("unreachable")


@on_both_loops
async def test_a_502_to_head_has_no_body() -> None:
    async with relay([]) as between:
        await between.engine.refuse()
        client = await between.client(b"HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        message = await client.ended()
        assert message.startswith(b"HTTP/1.1 502 ")
        assert message.endswith(b"\r\n\r\n")


@on_both_loops
async def test_a_502_ends_an_old_clients_connection() -> None:
    async with relay([]) as between:
        await between.engine.refuse()
        client = await between.client(ASKS.replace(b"1.1", b"1.0"))
        message = await client.ended()
        assert message[9:12] == b"502"
        assert b'"error"' in message


BAD_HEADS = {
    "a field over 64 KiB": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "a reason over 64 KiB": b"HTTP/1.1 200 " + b"a" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "over 64 KiB in all": b"HTTP/1.1 200 OK\r\n"
    + b"".join(b"X-%d: %b\r\n" % (number, b"a" * 1000) for number in range(70))
    + b"\r\n",
    "over 256 fields": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 257 + b"\r\n",
    "a head that never ends": b"HTTP/1.1 200 OK\r\n"
    + b"X-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 20_000,
    "101 that nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n"
    b"Connection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("said", BAD_HEADS.values(), ids=BAD_HEADS)
@on_both_loops
async def test_a_head_that_cannot_be_taken_is_a_502(said: bytes) -> None:
    async with relay([request, send(said)]) as between:
        client = await between.client(ASKS)
        own_error(await client.message(), 502)
        await between.engine.connections[0].ended()
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end in ("cut", "reset", "unreachable", "rejected")
        assert exchange.status == 502
        between.engine.failures.clear()


@on_both_loops
async def test_a_large_head_within_the_limits_passes() -> None:
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 200) for number in range(250))
    said = b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 2\r\n\r\nok"
    async with relay([request, send(said)]) as between:
        client = await between.client(ASKS)
        assert downstream(await client.message()) == said


@on_both_loops
async def test_a_reset_while_the_body_is_sent_is_a_502() -> None:
    async def rst(conn: Any) -> None:
        await conn.rst()

    async with relay([head, rst]) as between:
        client = await between.client(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 30\r\n\r\nabc")
        own_error(await client.message(), 502)
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end in ("reset", "cut")


NOPE = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope"


async def answer_unread(conn: Wire) -> None:
    """Step: as soon as a little has come, answer and close with the rest unread, which resets the connection."""
    loop = asyncio.get_running_loop()
    answered = loop.create_future()

    def answer() -> None:  # straight from the poll: uvloop sends what was written before it only after it
        loop.remove_reader(conn.sock)
        conn.sock.recv(100)
        conn.sock.send(NOPE)
        conn.sock.close()
        answered.set_result(None)

    loop.add_reader(conn.sock, answer)
    await answered


async def post_whole(client: Wire, data: bytes) -> None:
    try:
        await client.send(data)
    except ConnectionError:
        pass


@on_both_loops
async def test_an_early_answer_of_an_engine_that_closes_without_reading_is_relayed() -> None:
    """Whether the sidecar's next write or its next read finds the reset is chance: many take both ways."""
    posts = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    async with relay([answer_unread], engine_reads=False) as between:
        clients = [await between.client() for _ in range(40)]
        await asyncio.gather(*(post_whole(client, posts) for client in clients))
        for client in clients:
            assert downstream(await client.message()) == without(NOPE, b"connection")
        await between.finished(*["clean"] * 40)


SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
METHODS = ("request_data", "request_end", "connected", "sent", "response_head", "observe", "finish")


class Faulty(Recorder):
    """Raises in some methods, after it noted the call."""

    faulty: tuple[str, ...] = ()

    def _note(self, name: str, *arguments: Any) -> None:
        super()._note(name, *arguments)
        if name in self.faulty:
            raise RuntimeError(name)


@pytest.mark.parametrize("faulty", [*((name,) for name in METHODS), METHODS], ids=[*METHODS, "all"])
@on_both_loops
async def test_an_observer_that_raises_changes_no_byte(faulty: tuple[str, ...]) -> None:
    made: list[Faulty] = []

    def attach(start: Any) -> Faulty:
        made.append(Faulty(start))
        made[-1].faulty = faulty
        return made[-1]

    steps = [request, send(SSE)]
    for _ in range(6):
        steps += [send(b"5\r\nhello\r\n"), turns]
    async with relay([*steps, send(b"0\r\n\r\n"), request, send(OK)], attach=attach) as between:
        client = await between.client(b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
        message = await client.message()
        assert dechunked(message.partition(b"\r\n\r\n")[2]) == (b"hello" * 6, b"")
        await client.send(ASKS)
        assert downstream(await client.message()) == OK
        await between.settled()
        assert sum(between.proxy.faults.values()) >= 1
        names = [name for name, _ in made[0].calls]
        assert names.count("finish") <= 1
        assert sum(name in faulty for name in names if name != "finish") <= 3, "detached after three faults"


async def turns(_: object) -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@on_both_loops
async def test_an_attach_that_raises_changes_no_byte() -> None:
    def attach(_: Any) -> None:
        raise RuntimeError

    async with relay([request, send(OK)], attach=attach) as between:
        client = await between.client(ASKS)
        assert downstream(await client.message()) == OK
        await between.settled()
        assert sum(between.proxy.faults.values()) >= 1


@on_both_loops
async def test_no_observer_at_all() -> None:
    async with relay([request, send(OK)], attach=lambda _: None) as between:
        client = await between.client(ASKS)
        assert downstream(await client.message()) == OK
        assert sum(between.proxy.faults.values()) == 0


@on_both_loops
async def test_an_observer_that_takes_over_ten_milliseconds_three_times_is_detached() -> None:
    class Slow(Recorder):
        def observe(self, data: bytes, now: float) -> None:
            super().observe(data, now)
            time.sleep(0.02)

    made: list[Slow] = []

    def attach(start: Any) -> Slow:
        made.append(Slow(start))
        return made[-1]

    steps = [request, send(SSE)]
    for _ in range(5):
        steps += [send(b"5\r\nhello\r\n"), turns]
    async with relay([*steps, send(b"0\r\n\r\n")], attach=attach) as between:
        client = await between.client(ASKS)
        assert dechunked((await client.message()).partition(b"\r\n\r\n")[2]) == (b"hello" * 5, b"")
        await between.settled()
        assert len(made[0].named("observe")) == 3
        assert sum(between.proxy.faults.values()) >= 1
