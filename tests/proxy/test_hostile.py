"""Input meant to break something: every byte passes, memory stays flat, nobody else notices."""

import asyncio
import resource
import tracemalloc
from pathlib import Path

import pytest

import sidecar.proxy.unseen
from sidecar.core.record import RequestRecord
from sidecar.proxy.observer import StreamObserver

from .harness import on_both_loops, relay
from .messages import dechunked
from .wire import Step, Wire, close, request, send

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b'{"model":"m","stream":true}'
ASKS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
MIB = 1 << 20


class Sinks:
    """Keeps the records."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.ended = asyncio.Event()

    def attach(self, start: object) -> StreamObserver:
        return StreamObserver(start, self, 1.0)  # type: ignore[arg-type]

    def started(self, observer: StreamObserver) -> None: ...
    def gap_sink(self, model: object, operation: str) -> object:
        return lambda gap, tokens: None

    def finished(self, observer: StreamObserver, record: RequestRecord) -> None:
        self.records.append(record)
        self.ended.set()

    def undecodable(self) -> None: ...


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


JUNK: dict[str, bytes] = {
    "invalid UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n',
    "lone surrogates": b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}\n\n',
    "invalid JSON": b"data: {]}\n\n",
    "truncated JSON": b'data: {"choices":[{"index":0,"del\n\n',
    "NUL bytes": b"data: {\x00}\n\n\x00\x00\n\n",
    "a line without end": b"data: " + b"x" * 300_000,
    "an event without end": b"data: x\n" * 50_000,
    "nesting without end": b"data: " + b'{"choices":[' * 20_000 + b"\n\n",
    "a huge number": b'data: {"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}\n\n",
    "members of other types": b'data: {"choices":{"a":1},"usage":[],"error":0,"model":{}}\n\n',
    "carriage returns": b"data: {}\r\r\rdata: x\r\n\r\n" * 1000,
    "nothing but comments": b": ping\n\n" * 5000,
    "HTML": b"<html><body>Bad gateway</body></html>",
    "bytes that look like chunk sizes": b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" * 20,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@on_both_loops
async def test_junk_passes_and_what_follows_is_still_read(
    junk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar.proxy.unseen, "SLOW_CALL", 10.0)
    sinks = Sinks()
    said = TOKEN + junk + b"\n\n" + TOKEN + END
    async with relay(
        [request, send(STREAM), send(chunk(said) + b"0\r\n\r\n")], attach=sinks.attach
    ) as between:
        client = await between.client(ASKS)
        got = await client.message()
        await asyncio.wait_for(sinks.ended.wait(), 10)
        assert dechunked(got.partition(b"\r\n\r\n")[2]) == (said, b"")
        [record] = sinks.records
        assert record.outcome == "completed"
        assert record.chunks >= 1
        assert not between.proxy.faults


def repeated(data: bytes, times: int) -> Step:
    async def step(conn: Wire) -> None:
        for _ in range(times):
            await conn.send(data)

    return step


@on_both_loops
async def test_an_event_of_fifty_megabytes_passes_and_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar.proxy.unseen, "SLOW_CALL", 10.0)
    sinks, times = Sinks(), 50
    piece = chunk(b"x" * MIB)
    script = [request, send(STREAM + chunk(TOKEN + b"data: ")), repeated(piece, times)]
    script.append(send(chunk(b"\n\n" + TOKEN + END) + b"0\r\n\r\n"))
    tracemalloc.start()
    try:
        async with relay(script, attach=sinks.attach) as between:
            client = await between.client(
                ASKS.replace(b"Host: h", b"Host: h\r\nConnection: close"), keep=False
            )
            await client.ended(30)
            await asyncio.wait_for(sinks.ended.wait(), 30)
            peak = tracemalloc.get_traced_memory()[1]
            [record] = sinks.records
            assert (record.outcome, record.chunks, record.missed) == ("completed", 2, 1)
            assert client.count > times * MIB
            assert peak < 12 * MIB
            assert not between.proxy.faults
    finally:
        tracemalloc.stop()


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@on_both_loops
async def test_a_stream_of_a_million_events_takes_no_more_memory_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sidecar.proxy.unseen, "SLOW_CALL", 10.0)
    sinks, events, times = Sinks(), 250, 4000
    seen: list[int] = []

    async def note(_: Wire) -> None:
        seen.append(resident())

    part = repeated(chunk(TOKEN * events), times // 4)
    script = [request, send(STREAM), part, note, part, part, part, note, send(chunk(END) + b"0\r\n\r\n")]
    async with relay(script, attach=sinks.attach) as between:
        await between.client(ASKS, keep=False)
        await asyncio.wait_for(sinks.ended.wait(), 25)
        [record] = sinks.records
        # The last event, without a token, may be in a read of which enough has been decoded.
        assert record.chunks + record.missed - events * times in (0, 1)
        assert record.outcome == "completed"
        assert seen[1] - seen[0] < 4 * MIB
        assert not between.proxy.faults


@on_both_loops
async def test_clients_that_say_nothing_are_closed_and_others_are_served() -> None:
    silent = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 3 * silent), hard), hard))
    try:
        ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        async with relay([request, send(ok)] * 5, idle_timeout=1.0, head_timeout=1.0) as between:
            connected = [await between.client() for _ in range(silent // 2)]
            connected += [await between.client(b"POST /v1/ch") for _ in range(silent // 2)]
            served = await between.client(ASKS)
            assert (await served.message()).endswith(b"ok")
            for client in connected:
                await client.ended(20)
            assert await (await between.client(ASKS)).message()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_both_loops
async def test_an_engine_that_dies_in_the_middle_of_its_head() -> None:
    sinks = Sinks()
    async with relay([request, send(STREAM[:40]), close], attach=sinks.attach) as between:
        client = await between.client(ASKS)
        assert (await client.message()).startswith(b"HTTP/1.1 502 ")
        await asyncio.wait_for(sinks.ended.wait(), 10)
        assert sinks.records[0].outcome == "upstream_reset"
