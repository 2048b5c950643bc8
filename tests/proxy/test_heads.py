"""What of a head passes, what ends here, what is added, and what is refused."""

import re

import pytest

from sidecar.proxy.heads import RequestHead, read_request, request_head
from sidecar.proxy.proxy import TracePolicy

from .harness import on_both_loops, relay
from .messages import TRACEPARENT, downstream, field, own_error, upstream
from .wire import Wire, all_read, request, send

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\n"

PASSES = {
    "pairs in order, case, duplicates": (
        b"GET /x HTTP/1.1\r\nX-b: 2\r\nHOST: h\r\nx-A: 1\r\nX-b: 1\r\nCookie: a\r\ncookie: b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nX-b: 2\r\nHOST: h\r\nx-A: 1\r\nX-b: 1\r\nCookie: a\r\ncookie: b\r\n\r\n",
    ),
    "bytes over 127 and an empty value": (
        ASKS + b"X-A: caf\xe9 \xf0\x9f\x98\x80\r\nX-E: \r\n\r\n",
        ASKS + b"X-A: caf\xe9 \xf0\x9f\x98\x80\r\nX-E: \r\n\r\n",
    ),
    "target byte for byte": (
        b"GET //a/../b%2f%zz;p?q=%00&[]|\"'`{}^\\&x=http://e/?# HTTP/1.1\r\nHost: h\r\n\r\n".replace(
            b"#", b""
        ),
        b"GET //a/../b%2f%zz;p?q=%00&[]|\"'`{}^\\&x=http://e/?# HTTP/1.1\r\nHost: h\r\n\r\n".replace(
            b"#", b""
        ),
    ),
    "encodings that the client takes, its key, its agent": (
        ASKS + b"Accept-Encoding: gzip, br\r\nAuthorization: Bearer k\r\nUser-Agent: x\r\n\r\n",
        ASKS + b"Accept-Encoding: gzip, br\r\nAuthorization: Bearer k\r\nUser-Agent: x\r\n\r\n",
    ),
    "forwarding fields as they came, none added": (
        ASKS + b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\nVia: 1.1 a\r\n\r\n",
        ASKS + b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=x\r\nVia: 1.1 a\r\n\r\n",
    ),
    "fields of this hop end here": (
        b"GET /x HTTP/1.1\r\nConnection: X-Hop, keep-alive\r\nHost: h\r\nx-hop: 1\r\n"
        b"Keep-Alive: timeout=9\r\nTE: trailers\r\nProxy-Connection: keep-alive\r\nX-End: 1\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: h\r\nX-End: 1\r\n\r\n",
    ),
    "a second Connection field counts too": (
        b"GET /x HTTP/1.1\r\nConnection: X-a\r\nHost: h\r\nX-A: 1\r\nX-B: 2\r\nConnection: x-B ,x-c\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n",
    ),
    "absolute-form is sent on in origin-form": (
        b"GET http://other:99/a/b?c=%20 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /a/b?c=%20 HTTP/1.1\r\nHost: h\r\n\r\n",
    ),
    "absolute-form without a path": (
        b"GET http://other HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    ),
    "absolute-form with a query only": (
        b"GET http://other?a=b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /?a=b HTTP/1.1\r\nHost: h\r\n\r\n",
    ),
    "Upgrade: h2c is removed and the request goes on": (
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AA\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n",
    ),
    "Upgrade without Connection ends here": (
        ASKS + b"Upgrade: websocket\r\n\r\n",
        ASKS + b"\r\n",
    ),
    "an unknown method": (b"REPORT /x HTTP/1.1\r\nHost: h\r\n\r\n", b"REPORT /x HTTP/1.1\r\nHost: h\r\n\r\n"),
    "an empty Host": (b"GET /x HTTP/1.1\r\nHost: \r\n\r\n", b"GET /x HTTP/1.1\r\nHost: \r\n\r\n"),
}


@pytest.mark.parametrize(("sent", "expected"), PASSES.values(), ids=PASSES)
@on_both_loops
async def test_a_request_head_passes(sent: bytes, expected: bytes) -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(sent)
        assert downstream(await client.message()) == OK
        assert upstream(between.engine.connections[0].messages[0]) == expected
        await between.finished("clean")


@on_both_loops
async def test_upgrade_h2c_with_a_body_goes_on_with_its_body() -> None:
    sent = b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 16\r\n\r\n"
    async with relay([request, send(OK)]) as between:
        client = await between.client(sent + b'{"stream":false}')
        assert downstream(await client.message()) == OK
        assert upstream(between.engine.connections[0].messages[0]) == (
            b'POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\n\r\n{"stream":false}'
        )


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"


def gets(target: bytes, extra: bytes = b"") -> bytes:
    return b"GET %b HTTP/1.1\r\nHost: h\r\n%b\r\n" % (target, extra)


async def tell_target(conn: Wire) -> None:
    """Step: answer with the target that was asked for."""
    target = conn.messages[-1].split(b" ")[1]
    await conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))


