"""Every recording through the running proxy over real sockets: same bytes, same end, same numbers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sidecar.config import Limits
from sidecar.core.record import RequestRecord
from sidecar.proxy import Proxy, Upstream
from sidecar.proxy.observer import StreamObserver
from tests.replay import (
    SILENT,
    Head,
    Part,
    RecordedEngine,
    Recording,
    Splitter,
    body_of,
    expectations,
    recording,
    recording_names,
    response_parts,
)

uvloop = pytest.importorskip("uvloop")

WITHIN = 10.0  # seconds that any single wait may last before the test fails
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding"}
LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
NAMES = recording_names()
LEFT = [name for name in NAMES if recording(name).end in SILENT]
ENDED = [name for name in NAMES if name not in LEFT]
STREAMED = ["vllm/plain/chat_stream_usage", "llama.cpp/gemma/chat_stream_n2", "vllm/plain/completions_stream"]


class Records:
    """The sinks of one test: the record of the request, and when it was there."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.records: list[RequestRecord] = []
        self.gaps: list[tuple[float, int | None]] = []

    def started(self, observer: StreamObserver) -> None: ...

    def gap_sink(self, model: str | None, operation: str) -> Callable[[float, int | None], None]:
        return lambda gap, tokens: self.gaps.append((gap, tokens))

    def finished(self, observer: StreamObserver, record: RequestRecord) -> None:
        self.records.append(record)
        self.done.set()

    def undecodable(self) -> None:
        raise AssertionError("no recording is compressed")

    async def one(self) -> RequestRecord:
        async with asyncio.timeout(WITHIN):
            await self.done.wait()
        (record,) = self.records
        return record


