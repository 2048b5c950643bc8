"""Export against collectors that take, refuse, break, hang or are not there."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from sidecar import otlp_exporter
from sidecar.core.otlp_frames import Frame
from sidecar.core.spans import Span
from sidecar.otlp_exporter import MAX_ATTEMPTS, MAX_QUEUE_BYTES, SENDERS, Exporter, HttpSender
from sidecar.otlp_messages import Encoder, rejected
from tests.collector import COLLECTORS, WITHIN, Collector, http_collector

PROTOCOLS = ["http", "grpc"]
PARTIAL = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=1))
REFUSALS = {
    "http": {
        "retried": [partial(web.Response, status=status) for status in (429, 502, 503, 504)],
        "final": [
            *(partial(web.Response, status=status) for status in (400, 401, 404, 500)),
            partial(web.Response, status=307, headers={"Location": "/v1/traces"}),
        ],
        "partial": lambda: web.Response(body=PARTIAL.SerializeToString()),
    },
    "grpc": {
        "retried": [lambda: grpc.StatusCode.UNAVAILABLE, lambda: grpc.StatusCode.RESOURCE_EXHAUSTED],
        "final": [lambda: grpc.StatusCode.INVALID_ARGUMENT, lambda: grpc.StatusCode.UNIMPLEMENTED],
        "partial": lambda: PARTIAL,
    },
}


def frame(number: int = 0) -> Frame:
    return Encoder("latest", "s").frame(
        Span(
            name=str(number),
            kind="client",
            trace_id="0a" * 16,
            span_id="0b" * 8,
            parent_id=None,
            start=1,
            end=2,
        )
    )


class Waits:
    """Stands in for sleeping: notes how long and goes on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)

    @property
    def retries(self) -> list[float]:
        return [seconds for seconds in self.seconds if seconds != otlp_exporter.BATCH_SECONDS]


class Running:
    def __init__(self, exporter: Exporter, counts: Counter[str], waits: Waits) -> None:
        self.exporter, self.counts, self.waits = exporter, counts, waits
        self.task = asyncio.create_task(exporter.run())

    async def until(self, **counts: int) -> None:
        """Wait for the counts, which are all that is counted."""
        async with asyncio.timeout(WITHIN):
            while dict(self.counts) != counts:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def exporting(protocol: str, url: str, headers: dict[str, str] | None = None) -> AsyncIterator[Running]:
    counts: Counter[str] = Counter()
    waits = Waits()
    running = Running(Exporter(SENDERS[protocol](url, headers or {}), rejected, counts, waits), counts, waits)
    try:
        yield running
    finally:
        await running.exporter.close(running.task, 5.0)


@pytest.fixture(params=PROTOCOLS)
async def collector(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Collector]]:
    async with COLLECTORS[request.param]() as running:
        yield request.param, running


async def test_spans_arrive_in_batches_with_the_headers(collector: tuple[str, Collector]) -> None:
    protocol, there = collector
    async with exporting(protocol, there.url, {"x-token": "secret"}) as running:
        for number in range(1000):
            running.exporter.put(frame(number))
        await running.until(sent=1000)
    assert [span.name for span in there.spans] == [str(number) for number in range(1000)]
    assert len(there.requests) == 2
    assert {headers["x-token"] for headers in there.headers} == {"secret"}


URLS = [("", "/v1/traces"), ("/", "/v1/traces"), ("/otlp/v1/traces", "/otlp/v1/traces")]


@pytest.mark.parametrize(("path", "asked"), URLS)
async def test_a_url_without_a_path_gets_the_standard_one(path: str, asked: str) -> None:
    async with http_collector() as there, exporting("http", there.url + path) as running:
        running.exporter.put(frame())
        await running.until(sent=1)
        assert there.headers[0]["path"] == asked
        assert there.headers[0]["Content-Type"] == "application/x-protobuf"


async def test_what_may_be_tried_again_is_until_it_is_taken(collector: tuple[str, Collector]) -> None:
    protocol, there = collector
    there.answers = [make() for make in REFUSALS[protocol]["retried"]]
    async with exporting(protocol, there.url) as running:
        running.exporter.put(frame())
        await running.until(sent=1)
    assert len(there.spans) == 1
    retries = running.waits.retries
    assert len(retries) == len(REFUSALS[protocol]["retried"])
    for attempt, seconds in enumerate(retries):
        assert 0.8 * 2**attempt <= seconds <= 1.2 * 2**attempt


