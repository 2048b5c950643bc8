"""Compressed bodies pass untouched both ways; the observer sees what they hold, within bounds."""

import asyncio
import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from sidecar.core.record import RequestRecord
from sidecar.proxy.decode import MAX_OUTPUT, Decoder, UndecodableError
from sidecar.proxy.observer import StreamObserver

from .harness import on_both_loops, relay
from .messages import dechunked, upstream
from .wire import request, send

TEXT = b"".join(b'data: {"choices":[{"delta":{"content":"token %d"}}]}\n\n' % number for number in range(200))
ASKS = b"GET /x HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip, br, zstd\r\n\r\n"


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODINGS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "GZip, in another case": (b"GZip", gzip.compress),
    "x-gzip": (b"x-gzip", gzip.compress),
    "gzip in two members": (b"gzip", lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:])),
    "deflate": (b"deflate", zlib.compress),
    "deflate without its wrapper": (b"deflate", raw_deflate),
    "br": (b"br", brotli.compress),
    "zstd": (b"zstd", zstandard.ZstdCompressor().compress),
    "identity": (b"identity", bytes),
}
RARE = {"x-gzip", "gzip in two members", "deflate without its wrapper"}
"""Rare forms: they have to pass; whether the observer reads them is left open."""


async def turns(_: object) -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("framing", ["length", "chunked in pieces"])
@pytest.mark.parametrize(("coding", "pack"), CODINGS.values(), ids=CODINGS)
@on_both_loops
async def test_an_answer_passes_untouched(
    coding: bytes, pack: Callable[[bytes], bytes], framing: str
) -> None:
    packed = pack(TEXT)
    said = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: " + coding + b"\r\n"
    if framing == "length":
        steps = [request, send(said + b"Content-Length: %d\r\n\r\n" % len(packed) + packed)]
    else:
        steps = [request, send(said + b"Transfer-Encoding: chunked\r\n\r\n")]
        for at in range(0, len(packed), 101):
            piece = packed[at : at + 101]
            steps += [send(b"%x\r\n%b\r\n" % (len(piece), piece)), turns]
        steps.append(send(b"0\r\n\r\n"))
    async with relay(steps) as between:
        client = await between.client(ASKS)
        message = await client.message()
        rest = message.partition(b"\r\n\r\n")[2]
        assert (rest if framing == "length" else dechunked(rest)[0]) == packed
        assert b"Content-Encoding: " + coding + b"\r\n" in message
        [exchange] = await between.finished("clean")
        assert exchange.response_body
        assert sum(between.proxy.faults.values()) == 0


