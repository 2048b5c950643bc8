"""Engine connections: what is kept, what is not, and the one retry."""

import asyncio

import pytest

from .harness import on_both_loops, relay
from .messages import downstream, own_error, upstream
from .wire import Script, close, fin, request, rst, send, wait

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
KEPT = 256 * 1024
"""Bytes of a request body that are kept for the retry."""


def posts(size: int) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + b"b" * size


async def later(_: object) -> None:
    """Step: a few milliseconds, as llama.cpp takes between its last chunk and its FIN."""
    await asyncio.sleep(0.003)


HABITS: dict[str, Script] = {
    "FIN with the last chunk": [request, send(STREAM + CHUNKS), fin],
    "FIN with the last chunk, the head before": [request, send(STREAM), send(CHUNKS), fin],
    "close with the last chunk": [request, send(STREAM + CHUNKS), close],
    "FIN a few milliseconds later": [request, send(STREAM + CHUNKS), later, fin],
    "close a few milliseconds later": [request, send(STREAM + CHUNKS), later, close],
    "RST a few milliseconds later": [request, send(STREAM + CHUNKS), later, rst],
}


@pytest.mark.parametrize("asks", [ASKS, posts(20)], ids=["GET", "POST"])
@pytest.mark.parametrize("script", HABITS.values(), ids=HABITS)
@on_both_loops
async def test_an_engine_that_says_keep_alive_and_ends_never_fails_a_request(
    script: Script, asks: bytes
) -> None:
    async with relay(script) as between:
        client = await between.client()
        for _ in range(50):
            await client.send(asks)
            assert (await client.message()).endswith(CHUNKS)
        await between.finished(*["clean"] * 50)


@pytest.mark.parametrize("script", HABITS.values(), ids=HABITS)
@on_both_loops
async def test_the_same_with_eight_clients_at_once(script: Script) -> None:
    async def asks(between) -> None:
        client = await between.client()
        for _ in range(15):
            await client.send(posts(20))
            assert (await client.message()).endswith(CHUNKS)

    async with relay(script) as between:
        await asyncio.gather(*(asks(between) for _ in range(8)))
        await between.finished(*["clean"] * 120)


