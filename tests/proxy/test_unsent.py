"""An answer is over when the client has taken it, even when the engine has long ended it.

All of it, or its end, lies in the sidecar's own buffer here, too little for flow control to pause anybody:
nothing but the end of the exchange waits for the client.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sidecar.proxy import proxy
from sidecar.proxy import relay as relaying

from .harness import Recorder, Relay, limit_buffers, on_both_loops, relay
from .messages import downstream
from .test_drain import closed_to_new
from .test_limits import SWEPT
from .wire import PROMPT, Wire, pattern, request, send

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 48000\r\n\r\n"
ANSWER = HEAD + pattern(48_000)  # below the 64 KiB at which a transport pauses its writer
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + pattern(1000)
KERNEL = 4096
"""Bytes asked for each of the two kernel buffers between the sidecar and the client; Linux doubles them."""
NEVER = 60.0
"""Seconds, longer than a test may last."""

READS = {"in one read": [ANSWER], "in two reads": [ANSWER[:-100], ANSWER[-100:]]}
HOWEVER_IT_CAME = pytest.mark.parametrize("pieces", READS.values(), ids=READS)


async def slow_client(between: Relay, data: bytes = ASKS) -> Wire:
    """A client that takes nothing yet, behind small buffers; the engine's are as large as ever."""
    for server in between.proxy._servers:
        for listening in server.sockets:
            limit_buffers(listening, KERNEL)  # accepted sockets inherit it
    return await between.client(data, buffers=KERNEL, reading=False)


async def answered(between: Relay, pieces: list[bytes]) -> Recorder:
    """The exchange of a slow client after the engine has sent all of its answer, each piece one read."""
    engine = await between.engine.connected()
    await engine.until(lambda: engine.messages)
    exchange = await between.exchange()
    size = -len(HEAD)
    for number, piece in enumerate(pieces, 1):
        await engine.send(piece)
        size += len(piece)
        await exchange.until(lambda size=size: len(exchange.response_body) == size)
        assert len(exchange.named("observe")) == number, "it came in more reads than pieces"
    for _ in range(3):  # what could be sent has been
        await asyncio.sleep(0)
    return exchange


@HOWEVER_IT_CAME
@on_both_loops
async def test_an_answer_that_the_engine_has_ended_survives_a_drain(pieces: list[bytes]) -> None:
    async with relay([request]) as between:
        client = await slow_client(between)
        exchange = await answered(between, pieces)
        ending = asyncio.ensure_future(drain_and_stop(between))
        await closed_to_new(between)
        assert exchange.end is None
        client.read_on()
        assert downstream(await client.ended()) == ANSWER
        async with asyncio.timeout(PROMPT):
            assert await ending, "the drain was in time"
        await between.finished("clean")


async def drain_and_stop(between: Relay) -> bool:
    """What the sidecar does on SIGTERM."""
    ended = await between.proxy.drain(0, 30)
    await between.proxy.stop()
    return ended


async def small_answers_until_some_is_held(between: Relay, client: Wire) -> int:
    """Asks for small answers, one after the other, until the kernel has no room for one; how many came."""
    for count in range(1, 500):
        await client.send(ASKS)
        engine = await between.engine.connected()
        await engine.message()
        exchange = await between.exchange(count)
        await engine.send(SMALL)
        await exchange.until(lambda exchange=exchange: exchange.response_body)
        for _ in range(3):
            await asyncio.sleep(0)
        [connection] = between.proxy._clients
        if connection.transport.get_write_buffer_size() > 0:
            return count
        await exchange.until(lambda exchange=exchange: exchange.end)
    raise AssertionError("the kernel had room for all of them")


@on_both_loops
async def test_the_rest_of_a_small_answer_survives_a_drain_too() -> None:
    """So little is left of it that its exchange may be over: the drain waits for the bytes themselves."""
    async with relay([]) as between:
        client = await slow_client(between, b"")
        count = await small_answers_until_some_is_held(between, client)
        ending = asyncio.ensure_future(drain_and_stop(between))
        await closed_to_new(between)
        client.read_on()
        assert await client.ended() == SMALL * count
        async with asyncio.timeout(PROMPT):
            assert await ending