class Sinks:
    """Takes what a `StreamObserver` finds."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.not_decoded = 0

    def started(self, observer: StreamObserver) -> None: ...

    def gap_sink(self, model: str | None, operation: str) -> Callable[[float, int | None], None]:
        return lambda gap, tokens: None

    def finished(self, observer: StreamObserver, record: RequestRecord) -> None:
        self.records.append(record)

    def undecodable(self) -> None:
        self.not_decoded += 1


CHATS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.mark.parametrize("size", [101, 100_000], ids=["in pieces", "in one piece"])
@pytest.mark.parametrize("name", sorted(set(CODINGS) - RARE))
@on_both_loops
async def test_the_observer_sees_the_text(name: str, size: int) -> None:
    coding, pack = CODINGS[name]
    packed, sinks = pack(TEXT), Sinks()
    steps = [request, send(SSE + b"Content-Encoding: %b\r\n" % coding)]
    steps.append(send(b"Content-Length: %d\r\n\r\n" % len(packed)))
    for at in range(0, len(packed), size):
        steps += [send(packed[at : at + size]), turns]
    async with relay(steps, attach=lambda start: StreamObserver(start, sinks, 1.0)) as between:
        client = await between.client(CHATS)
        assert (await client.message()).endswith(packed)
        await between.settled()
    assert [record.chunks for record in sinks.records] == [200]
    assert sinks.not_decoded == 0


@pytest.mark.parametrize(("coding", "pack"), CODINGS.values(), ids=CODINGS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@on_both_loops
async def test_a_request_passes_untouched(
    coding: bytes, pack: Callable[[bytes], bytes], chunked: bool
) -> None:
    packed = pack(TEXT)
    asks = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Encoding: " + coding + b"\r\n"
    framed = asks + b"Content-Length: %d\r\n\r\n" % len(packed) + packed
    if chunked:
        framed = asks + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)
    async with relay([request, send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]) as between:
        client = await between.client(framed)
        await client.message()
        assert upstream(between.engine.connections[0].messages[0]) == framed
        await between.finished("clean")


TORN = {
    "gzip that is none": (b"gzip", TEXT),
    "gzip with a broken middle": (
        b"gzip",
        gzip.compress(TEXT)[:100] + b"\0" * 50 + gzip.compress(TEXT)[150:],
    ),
    "gzip cut short": (b"gzip", gzip.compress(TEXT)[:-20]),
    "gzip with rubbish behind": (b"gzip", gzip.compress(TEXT) + b"rubbish" * 10),
    "br that is none": (b"br", b"\xff" * 500),
    "zstd that is none": (b"zstd", b"\xff" * 500),
    "deflate that is none": (b"deflate", b"\xff" * 500),
    "an unknown coding": (b"rot13", TEXT),
    "two codings": (b"gzip, br", brotli.compress(gzip.compress(TEXT))),
    "an empty body": (b"gzip", b""),
    "a bomb of gzip": (b"gzip", gzip.compress(b"\0" * 50_000_000)),
    "a bomb of br": (b"br", brotli.compress(b"\0" * 50_000_000, quality=5)),
    "a bomb of zstd": (b"zstd", zstandard.ZstdCompressor().compress(b"\0" * 50_000_000)),
}


NO_FAULT = {"gzip cut short", "gzip with rubbish behind", "an empty body"}
"""What there is of them can be read."""


@pytest.mark.parametrize("name", TORN)
@on_both_loops
async def test_a_body_that_cannot_be_read_passes_all_the_same(name: str) -> None:
    coding, packed = TORN[name]
    sinks = Sinks()
    said = SSE + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(packed))
    async with relay(
        [request, send(said + packed)], attach=lambda start: StreamObserver(start, sinks, 1.0)
    ) as between:
        client = await between.client(CHATS)
        message = await client.message()
        assert message.endswith(said.partition(b"\r\n")[2][-20:] + packed)
        await between.settled()
    assert [record.status for record in sinks.records] == [200]
    assert sinks.not_decoded == (0 if name in NO_FAULT else 1)


UNREADABLE_AT_ONCE = [name for name in TORN if name.endswith("that is none")]


@pytest.mark.parametrize("name", [*UNREADABLE_AT_ONCE, "an unknown coding"])
@on_both_loops
async def test_a_body_that_cannot_be_read_counts_once_and_is_not_decoded_any_further(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coding, packed = TORN[name]
    sinks, decoded = Sinks(), []

    class Noting(Decoder):
        def feed(self, data: bytes) -> bytes:
            decoded.append("failed")
            plain = super().feed(data)
            decoded[-1] = "read"
            return plain

    monkeypatch.setattr("sidecar.proxy.observer.Decoder", Noting)
    said = SSE + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(packed))
    async with relay(
        [request, send(said)], attach=lambda start: StreamObserver(start, sinks, 1.0)
    ) as between:
        client = await between.client(CHATS)
        engine = await between.engine.connected()
        await client.has(b"\r\n\r\n")
        for at in range(0, len(packed), 100):  # the next is sent when the last has arrived: each is one read
            await engine.send(packed[at : at + 100])
            await client.until(lambda end=at + 100: client.count >= len(said) + min(end, len(packed)))
        assert (await client.message()).endswith(packed)
        await between.settled()
    assert sinks.not_decoded == 1
    assert "failed" not in decoded[:-1], decoded


@pytest.mark.parametrize(("coding", "packed"), TORN.values(), ids=TORN)
def test_a_decoder_never_gives_out_more_than_its_bound(coding: bytes, packed: bytes) -> None:
    given = 0
    try:
        decoder = Decoder(coding)
        for at in range(0, len(packed), 65536):
            out = decoder.feed(packed[at : at + 65536])
            assert len(out) <= MAX_OUTPUT
            given += len(out)
    except UndecodableError:
        pass
    assert given <= 8 << 20