@pytest.mark.parametrize("ending", [fin, close, rst], ids=["FIN", "close", "RST"])
@pytest.mark.parametrize(
    "asks",
    [ASKS, posts(0), posts(20), posts(KEPT)],
    ids=["GET", "POST of no bytes", "POST", "POST of 256 KiB"],
)
@on_both_loops
async def test_a_reused_connection_that_ends_without_a_byte_is_retried_once(asks: bytes, ending) -> None:
    async with relay([request, send(OK), request, ending], [request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await client.send(asks)
        assert downstream(await client.message()) == OK
        exchanges = await between.finished("clean", "clean")
        assert sum(between.proxy.retries.values()) == 1
        first, second = between.engine.connections
        assert upstream(first.messages[1]) == asks
        assert second.messages[0] == first.messages[1], "the retry is the same request to the last byte"
        assert exchanges[1].request_body == asks.partition(b"\r\n\r\n")[2]
        assert exchanges[1].named("connected")[-1][1] is False


NO_RETRY: dict[str, tuple[bytes, Script, bytes]] = {
    "one byte of an answer came": (posts(20), [request, send(b"H"), fin], b""),
    "an interim answer came": (
        posts(20),
        [request, send(b"HTTP/1.1 103 Hints\r\n\r\n"), fin],
        b"HTTP/1.1 103 Hints\r\n\r\n",
    ),
}


@pytest.mark.parametrize(("asks", "ends", "before"), NO_RETRY.values(), ids=NO_RETRY)
@on_both_loops
async def test_no_retry_once_a_byte_came(asks: bytes, ends: Script, before: bytes) -> None:
    async with relay([request, send(OK), *ends], [request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await client.send(asks)
        if before:
            assert await client.message() == before
        own_error(await client.message(), 502)
        assert sum(between.proxy.retries.values()) == 0
        assert len(between.engine.connections) == 1


@on_both_loops
async def test_no_retry_after_a_second() -> None:
    async def long(_: object) -> None:
        await asyncio.sleep(1.2)

    async with relay([request, send(OK), request, long, fin], [request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await client.send(posts(20))
        own_error(await client.message(), 502)
        assert len(between.engine.connections) == 1


@on_both_loops
async def test_a_fresh_connection_is_never_retried() -> None:
    async with relay([request, fin], [request, send(OK)]) as between:
        client = await between.client(posts(20))
        own_error(await client.message(), 502)
        assert len(between.engine.connections) == 1
        assert sum(between.proxy.retries.values()) == 0


@on_both_loops
async def test_a_retry_is_not_retried() -> None:
    async with relay([request, send(OK), request, fin], [request, fin], [request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await client.send(posts(20))
        own_error(await client.message(), 502)
        assert len(between.engine.connections) == 2
        assert sum(between.proxy.retries.values()) == 1


@on_both_loops
async def test_a_retry_that_cannot_connect_is_a_502() -> None:
    go = asyncio.Event()
    async with relay([request, send(OK), request, wait(go), fin]) as between:
        client = await between.client(ASKS)
        await client.message()
        await client.send(posts(20))
        engine = await between.engine.connected()
        await engine.until(lambda: len(engine.messages) == 2)
        await between.engine.refuse()
        go.set()
        own_error(await client.message(), 502)


FRESH = {
    "a body over 256 KiB": posts(KEPT + 1),
    "a body in chunks": b"POST /x HTTP/1.1\r\nHost: h\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("asks", FRESH.values(), ids=FRESH)
@on_both_loops
async def test_a_body_that_cannot_be_kept_takes_a_fresh_connection(asks: bytes) -> None:
    async with relay([request, send(OK)], [request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await client.send(asks)
        assert downstream(await client.message()) == OK
        exchanges = await between.finished("clean", "clean")
        assert exchanges[1].named("connected")[-1][1] is False
        assert upstream(between.engine.connections[1].messages[0]).endswith(asks.partition(b"\r\n\r\n")[2])


@on_both_loops
async def test_a_connection_that_is_reused_says_so() -> None:
    async with relay([request, send(OK)] * 1 + [request, send(OK)]) as between:
        for _ in range(2):
            client = await between.client(ASKS)
            await client.message()
            await client.close()
        exchanges = await between.finished("clean", "clean")
        assert [exchange.named("connected")[0][1] for exchange in exchanges] == [False, True]
        assert len(between.engine.connections) == 1


@on_both_loops
async def test_two_requests_at_once_take_two_connections() -> None:
    go = asyncio.Event()
    async with relay([request, wait(go), send(OK)]) as between:
        clients = [await between.client(ASKS) for _ in range(2)]
        await between.engine.connected(2)
        go.set()
        for client in clients:
            assert downstream(await client.message()) == OK


STRAYS = {"FIN": [fin], "RST": [rst], "an answer that nobody asked for": [send(OK.replace(b"ok", b"no"))]}


@pytest.mark.parametrize("stray", STRAYS.values(), ids=STRAYS)
@on_both_loops
async def test_a_connection_that_moved_while_idle_is_not_used(stray: Script) -> None:
    go = asyncio.Event()
    async with relay([request, send(OK), wait(go), *stray], [request, send(OK)]) as between:
        client = await between.client(ASKS)
        await client.message()
        await between.finished("clean")
        go.set()
        if stray[0] is not rst:
            await between.engine.connections[0].ended()
        await client.send(ASKS)
        assert downstream(await client.message()) == OK
        assert len(between.engine.connections) == 2
        assert sum(between.proxy.retries.values()) == 0 or stray[0] is rst


@on_both_loops
async def test_a_connection_idle_for_longer_than_the_limit_is_not_used() -> None:
    async with relay([request, send(OK)], [request, send(OK)], upstream_idle=0.2) as between:
        client = await between.client(ASKS)
        await client.message()
        await asyncio.sleep(0.4)
        await client.send(ASKS)
        assert downstream(await client.message()) == OK
        assert len(between.engine.connections) == 2
        await between.engine.connections[0].ended()