@on_both_loops
async def test_a_drain_does_not_wait_longer_than_its_limit_for_a_client_that_takes_nothing() -> None:
    async with relay([request]) as between:
        await slow_client(between)
        await answered(between, [ANSWER])
        async with asyncio.timeout(PROMPT):
            assert not await between.proxy.drain(0, 0.1)
            await between.proxy.stop()
        await between.finished("client_left")


@HOWEVER_IT_CAME
@on_both_loops
async def test_a_client_that_never_takes_an_answer_is_ended_by_its_limit(pieces: list[bytes]) -> None:
    async with relay([request], client_write_timeout=0.2) as between:
        client = await slow_client(between)
        exchange = await answered(between, pieces)
        await between.finished("client_left", within=PROMPT)
        [(start, end)] = exchange.named("write_wait")
        assert end - start >= 0.2
        client.read_on()
        assert len(await client.ended(PROMPT)) < len(ANSWER)


@on_both_loops
async def test_a_client_that_never_takes_the_rest_of_a_small_answer_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its exchange may be over, and the connection be closing for having been idle."""
    monkeypatch.setattr(proxy, "SLOW_SWEEP_EVERY", 3)
    limits = {"client_write_timeout": 0.2, "idle_timeout": 0.1}
    async with relay([], **limits) as between:
        client = await slow_client(between, b"")
        count = await small_answers_until_some_is_held(between, client)
        async with asyncio.timeout(SWEPT):
            while between.proxy._clients:
                await asyncio.sleep(0.01)
        client.read_on()
        assert len(await client.ended(PROMPT)) < len(SMALL) * count


@HOWEVER_IT_CAME
@on_both_loops
async def test_the_next_request_does_not_wait_for_the_sweep(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "SWEEP_SECONDS", NEVER)
    async with relay([request]) as between:
        client = await slow_client(between)
        exchange = await answered(between, pieces)
        assert exchange.end is None
        client.read_on()
        assert downstream(await client.message()) == ANSWER
        await client.send(ASKS)
        [engine] = between.engine.connections
        await engine.message()
        await engine.send(OK)
        assert downstream(await client.message()) == OK
        await between.finished("clean", "clean")


async def by_fin(client: Wire) -> None:
    client.fin()


async def by_close(client: Wire) -> None:
    await client.close()


async def by_rst(client: Wire) -> None:
    await client.rst()


@HOWEVER_IT_CAME
@pytest.mark.parametrize("leave", [by_fin, by_close], ids=["FIN", "close"])
@on_both_loops
async def test_a_client_that_took_everything_and_closes_has_its_answer(
    leave: Callable[[Wire], Awaitable[None]], pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the close itself tells that the exchange is over."""
    monkeypatch.setattr(proxy, "SWEEP_SECONDS", NEVER)
    monkeypatch.setattr(relaying, "FIRST_LOOK", NEVER)
    monkeypatch.setattr(relaying, "LAST_LOOK", NEVER)
    async with relay([request]) as between:
        client = await slow_client(between)
        exchange = await answered(between, pieces)
        client.read_on()
        assert downstream(await client.message()) == ANSWER
        assert exchange.end is None
        await leave(client)
        await between.finished("clean", within=PROMPT)
        [(start, end)] = exchange.named("write_wait")
        assert start < end


@HOWEVER_IT_CAME
@pytest.mark.parametrize("leave", [by_fin, by_rst], ids=["FIN", "RST"])
@on_both_loops
async def test_a_client_that_drops_the_rest_has_left(
    leave: Callable[[Wire], Awaitable[None]], pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks between the reset and its being told finds an empty buffer: its bytes were dropped."""
    monkeypatch.setattr(relaying, "FIRST_LOOK", 0.0)
    monkeypatch.setattr(relaying, "LAST_LOOK", 0.0)
    async with relay([request]) as between:
        client = await slow_client(between)
        exchange = await answered(between, pieces)
        await leave(client)
        await between.finished("client_left", within=PROMPT)
        [(start, end)] = exchange.named("write_wait")
        assert start < end


@on_both_loops
async def test_an_answer_that_is_taken_at_once_has_no_write_wait() -> None:
    async with relay([request, send(ANSWER)]) as between:
        client = await between.client(ASKS)
        assert downstream(await client.message()) == ANSWER
        [exchange] = await between.finished("clean")
        assert exchange.named("write_wait") == []
