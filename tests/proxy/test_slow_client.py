"""A client that reads a kilobyte a second: its own slowness is measured, and blamed on nobody else."""

import asyncio
from collections import defaultdict
from statistics import mean
from time import monotonic

import pytest

from sidecar.core.record import RequestRecord
from sidecar.proxy.observer import StreamObserver

from .harness import on_both_loops, relay
from .test_backpressure import HELD, STUCK, held_between
from .wire import Watched, Wire, request, send

BODY = b'{"model":"m","stream":true}'
ASKS = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
PADDING = b": " + b"x" * 150_000 + b"\n\n"  # a comment: no token, but bytes that have to go somewhere
ALONE = 30  # tokens that come without padding, before the buffers fill
TOKENS = 160
EVERY = 0.020


class Sinks(Watched):
    """Keeps gaps and records, by the order in which requests began."""

    def __init__(self) -> None:
        super().__init__()
        self.began: list[StreamObserver] = []
        self.gaps: dict[int, list[float]] = defaultdict(list)
        self.records: dict[int, RequestRecord] = {}

    def attach(self, start: object) -> StreamObserver:
        return StreamObserver(start, self, 1.0)  # type: ignore[arg-type]

    def started(self, observer: StreamObserver) -> None:
        self.began.append(observer)

    def gap_sink(self, model: object, operation: str) -> object:
        number = len(self.began) - 1  # a request's first gap comes before the next request begins
        return lambda gap, tokens: self.gaps[number].append(gap)

    def finished(self, observer: StreamObserver, record: RequestRecord) -> None:
        self.records[self.began.index(observer)] = record
        self.changed()

    def undecodable(self) -> None:
        raise AssertionError("the body could not be decoded")


class Engine:
    """Generates a token at every tick; what the socket does not take waits for the next."""

    def __init__(self) -> None:
        self.times: list[float] = []  # at which the first bytes of each token were sent
        self.pushed = 0
        self.blocked = 0

    def mean_gap(self) -> float:
        """Between the tokens that came alone."""
        return (self.times[ALONE - 1] - self.times[0]) / (ALONE - 1)

    async def __call__(self, conn: Wire) -> None:
        for number in range(TOKENS):
            piece = TOKEN if number < ALONE else TOKEN + PADDING
            self.times.append(monotonic())
            piece = rest = b"%x\r\n%b\r\n" % (len(piece), piece)
            while rest := rest[conn.push(rest) :]:
                self.blocked += 1
                await asyncio.sleep(EVERY / 10)
            self.pushed += len(piece)
            await asyncio.sleep(EVERY)


@on_both_loops
async def test_itl_is_the_engines_and_the_write_wait_the_clients() -> None:
    sinks, fast_engine, slow_engine = Sinks(), Engine(), Engine()
    end = send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(END), END))
    scripts = [[request, send(HEAD), engine, end] for engine in (slow_engine, fast_engine)]
    async with relay(*scripts, attach=sinks.attach, buffers=65536) as between:
        slow = await between.client(ASKS, buffers=4096, reading=False)
        upstream = await between.engine.connected()
        await sinks_have_gaps(sinks, 0)
        fast = await between.client(ASKS, keep=False)
        while 1 not in sinks.records:
            slow.count += len(slow.sock.recv(100))  # a kilobyte a second
            await asyncio.sleep(0.1)
        assert slow_engine.blocked > 0, "the engine was never made to wait: the buffers took it all"
        assert slow_engine.pushed < STUCK
        assert held_between(between, upstream, slow, upstream.sent) <= HELD
        slow.read_on()
        await sinks.until(lambda: 0 in sinks.records, 20)
        assert slow.count < fast.count or slow.end is None

    slow_record, fast_record = sinks.records[0], sinks.records[1]
    assert (slow_record.outcome, fast_record.outcome) == ("completed", "completed")
    assert slow_record.client_write_wait > TOKENS * EVERY / 4
    assert fast_record.client_write_wait < slow_record.client_write_wait / 4
    assert slow_record.stalls == ()
    assert slow_record.tpot is None, "most of the generation was the client's time"
    assert ALONE - 1 <= len(sinks.gaps[0]) < TOKENS - 1, "gaps while the client took nothing are left out"
    assert min(sinks.gaps[0]) > EVERY / 2, "a backlog has no gaps"
    assert mean(sinks.gaps[0][: ALONE - 1]) == pytest.approx(slow_engine.mean_gap(), rel=0.05)
    assert mean(sinks.gaps[1][: ALONE - 1]) == pytest.approx(fast_engine.mean_gap(), rel=0.05)


async def sinks_have_gaps(sinks: Sinks, number: int) -> None:
    async with asyncio.timeout(5):
        while not sinks.gaps[number]:
            await asyncio.sleep(EVERY / 4)
