"""Draining: nobody new, idle connections close, what runs ends in peace, within a limit."""

import asyncio

import pytest

from .harness import on_both_loops, relay
from .messages import dechunked, downstream, field
from .wire import PROMPT, body, head, request, send, wait

ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SSE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def refused(between) -> bool:
    try:
        client = await between.client()
    except ConnectionError:
        return True
    try:
        await client.ended(0.05)
    except AssertionError:
        await client.close()
        return False
    return client.received == b""


@on_both_loops
async def test_with_nothing_running_it_ends_at_once() -> None:
    async with relay([request, send(OK)]) as between:
        async with asyncio.timeout(PROMPT):
            await between.proxy.drain(0, 30)
        assert await refused(between)


@on_both_loops
async def test_idle_connections_close_and_nobody_new_is_taken() -> None:
    async with relay([request, send(OK)]) as between:
        used = await between.client(ASKS)
        await used.message()
        fresh = await between.client()
        await between.settled()
        async with asyncio.timeout(PROMPT):
            await between.proxy.drain(0, 30)
        await used.ended(PROMPT)
        await fresh.ended(PROMPT)
        assert (used.end, fresh.end) == ("eof", "eof")
        assert await refused(between)


@on_both_loops
async def test_a_stream_that_runs_ends_whole_and_then_its_connection_closes() -> None:
    go = asyncio.Event()
    steps = [request, send(SSE + b"3\r\none\r\n"), wait(go), send(b"3\r\ntwo\r\n0\r\n\r\n")]
    async with relay(steps) as between:
        client = await between.client(ASKS)
        await client.has(b"one")
        draining = asyncio.ensure_future(between.proxy.drain(0, 30))
        await closed_to_new(between)
        assert not draining.done()
        go.set()
        message = await client.ended()
        assert dechunked(message.partition(b"\r\n\r\n")[2])[0] == b"onetwo"
        assert client.end == "eof"
        async with asyncio.timeout(PROMPT):
            await draining
        await between.finished("clean")


@on_both_loops
async def test_an_answer_that_begins_while_draining_says_close() -> None:
    go = asyncio.Event()
    async with relay([request, wait(go), send(OK)]) as between:
        client = await between.client(ASKS)
        engine = await between.engine.connected()
        await engine.until(lambda: engine.messages)
        draining = asyncio.ensure_future(between.proxy.drain(0, 30))
        await closed_to_new(between)
        go.set()
        message = await client.ended()
        assert field(message, b"connection") == [b"close"]
        assert downstream(message) == OK
        async with asyncio.timeout(PROMPT):
            await draining


@on_both_loops
async def test_an_upload_that_runs_ends_whole() -> None:
    asks = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 20\r\n\r\n0123456789"
    async with relay([head, body(20), send(OK)]) as between:
        client = await between.client(asks)
        await (await between.engine.connected()).has(b"0123456789")
        draining = asyncio.ensure_future(between.proxy.drain(0, 30))
        await closed_to_new(between)
        await client.send(b"9876543210")
        assert downstream(await client.ended()) == OK
        assert between.engine.connections[0].received.endswith(b"01234567899876543210")
        async with asyncio.timeout(PROMPT):
            await draining
        await between.finished("clean")


@on_both_loops
async def test_a_connection_that_comes_as_draining_begins_is_not_left_open() -> None:
    async with relay([request, send(OK)]) as between:
        draining = asyncio.ensure_future(between.proxy.drain(0, 30))
        try:
            client = await between.client()
        except ConnectionError:
            client = None
        async with asyncio.timeout(PROMPT):
            await draining
        if client:
            await client.ended(PROMPT)


async def closed_to_new(between) -> None:
    """Waits until the listener has gone."""
    for _ in range(10):  # a connection that comes in the very turn has a test of its own
        await asyncio.sleep(0)
    async with asyncio.timeout(PROMPT):
        while not await refused(between):
            await asyncio.sleep(0.005)


@on_both_loops
async def test_what_still_runs_at_the_limit_is_aborted() -> None:
    async with relay([request, send(SSE + b"3\r\none\r\n")]) as between:
        client = await between.client(ASKS)
        await client.has(b"one")
        async with asyncio.timeout(PROMPT):
            await between.proxy.drain(0, 0.2)
            await between.proxy.stop()
        await between.engine.connections[0].ended(PROMPT)
        await client.ended(PROMPT)
        assert not client.received.endswith(b"0\r\n\r\n")
        await between.settled(PROMPT)


@on_both_loops
async def test_during_the_grace_delay_all_goes_on() -> None:
    async with relay([request, send(OK), request, send(OK)]) as between:
        kept = await between.client(ASKS)
        await kept.message()
        draining = asyncio.ensure_future(between.proxy.drain(0.5, 30))
        await asyncio.sleep(0)
        new = await between.client(ASKS)
        assert downstream(await new.message()) == OK
        assert not draining.done()
        async with asyncio.timeout(PROMPT):
            await draining
        await kept.ended(PROMPT)
        await new.ended(PROMPT)
        assert await refused(between)


@pytest.mark.parametrize("times", [1, 3])
@on_both_loops
async def test_stop_may_follow_and_repeat(times: int) -> None:
    async with relay([request, send(SSE + b"3\r\none\r\n")], settles=False) as between:
        client = await between.client(ASKS)
        await client.has(b"one")
        for _ in range(times):
            await between.proxy.stop()
        await client.ended(PROMPT)
        assert not client.received.endswith(b"0\r\n\r\n")
        await between.engine.connections[0].ended(PROMPT)
        await between.settled(PROMPT)
