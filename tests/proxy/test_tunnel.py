"""WebSocket: after the engine's 101 the two connections are one pipe."""

import asyncio

import pytest

from .harness import on_both_loops, relay
from .messages import downstream, field, own_error, upstream
from .test_backpressure import HELD, STUCK, TOTAL, held_between, push_until_stuck
from .wire import PROMPT, fin, head, pattern, request, rst, send, wait

ASKS = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: h\r\n"
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: abc\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: def\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def check_switch(message: bytes) -> None:
    assert message.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert [value.lower() for value in field(message, b"upgrade")] == [b"websocket"]
    assert [value.lower() for value in field(message, b"connection")] == [b"upgrade"]
    assert field(message, b"sec-websocket-accept") == [b"def"]


@on_both_loops
async def test_bytes_pass_both_ways_unchanged() -> None:
    async with relay([head, send(SWITCH)]) as between:
        client = await between.client(ASKS)
        check_switch(await client.head())
        engine = await between.engine.connected()
        sent = engine.heads[0]
        assert [value.lower() for value in field(sent, b"upgrade")] == [b"websocket"]
        assert [value.lower() for value in field(sent, b"connection")] == [b"upgrade"]
        assert field(sent, b"sec-websocket-key") == [b"abc"]
        assert field(sent, b"sec-websocket-version") == [b"13"]
        assert sent.startswith(b"GET /v1/realtime?model=m HTTP/1.1\r\n")
        for data in (b"\x81\x05hello", b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff\r\n0\r\n\r\n"):
            await client.send(data)
            assert await engine.take(len(data)) == data
            await engine.send(data[::-1])
            assert await client.take(len(data)) == data[::-1]
        assert engine.position == len(engine.received)
        assert client.position == len(client.received)
        await engine.close()
        await client.ended(PROMPT)
        await between.settled()


@on_both_loops
async def test_bytes_in_the_same_piece_as_the_101_pass() -> None:
    async with relay([head, send(SWITCH + b"\x81\x02hi")]) as between:
        client = await between.client(ASKS)
        check_switch(await client.head())
        assert await client.take(4) == b"\x81\x02hi"
        await client.close()
        await (await between.engine.connected()).ended(PROMPT)


@on_both_loops
async def test_bytes_that_the_client_sends_before_the_101_pass_after_it() -> None:
    go = asyncio.Event()
    async with relay([head, wait(go), send(SWITCH)]) as between:
        client = await between.client(ASKS + b"early")
        engine = await between.engine.connected()
        await engine.until(lambda: engine.heads)
        go.set()
        check_switch(await client.head())
        assert await engine.take(5) == b"early"
        await client.close()
        await engine.ended(PROMPT)


@pytest.mark.parametrize("ending", [fin, rst], ids=["FIN", "RST"])
@on_both_loops
async def test_the_engine_ends_and_the_client_gets_what_came_before(ending) -> None:
    go = asyncio.Event()
    async with relay([head, send(SWITCH), wait(go), send(b"last words"), ending]) as between:
        client = await between.client(ASKS)
        check_switch(await client.head())
        go.set()
        await client.ended(PROMPT)
        if ending is fin:
            assert client.received[client.position :] == b"last words"
        await between.settled()


@pytest.mark.parametrize("leave", ["fin", "close", "rst"])
@on_both_loops
async def test_the_client_ends_and_the_engine_sees_it(leave: str) -> None:
    async with relay([head, send(SWITCH)]) as between:
        client = await between.client(ASKS)
        check_switch(await client.head())
        if leave == "fin":
            client.fin()
        else:
            await getattr(client, leave)()
        await (await between.engine.connected()).ended(PROMPT)
        await between.settled()


@on_both_loops
async def test_a_client_that_reads_nothing_pauses_the_engine() -> None:
    content = pattern(TOTAL)
    async with relay([head, send(SWITCH)], buffers=65536) as between:
        client = await between.client(ASKS, buffers=16384)
        await client.head()
        client.stop_reading()
        engine = await between.engine.connected()
        sent = await push_until_stuck(engine, client, content)
        assert sent < STUCK
        assert held_between(between, engine, client, sent) <= HELD
        client.read_on()
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().sock_sendall(engine.sock, content[sent:])
        await client.until(lambda: client.count == client.position + len(content), 20)
        assert client.received[client.position :] == content
        await client.close()
        await engine.ended(PROMPT)


@on_both_loops
async def test_an_engine_that_reads_nothing_pauses_the_client() -> None:
    content = pattern(TOTAL)
    async with relay([head, send(SWITCH)], buffers=65536) as between:
        client = await between.client(ASKS, buffers=65536)
        await client.head()
        engine = await between.engine.connected()
        engine.stop_reading()
        sent = await push_until_stuck(client, engine, content)
        assert sent < STUCK
        assert held_between(between, client, engine, sent) <= HELD
        engine.read_on()
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().sock_sendall(client.sock, content[sent:])
        await engine.until(lambda: engine.count == engine.position + len(content), 20)
        assert engine.received[engine.position :] == content
        await client.close()
        await engine.ended(PROMPT)


REFUSALS = {
    "426": b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno",
    "200": OK,
    "403 in chunks": b"HTTP/1.1 403 Forbidden\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("said", REFUSALS.values(), ids=REFUSALS)
@on_both_loops
async def test_an_engine_that_does_not_switch_answers_as_ever(said: bytes) -> None:
    async with relay([head, send(said)]) as between:
        client = await between.client(ASKS)
        assert downstream(await client.message()) == said
        await between.finished("clean")


@pytest.mark.parametrize(
    "asks",
    [
        b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n\r\n",
    ],
    ids=["no upgrade asked", "h2c asked", "not named in Connection"],
)
@on_both_loops
async def test_a_101_that_was_not_asked_for_is_a_502(asks: bytes) -> None:
    async with relay([head, send(SWITCH)]) as between:
        client = await between.client(asks)
        own_error(await client.message(), 502)
        await between.engine.connections[0].ended(PROMPT)
        assert field(between.engine.heads[0], b"upgrade") == []


@on_both_loops
async def test_an_upgrade_of_an_old_client_is_removed() -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(ASKS.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await client.ended()).endswith(b"ok")
        assert b"pgrade" not in upstream(between.engine.connections[0].messages[0])


@on_both_loops
async def test_a_tunnel_counts_as_one_exchange() -> None:
    async with relay([head, send(SWITCH)]) as between:
        client = await between.client(ASKS)
        check_switch(await client.head())
        assert len(between.proxy.open) == 1
        await (await between.engine.connected()).close()
        await client.ended(PROMPT)
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.status == 101