class Received:
    """What the client got: the head, the body without framing, and how the answer ended."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.body = b""
        self.end = "open"  # clean: the message is complete; cut: the connection ended before that
        self._splitter = Splitter(response=True)

    def feed(self, data: bytes) -> None:
        for part in self._splitter.feed(data):
            self._take(part)

    def closed(self) -> None:
        for part in self._splitter.eof():
            self._take(part)
        if self.end == "open":
            self.end = "cut"

    def _take(self, part: Part) -> None:
        self.head = part.head or self.head
        self.body += part.data
        if part.kind == "end":
            self.end = "clean"


class Story:
    """One recorded request through a proxy in front of the recorded engine."""

    def __init__(
        self, engine: RecordedEngine, proxy: Proxy, address: tuple[str, int], records: Records
    ) -> None:
        self.engine, self.proxy, self.records = engine, proxy, records
        self._address = address
        self.received = Received()
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, until: Callable[[Received], bool] | None = None) -> Received:
        """Send the recorded request and read until that holds.

        Default: to the end of the connection, or of the answer if the request keeps the connection.
        """
        until = until or self._answered
        reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(raw_request(self.engine.recording))
        async with asyncio.timeout(WITHIN):
            while not until(self.received):
                try:
                    data = await reader.read(65536)
                except ConnectionResetError:
                    data = b""
                if not data:
                    self.received.closed()
                    break
                self.received.feed(data)
        return self.received

    def _answered(self, received: Received) -> bool:
        closes = (b"Connection", b"close") in self.engine.recording.headers
        return received.end == "clean" and not closes

    def leave(self, *, hard: bool) -> None:
        assert self._writer is not None
        if hard:
            self._writer.transport.abort()
        else:
            self._writer.close()


@asynccontextmanager
async def story(source: Recording, delay_factor: float = 0.0) -> AsyncIterator[Story]:
    records = Records()
    async with RecordedEngine(source, delay_factor=delay_factor) as engine:
        proxy = Proxy(
            Upstream(engine.host, engine.port),
            Limits(),
            attach=lambda start: StreamObserver(start, records, stall_threshold=1.0),
        )
        told = Story(engine, proxy, await proxy.start("127.0.0.1", 0), records)
        try:
            yield told
            assert not proxy.faults.keys() - {"slow"}  # a busy machine is no fault
        finally:
            told.leave(hard=True)
            await proxy.stop()


def raw_request(source: Recording) -> bytes:
    lines = [f"{source.method} {source.path} HTTP/1.1".encode()]
    lines += [name + b": " + value for name, value in source.headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + source.body


def recorded_head(source: Recording) -> Head:
    head = response_parts(source.reads)[0][1].head
    assert head is not None
    return head


def end_to_end(head: Head | None) -> list[tuple[bytes, bytes]]:
    assert head is not None
    return [(name, value) for name, value in head.headers if name.lower() not in HOP_BY_HOP]


def run(main: Coroutine[Any, Any, None], loop: str) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


on_both_loops = pytest.mark.parametrize("loop", LOOPS)


def expect_same_bytes(received: Received, source: Recording) -> None:
    head = recorded_head(source)
    assert received.head is not None
    assert received.head.start_line == head.start_line
    assert end_to_end(received.head) == end_to_end(head)
    assert received.body == body_of(source.reads)


def expect_same_counts(record: RequestRecord, name: str) -> None:
    expected = expectations()[name]
    for key in (
        "status",
        "outcome",
        "chunks",
        "choices",
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
    ):
        assert getattr(record, key) == expected[key], key
    assert sorted(record.finish_reasons) == sorted(expected["finish_reasons"])


@on_both_loops
@pytest.mark.parametrize("name", ENDED)
def test_a_recorded_answer_passes_unchanged_and_ends_as_it_ended(name: str, loop: str) -> None:
    async def main() -> None:
        source = recording(name)
        async with story(source) as told:
            received = await told.ask()
            expect_same_bytes(received, source)
            assert received.end == expectations()[name]["end"]
            expect_same_counts(await told.records.one(), name)

    run(main(), loop)


@on_both_loops
@pytest.mark.parametrize("hard", [False, True], ids=["by FIN", "by RST"])
@pytest.mark.parametrize("name", LEFT)
def test_a_client_that_leaves_as_recorded_takes_the_engine_connection_with_it(
    name: str, hard: bool, loop: str
) -> None:
    async def main() -> None:
        source = recording(name)
        size = len(body_of(source.reads))
        async with story(source) as told:
            received = await told.ask(until=lambda got: got.head is not None and len(got.body) == size)
            expect_same_bytes(received, source)
            assert received.end == "open"
            told.leave(hard=hard)
            async with asyncio.timeout(WITHIN):
                await told.engine.client_left.wait()
            expect_same_counts(await told.records.one(), name)

    run(main(), loop)


CUTS = {"eof": "truncated", "reset": "upstream_reset"}


@on_both_loops
@pytest.mark.parametrize("end", CUTS)
@pytest.mark.parametrize("reads", [1, 2, 7])
@pytest.mark.parametrize("name", STREAMED)
def test_an_engine_that_breaks_off_never_looks_finished(name: str, reads: int, end: str, loop: str) -> None:
    async def main() -> None:
        source = recording(name).cut_after(reads, end)
        async with story(source) as told:
            received = await told.ask()
            record = await told.records.one()
            assert received.end == "cut"
            assert record.outcome == CUTS[end]
            assert body_of(source.reads).startswith(received.body)
            if end == "eof":
                expect_same_bytes(received, source)

    run(main(), loop)


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_gets_the_request_with_its_body_unchanged(name: str) -> None:
    async def main() -> None:
        source = recording(name)
        async with story(source) as told:
            await told.ask(until=lambda got: got.head is not None)
            ((head, body),) = told.engine.requests
            assert head.start_line == f"{source.method} {source.path} HTTP/1.1".encode()
            assert body == source.body
            sent = [pair for pair in source.headers if pair[0].lower() not in {b"connection", b"traceparent"}]
            assert [pair for pair in head.headers if pair in sent] == sent

    run(main(), "asyncio")


@on_both_loops
def test_played_at_its_own_pace_the_first_token_takes_at_least_as_long(loop: str) -> None:
    name = "vllm/parsers/chat_stream_usage_continuous"
    expected = expectations()[name]

    async def main() -> None:
        async with story(recording(name), delay_factor=1.0) as told:
            await told.ask()
            record = await told.records.one()
            assert record.ttft is not None
            assert record.e2e is not None
            assert record.ttft >= expected["ttft_ns"] / 1e9
            assert record.e2e >= expected["end_ns"] / 1e9
            assert [tokens for _, tokens in told.records.gaps] == expected["gap_tokens"]

    run(main(), loop)
