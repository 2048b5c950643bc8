"""Ambiguous framing: nothing ambiguous passes, and nobody gets a second request through."""

import pytest

from .harness import on_both_loops, relay
from .messages import downstream, own_error
from .wire import request, send

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
B = b'{"stream":false}'
INNER = b"POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
H = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKS = b"10\r\n" + B + b"\r\n0\r\n\r\n"

MESSAGES = {
    "plain": (200, H + b"Content-Length: 16\r\n\r\n" + B),
    "chunked": (200, H + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS),
    "length and chunked": (
        400,
        H + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    ),
    "two different lengths": (400, H + b"Content-Length: 16\r\nContent-Length: 0\r\n\r\n" + B),
    "two equal lengths": (400, H + b"Content-Length: 16\r\nContent-Length: 16\r\n\r\n" + B),
    "a length with a sign": (400, H + b"Content-Length: +16\r\n\r\n" + B),
    "a list of lengths": (400, H + b"Content-Length: 16, 16\r\n\r\n" + B),
    "an unknown coding and a length": (
        400,
        H + b"Transfer-Encoding: xchunked\r\nContent-Length: 16\r\n\r\n" + B,
    ),
    "chunked, then identity": (400, H + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKS),
    "a space before the colon": (400, H + b"Content-Length : 16\r\n\r\n" + B),
    "bare LF as the end of a line": (
        400,
        H.replace(b"\r\n", b"\n") + b"Content-Length: 16\n\n" + B,
    ),
    "a bare CR in a value": (400, H + b"X-A: a\rContent-Length: 0\r\nContent-Length: 16\r\n\r\n" + B),
    "a folded field": (400, H + b"X-A: a\r\n b\r\nContent-Length: 16\r\n\r\n" + B),
    "NUL in a value": (400, H + b"X-A: a\0b\r\nContent-Length: 16\r\n\r\n" + B),
    "a chunk size with a sign": (
        400,
        H + b"Transfer-Encoding: chunked\r\n\r\n+10\r\n" + B + b"\r\n0\r\n\r\n",
    ),
    "a chunk ended by LF": (400, H + b"Transfer-Encoding: chunked\r\n\r\n10\n" + B + b"\n0\n\n"),
    "no Host": (400, b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 16\r\n\r\n" + B),
    "two Hosts": (400, H + b"Host: y\r\nContent-Length: 16\r\n\r\n" + B),
    "a tab in the target": (400, b"POST /a\tb HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n" + B),
    "Upgrade: h2c": (200, H + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 16\r\n\r\n" + B),
}


@pytest.mark.parametrize(("status", "sent"), MESSAGES.values(), ids=MESSAGES)
@on_both_loops
async def test_in_one_piece(status: int, sent: bytes) -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(sent)
        message = await client.message()
        await check(between, client, message, status)


@pytest.mark.parametrize(("status", "sent"), MESSAGES.values(), ids=MESSAGES)
@on_both_loops
async def test_byte_by_byte(status: int, sent: bytes) -> None:
    """The engine may see the head of a request whose body is bad; never a whole request."""
    async with relay([request, send(OK)]) as between:
        client = await between.client()
        try:
            for at in range(len(sent)):
                await client.send(sent[at : at + 1])
        except ConnectionError:
            pass
        message = await client.message()
        await check(between, client, message, status)


async def check(between, client, message: bytes, status: int) -> None:
    smuggled = [head for head in between.engine.heads if b"/smuggled" in head]
    assert smuggled == []
    whole = [message for conn in between.engine.connections for message in conn.messages]
    if status == 200:
        assert downstream(message) == OK
        assert len(whole) == 1
        return
    own_error(message, status)
    await client.ended()
    assert bytes(client.received) == message
    assert whole == []
    for conn in between.engine.connections:
        await conn.ended()
    between.engine.failures.clear()
    assert sum(between.proxy.rejected.values()) == 1


ANSWERS = {
    "length and chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "two different lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
    "a bare CR in a value": b"HTTP/1.1 200 OK\r\nX-A: a\rX-B: b\r\nContent-Length: 2\r\n\r\nok",
    "NUL in a value": b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 2\r\n\r\nok",
    "no HTTP": b"220 mail.example ESMTP\r\n",
    "an unknown version": b"HTTP/3.7 200 OK\r\nContent-Length: 2\r\n\r\nok",
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
@on_both_loops
async def test_an_ambiguous_answer_is_a_502(said: bytes) -> None:
    async with relay([request, send(said)]) as between:
        client = await between.client(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
        own_error(await client.message(), 502)
        await between.engine.connections[0].ended()
        [exchange] = between.exchanges
        await exchange.until(lambda: exchange.end)
        assert exchange.end not in ("clean", "client_left")
        assert exchange.status == 502