OFFERS_BEFORE: dict[str, bytes] = {
    "Upgrade last": gets(b"/a", OFFER),
    "Upgrade first": b"GET /a HTTP/1.1\r\nUpgrade: h2c\r\nHost: h\r\nConnection: Upgrade\r\n\r\n",
    "in other letters, without a space": gets(b"/a", OFFER.replace(b"Upgrade: h2c", b"uPGRADE:h2c")),
    "with a body": b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n" + OFFER + b"\r\nabc",
}


@pytest.mark.parametrize("offers", OFFERS_BEFORE.values(), ids=OFFERS_BEFORE)
@on_both_loops
async def test_a_request_in_the_same_read_behind_an_offer_of_h2c_is_answered_too(offers: bytes) -> None:
    async with relay([request, tell_target] * 3) as between:
        client = await between.client(offers + gets(b"/b"))
        assert (await client.message()).endswith(b"\r\n\r\n/a")
        assert (await client.message()).endswith(b"\r\n\r\n/b")
        await client.send(gets(b"/c"))
        assert (await client.message()).endswith(b"\r\n\r\n/c")


OTHER_OFFERS: dict[str, list[bytes]] = {
    "behind another request": [gets(b"/a") + gets(b"/b", OFFER) + gets(b"/c")],
    "twice": [gets(b"/a", OFFER) + gets(b"/b", OFFER) + gets(b"/c")],
    "in two reads": [gets(b"/a", OFFER)[:70], gets(b"/a", OFFER)[70:] + gets(b"/b")],
    "in capitals": [gets(b"/a", OFFER.replace(b"h2c", b"H2C")) + gets(b"/b")],
    "of several protocols": [gets(b"/a", OFFER.replace(b"h2c", b"h2c, foo")) + gets(b"/b")],
    "of another protocol": [gets(b"/a", OFFER.replace(b"h2c", b"TLS/1.0")) + gets(b"/b")],
}


@pytest.mark.parametrize("reads", OTHER_OFFERS.values(), ids=OTHER_OFFERS)
@on_both_loops
async def test_behind_any_other_offer_a_request_is_answered_or_its_connection_ends(
    reads: list[bytes],
) -> None:
    async with relay([request, tell_target] * 4) as between:
        client = await between.client()
        for data in reads:
            await client.send(data)
            await all_read(client)
        try:
            await client.send(gets(b"/z"))
            await client.until(lambda: client.end or client.received.endswith(b"/z"))
        except ConnectionError:
            await client.ended()
        asked = [target for target in (b"/a", b"/b", b"/c", b"/z") if target in b"".join(reads) + b"/z"]
        got = answers(client)
        assert got == asked[: len(got)], "no answer is of another request than the one in its place"
        assert got
        assert client.end or got == asked
        between.engine.failures.clear()


def answers(client: Wire) -> list[bytes]:
    return re.findall(rb"\r\n\r\n(/.)", client.received)


LIKE_AN_OFFER = b"a\r\nUpgrade: h2c\r\n\r\nb"


@pytest.mark.parametrize("back", range(6))
@on_both_loops
async def test_a_body_that_looks_like_an_offer_passes_wherever_its_head_is_cut(back: int) -> None:
    sent = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(LIKE_AN_OFFER) + LIKE_AN_OFFER
    cut = len(sent) - len(LIKE_AN_OFFER) - back
    async with relay([request, send(OK)]) as between:
        client = await between.client(sent[:cut])
        await all_read(client)
        await client.send(sent[cut:])
        assert downstream(await client.message()) == OK
        assert upstream(between.engine.connections[0].messages[0]) == sent


@on_both_loops
async def test_request_trailers_end_here_and_do_not_reach_the_next_request() -> None:
    sent = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-T: 1\r\n\r\n"
    async with relay([request, send(OK), request, send(OK)]) as between:
        client = await between.client(sent)
        assert downstream(await client.message()) == OK
        assert upstream(between.engine.connections[0].messages[0]) == (
            b"POST /x HTTP/1.1\r\nHost: h\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
        )
        await client.send(ASKS + b"\r\n")
        await client.until(lambda: len(between.engine.heads) == 2 or client.end)
        if client.end is None:
            assert downstream(await client.message()) == OK
            assert upstream(between.engine.connections[0].messages[1]) == ASKS + b"\r\n"
        else:
            between.engine.failures.clear()


GIVEN = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

TRACES = {
    "none: a new one": (b"", None),
    "a good one: its trace goes on in a new span": (b"traceparent: " + GIVEN + b"\r\n", GIVEN),
    "a broken one: a new one": (b"traceparent: 00-xyz\r\n", None),
    "an all-zero one: a new one": (b"traceparent: 00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01\r\n", None),
}


