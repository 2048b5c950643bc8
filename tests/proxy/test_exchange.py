"""The table of whole exchanges: every kind of request against every kind of answer, exact on both wires."""

from typing import NamedTuple

import pytest

from .harness import on_both_loops, relay
from .messages import downstream, field, upstream, without
from .wire import Step, fin, request, send


class Request(NamedTuple):
    sent: bytes
    upstream: bytes

    @property
    def method(self) -> bytes:
        return self.sent.split(b" ")[0]

    @property
    def old(self) -> bool:
        return b" HTTP/1.0\r\n" in self.sent


REQUESTS = {
    "GET without a body": Request(
        b"GET /v1/models?a=%20b&c HTTP/1.1\r\nHost: Name:80\r\nX-A: 1\r\n\r\n",
        b"GET /v1/models?a=%20b&c HTTP/1.1\r\nHost: Name:80\r\nX-A: 1\r\n\r\n",
    ),
    "HEAD": Request(b"HEAD /health HTTP/1.1\r\nHost: h\r\n\r\n", b"HEAD /health HTTP/1.1\r\nHost: h\r\n\r\n"),
    "OPTIONS of everything": Request(
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"
    ),
    "DELETE without a body": Request(
        b"DELETE /v1/files/1 HTTP/1.1\r\nHost: h\r\n\r\n", b"DELETE /v1/files/1 HTTP/1.1\r\nHost: h\r\n\r\n"
    ),
    "DELETE with a body": Request(
        b"DELETE /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
        b"DELETE /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
    ),
    "GET with a body": Request(
        b"GET /x HTTP/1.1\r\nHost: h\r\ncontent-length: 3\r\n\r\nabc",
        b"GET /x HTTP/1.1\r\nHost: h\r\ncontent-length: 3\r\n\r\nabc",
    ),
    "POST without a body": Request(
        b"POST /sleep HTTP/1.1\r\nHost: h\r\n\r\n", b"POST /sleep HTTP/1.1\r\nHost: h\r\n\r\n"
    ),
    "POST of no bytes": Request(
        b"POST /sleep HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        b"POST /sleep HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    ),
    "POST with a length": Request(
        b'POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-LENGTH: 11\r\nX-B: 2\r\n\r\n{"model":1}',
        b'POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-LENGTH: 11\r\nX-B: 2\r\n\r\n{"model":1}',
    ),
    "POST in chunks": Request(
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\ntransfer-encoding: chunked\r\n\r\nd\r\nabc0123456789\r\n0\r\n\r\n",
    ),
    "POST in no chunk": Request(
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "PUT with a length": Request(
        b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n\x00\xff\r\n",
        b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n\x00\xff\r\n",
    ),
    "PATCH with a length": Request(
        b"PATCH /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1",
        b"PATCH /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1",
    ),
    "GET of HTTP/1.0": Request(b"GET /x HTTP/1.0\r\nHost: h\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"),
    "HEAD of HTTP/1.0": Request(
        b"HEAD /x HTTP/1.0\r\nHost: h\r\n\r\n", b"HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n"
    ),
    "POST of HTTP/1.0": Request(
        b"POST /x HTTP/1.0\r\nHost: h\r\nContent-Length: 2\r\n\r\nok",
        b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok",
    ),
}


class Answer(NamedTuple):
    """What the engine says, and what an HTTP/1.1 and an HTTP/1.0 client get."""

    head: bytes
    body: bytes
    to_new: bytes
    to_old: bytes
    status: int = 200
    fin: bool = False
    reused: bool = True
    interim: bytes = b""
    interim_to_new: bytes = b""


def same(head: bytes, body: bytes, status: int = 200, **more: object) -> Answer:
    """An answer that both kinds of client get as it is."""
    return Answer(head, body, head + body, head + body, status, **more)


HELLO = b"5\r\nhello\r\n0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"

ANSWERS = {
    "200 with a length": same(
        b"HTTP/1.1 200 OK\r\nDate: today\r\nServer: uvicorn\r\nContent-Length: 5\r\n\r\n", b"hello"
    ),
    "200 of no bytes": same(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "200 in chunks": Answer(
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        HELLO,
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n" + CHUNKED + HELLO,
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nhello",
    ),
    "200 in no chunk": Answer(
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n" + CHUNKED + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\n",
    ),
    "200 in chunks with trailers": Answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2\r\nhe\r\n3;a=b\r\nllo\r\n0\r\nX-T: 1\r\nx-t: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"5\r\nhello\r\n0\r\nX-T: 1\r\nx-t: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
    ),
    "200 in chunks, FIN after the last": Answer(
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
        HELLO,
        b"HTTP/1.1 200 OK\r\n" + CHUNKED + HELLO,
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        fin=True,
    ),
    "200 until the end": Answer(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",
        b"hello",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + CHUNKED + HELLO,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello",
        fin=True,
    ),
    "200 until the end, of no bytes": Answer(
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + CHUNKED + b"0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        fin=True,
    ),
    "200 of an HTTP/1.0 engine until the end": Answer(
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"hello",
        b"HTTP/1.1 200 OK\r\n" + CHUNKED + HELLO,
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        fin=True,
    ),
    "200 of an HTTP/1.0 engine with a length": Answer(
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"hello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        reused=False,
    ),
    "200 and close": Answer(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n",
        b"hello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        reused=False,
    ),
    "200 with fields for this hop": Answer(
        b"HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
        b"X-End: 1\r\nProxy-Connection: keep-alive\r\nContent-Length: 5\r\n\r\n",
        b"hello",
        b"HTTP/1.1 200 OK\r\nX-End: 1\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX-End: 1\r\nContent-Length: 5\r\n\r\nhello",
    ),
    "200 with odd fields": same(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nx-CASE: caf\xe9 \xff\r\nset-cookie: b\r\nX-Empty: \r\n"
        b"Set-Cookie: a\r\ncontent-LENGTH: 5\r\nVia: 1.1 x\r\n\r\n",
        b"hello",
    ),
    "204": same(b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", b"", 204),
    "304 with the length of what it stands for": same(
        b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 5\r\n\r\n', b"", 304
    ),
    "404": same(b"HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\n", b'{"error":"x"}', 404),
    "429": same(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n", b"{}", 429),
    "500 in chunks": Answer(
        b"HTTP/1.1 500 Internal Server Error\r\nTransfer-Encoding: chunked\r\n\r\n",
        HELLO,
        b"HTTP/1.1 500 Internal Server Error\r\n" + CHUNKED + HELLO,
        b"HTTP/1.1 500 Internal Server Error\r\n\r\nhello",
        500,
    ),
    "503": same(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\n", b"busy", 503),
    "an unknown status with an odd reason": same(
        b"HTTP/1.1 299 All's  fine, caf\xe9\r\nContent-Length: 5\r\n\r\n", b"hello", 299
    ),
    "no reason": same(b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\n", b"hello"),
    "100 before the answer": Answer(
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"hello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        interim=b"HTTP/1.1 100 Continue\r\n\r\n",
        interim_to_new=b"HTTP/1.1 100 Continue\r\n\r\n",
    ),
    "102 and 103 before the answer": Answer(
        b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n",
        HELLO,
        b"HTTP/1.1 201 Made\r\n" + CHUNKED + HELLO,
        b"HTTP/1.1 201 Made\r\n\r\nhello",
        201,
        interim=b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: b\r\n\r\n",
        interim_to_new=b"HTTP/1.1 102 Processing\r\n\r\n"
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: b\r\n\r\n",
    ),
}

SECOND = b"GET /second HTTP/1.1\r\nHost: h\r\n\r\n"
SECOND_ANSWER = b"HTTP/1.1 200 Second\r\nContent-Length: 3\r\n\r\n2nd"


def script(answer: Answer, said: bytes, old: bool) -> list[Step]:
    """An engine that answers once and ends, once and waits, or twice."""
    if answer.fin:
        return [request, send(said), fin]
    if not answer.reused or old:
        return [request, send(said)]
    return [request, send(said), request, send(SECOND_ANSWER)]


def expected_for_head(answer: bytes) -> bytes:
    return without(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", b"transfer-encoding")


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@on_both_loops
async def test_both_wires_carry_the_exact_bytes(asked: Request, answer: Answer) -> None:
    bodiless = asked.method == b"HEAD"
    said = answer.interim + answer.head + (b"" if bodiless else answer.body)
    expected = answer.to_old if asked.old else answer.to_new
    if bodiless:
        expected = expected_for_head(expected)
    async with relay(script(answer, said, asked.old), [request, send(SECOND_ANSWER)]) as between:
        client = await between.client(asked.sent)
        if asked.old:
            got = await client.ended()
            assert client.end == "eof"
            first = downstream(got, version=b"HTTP/1.1")
            assert without(first, b"transfer-encoding" if bodiless else b"") == expected
            await between.finished("clean")
        else:
            interim, first = await responses(client, bodiless)
            assert interim == answer.interim_to_new
            assert without(downstream(first), b"transfer-encoding" if bodiless else b"") == expected
            await client.send(SECOND)
            assert downstream(await client.message()) == SECOND_ANSWER
            await between.finished("clean", "clean")
            assert bytes(client.received) == interim + first + client.messages[-1]
            check_reuse(between.engine.connections, answer.reused and not answer.fin)
        assert upstream(between.engine.connections[0].messages[0]) == asked.upstream
        exchange = between.exchanges[0]
        assert exchange.status == answer.status
        assert exchange.request_body == body_of(asked.upstream)
        assert exchange.response_body == (b"" if bodiless else answer.to_old.partition(b"\r\n\r\n")[2])
        assert exchange.start.method.encode() == asked.method


async def responses(client: object, bodiless: bool) -> tuple[bytes, bytes]:
    """(the 1xx responses, the final one) that come to a client."""
    interim = b""
    while True:
        message = await client.message(bodiless=bodiless)
        if not message.startswith(b"HTTP/1.1 1"):
            return interim, message
        interim += message


def body_of(message: bytes) -> bytes:
    """The body of a canonical request."""
    head, _, rest = message.partition(b"\r\n\r\n")
    if field(head + b"\r\n\r\n", b"transfer-encoding"):
        return b"" if rest.startswith(b"0\r\n") else rest.split(b"\r\n")[1]
    return rest


def check_reuse(connections: list, reused: bool) -> None:
    """One engine connection served both requests, or each had its own; nothing else was sent on them."""
    assert len(connections) == (1 if reused else 2)
    for connection in connections:
        assert bytes(connection.received) == b"".join(connection.messages)
    assert upstream(connections[-1].messages[-1]) == SECOND