async def test_what_is_refused_for_good_is_dropped_at_once(collector: tuple[str, Collector]) -> None:
    protocol, there = collector
    makers: list[Any] = REFUSALS[protocol]["final"]
    there.answers = [make() for make in makers]
    async with exporting(protocol, there.url) as running:
        for number in range(len(makers)):
            running.exporter.put(frame())
            await running.until(rejected=number + 1)
        running.exporter.put(frame())
        await running.until(rejected=len(makers), sent=1)
    assert running.waits.retries == []


async def test_a_partial_success_is_told_apart(collector: tuple[str, Collector]) -> None:
    protocol, there = collector
    there.answers = [REFUSALS[protocol]["partial"]]
    async with exporting(protocol, there.url) as running:
        for number in range(3):
            running.exporter.put(frame(number))
        await running.until(sent=2, rejected=1)


async def test_an_answer_that_is_garbage_counts_as_taken() -> None:
    async with http_collector() as there, exporting("http", there.url) as running:
        there.answers = [lambda: web.Response(body=b"\xff<html>" * 100_000)]
        running.exporter.put(frame())
        await running.until(sent=1)


AFTER = [("7", 7.0), ("86400", otlp_exporter.MAX_RETRY), ("Wed, 21 Oct 2026 07:28:00 GMT", None)]


@pytest.mark.parametrize(("retry_after", "waited"), AFTER)
async def test_a_collector_may_say_how_long_to_wait(retry_after: str, waited: float | None) -> None:
    async with http_collector() as there, exporting("http", there.url) as running:
        there.answers = [web.Response(status=503, headers={"Retry-After": retry_after})]
        running.exporter.put(frame())
        await running.until(sent=1)
    (seconds,) = running.waits.retries
    assert seconds == waited or (waited is None and seconds <= 1.2)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_dead_collector_costs_counted_drops_and_bounded_memory(protocol: str) -> None:
    async with exporting(protocol, f"http://127.0.0.1:{free_port()}") as running:
        one = frame()
        room = MAX_QUEUE_BYTES // one.size
        for _ in range(room + 10):
            running.exporter.put(one)
        assert dict(running.counts) == {"queue_full": 10}
        assert running.exporter._bytes <= MAX_QUEUE_BYTES
        async with asyncio.timeout(WITHIN):
            while running.counts["failed"] < otlp_exporter.MAX_BATCH_SPANS:
                await asyncio.sleep(0.001)
        running.exporter.put(one)  # the batch that failed made room
        assert running.counts["queue_full"] == 10
    assert len(running.waits.retries) >= MAX_ATTEMPTS - 1
    assert running.counts["failed"] == room + 1
    assert running.exporter._bytes == 0


async def test_a_collector_that_hangs_delays_nothing_else() -> None:
    """`put` returns at once; the end does not wait for ever either."""
    hang = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hang.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    counts: Counter[str] = Counter()
    port = server.sockets[0].getsockname()[1]
    exporter = Exporter(HttpSender(f"http://127.0.0.1:{port}", {}), rejected, counts, Waits())
    task = asyncio.create_task(exporter.run())
    exporter.put(frame())
    await asyncio.sleep(0)
    exporter.put(frame())
    await exporter.close(task, 0.05)
    assert dict(counts) == {"failed": 2}
    hang.set()
    server.close()
    await server.wait_closed()


async def test_what_is_queued_at_the_end_is_sent(collector: tuple[str, Collector]) -> None:
    protocol, there = collector
    async with exporting(protocol, there.url) as running:
        for number in range(600):
            running.exporter.put(frame(number))
    assert len(there.spans) == 600
    assert dict(running.counts) == {"sent": 600}


async def test_a_fault_of_the_sender_loses_a_batch_and_not_the_exporter() -> None:
    class Faulty:
        calls = 0

        async def send(self, export: bytes) -> bytes:
            self.calls += 1
            if self.calls == 1:
                raise ValueError("a fault")
            return b""

        async def close(self) -> None: ...

    counts: Counter[str] = Counter()
    exporter = Exporter(Faulty(), rejected, counts, Waits())
    running = Running(exporter, counts, Waits())
    exporter.put(frame())
    await running.until(failed=1)
    exporter.put(frame())
    await running.until(failed=1, sent=1)
    await exporter.close(running.task, 1.0)