@pytest.mark.parametrize(("line", "given"), TRACES.values(), ids=TRACES)
@on_both_loops
async def test_traceparent(line: bytes, given: bytes | None) -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(ASKS + line + b"\r\n")
        await client.message()
        [sent] = field(between.engine.heads[0], b"traceparent")
        assert TRACEPARENT.fullmatch(sent)
        assert sent != given
        if given:
            assert sent[:36] == given[:36]
            assert sent[-2:] == given[-2:]
        else:
            assert GIVEN[:36] not in sent


@pytest.mark.parametrize("line", [line for line, _ in TRACES.values()], ids=TRACES)
@on_both_loops
async def test_without_tracing_the_callers_context_passes_as_it_is(line: bytes) -> None:
    async with relay([request, send(OK)], tracing=TracePolicy(takes_part=False)) as between:
        client = await between.client(ASKS + line + b"\r\n")
        await client.message()
        assert line in between.engine.heads[0]
        assert between.engine.heads[0].lower().count(b"traceparent") == line.count(b"traceparent")


@on_both_loops
async def test_tracestate_is_kept_and_a_request_id_of_the_client_too() -> None:
    lines = b"TraceState: a=1,b=2\r\ntraceparent: " + GIVEN + b"\r\nX-Request-ID: mine\r\n\r\n"
    async with relay([request, send(OK)]) as between:
        client = await between.client(ASKS + lines)
        await client.message()
        head = between.engine.heads[0]
        assert field(head, b"tracestate") == [b"a=1,b=2"]
        assert field(head, b"x-request-id") == [b"mine"]
        assert b"X-Request-ID: mine\r\n" in head
        assert between.exchanges[0].start.request_id == "mine"


@pytest.mark.parametrize("new_trace", [False, True])
def test_tracestate_ends_with_the_trace_that_it_belongs_to(new_trace: bool) -> None:
    headers = ((b"Host", b"h"), (b"TraceState", b"a=1"), (b"traceparent", GIVEN), (b"X-A", b"1"))
    head = read_request("GET", b"/x", (1, 1), headers)
    assert isinstance(head, RequestHead)
    sent = request_head(head, b"h", b"NEW", b"id", new_trace=new_trace)
    state = b"" if new_trace else b"TraceState: a=1\r\n"
    assert sent == (
        b"GET /x HTTP/1.1\r\nHost: h\r\n" + state + b"traceparent: NEW\r\nX-A: 1\r\nx-request-id: id\r\n\r\n"
    )


@on_both_loops
async def test_a_request_id_that_is_absent_is_made_and_differs_each_time() -> None:
    async with relay([request, send(OK), request, send(OK)]) as between:
        client = await between.client(ASKS + b"\r\n")
        await client.message()
        await client.send(ASKS + b"\r\n")
        await client.message()
        ids = [field(head, b"x-request-id") for head in between.engine.heads]
        assert all(len(values) == 1 and re.fullmatch(rb"[0-9A-Za-z-]{8,64}", values[0]) for values in ids)
        assert ids[0] != ids[1]
        assert [exchange.start.request_id.encode() for exchange in between.exchanges] == ids[0] + ids[1]


REFUSED = {
    "CONNECT": (b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", 405),
    "TRACE": (b"TRACE /x HTTP/1.1\r\nHost: h\r\n\r\n", 405),
    "no Host": (b"GET /x HTTP/1.1\r\nX-A: 1\r\n\r\n", 400),
    "two Hosts": (b"GET /x HTTP/1.1\r\nHost: h\r\nhost: h\r\n\r\n", 400),
    "Connection names host": (b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close, Host\r\n\r\n", 400),
    "Connection names content-length": (
        b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: Content-Length\r\nContent-Length: 1\r\n\r\na",
        400,
    ),
    "Connection names authorization": (
        b"GET /x HTTP/1.1\r\nHost: h\r\nAuthorization: k\r\nConnection: authorization\r\n\r\n",
        400,
    ),
    "Connection names traceparent": (b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: traceparent\r\n\r\n", 400),
    "Connection names x-request-id in a second field": (
        b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nConnection: x,X-Request-Id\r\n\r\n",
        400,
    ),
    "no request at all": (b"hello there\r\n\r\n", 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
@on_both_loops
async def test_a_request_is_refused_and_never_reaches_the_engine(sent: bytes, status: int) -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(sent + ASKS + b"X-Behind: 1\r\n\r\n" * (status == 400))
        await client.until(lambda: b"}" in client.received or client.end)
        message = await client.message()
        own_error(message, status)
        assert sum(between.proxy.rejected.values()) == 1, between.proxy.rejected
        if field(message, b"connection") == [b"close"]:
            await client.ended()
            assert between.engine.connections == []


@on_both_loops
async def test_an_error_of_our_own_holds_nothing_that_the_client_sent() -> None:
    async with relay([request, send(OK)]) as between:
        client = await between.client(b"GET /secret-path HTTP/1.1\r\nX-Key: secret-key\r\n\r\n")
        assert b"secret" not in await client.message()
