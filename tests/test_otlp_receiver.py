"""The receiver against OpenTelemetry's own exporters, and against what nobody should send."""

import asyncio
import gzip
import io
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace.export import SpanExportResult

from sidecar.core.otlp_frames import Frame, MalformedError, join, split
from sidecar.otlp_messages import read_span
from sidecar.otlp_receiver import MAX_BYTES, MAX_EXPORTS, MAX_PLAIN, TooLargeError, decompress, receiving
from tests.data_spans import engine_spans, exports, sdk_spans

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Receiver:
    def __init__(self) -> None:
        self.exports: list[bytes] = []
        self.ports: tuple[int, int] = (0, 0)
        self.wait: asyncio.Event | None = None

    async def take(self, export: bytes) -> None:
        split(export, 1000)
        self.exports.append(export)
        if self.wait is not None:
            await self.wait.wait()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    async with receiving(receiver.take, ("127.0.0.1", 0), ("127.0.0.1", 0)) as ports:
        receiver.ports = ports
        yield receiver


async def sdk_export(receiver: Receiver, protocol: str, gzipped: bool) -> SpanExportResult:
    """What vLLM's process does, by the same library."""
    if protocol == "grpc":
        compression = grpc.Compression.Gzip if gzipped else grpc.Compression.NoCompression
        exporter: Any = GrpcExporter(
            endpoint=f"127.0.0.1:{receiver.ports[0]}", insecure=True, compression=compression
        )
    else:
        url = f"http://127.0.0.1:{receiver.ports[1]}/v1/traces"
        exporter = HttpExporter(
            endpoint=url, compression=Compression.Gzip if gzipped else Compression.NoCompression
        )
    try:
        return await asyncio.to_thread(exporter.export, sdk_spans("plain_and_load"))
    finally:
        await asyncio.to_thread(exporter.shutdown)


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_vllms_spans_by_opentelemetrys_exporter(
    receiver: Receiver, protocol: str, gzipped: bool
) -> None:
    assert await sdk_export(receiver, protocol, gzipped) is SpanExportResult.SUCCESS
    (export,) = receiver.exports
    spans = {span.span_id: span for span in (read_span(frame, {}) for frame in split(export, 1000))}
    assert spans == {span.span_id: span for span in engine_spans("plain_and_load")}


class Reply:
    """Outcome of one raw request: an HTTP status or a gRPC code's name."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def http(self, body: Any, path: str = "/v1/traces", **headers: str) -> int:
        named = {"content-type": "application/x-protobuf"} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }
        url = f"http://127.0.0.1:{self._receiver.ports[1]}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                url, data=io.BytesIO(body) if isinstance(body, bytes) else body, headers=named
            ) as response,
        ):
            return response.status

    async def grpc(self, message: bytes, compression: Any = None) -> str:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._receiver.ports[0]}") as channel:
            try:
                await channel.unary_unary(EXPORT)(message, compression=compression)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"


@pytest.fixture
def send(receiver: Receiver) -> Reply:
    return Reply(receiver)


GOOD = exports("flags")[0]
# Larger than an export may come, and smaller than one may be when decompressed.
LARGE = join([Frame(b"", b"", b"\x2a\x90\xa1\x0f" + b"n" * 250_000)] * 30)
BOMB = gzip.compress(bytes(MAX_PLAIN + 1))
HTTP = [
    ("an export", GOOD, {}, 200),
    ("gzip", gzip.compress(GOOD), {"content_encoding": "gzip"}, 200),
    ("gzip of what would be too large", gzip.compress(LARGE), {"content_encoding": "gzip"}, 200),
    ("nothing", b"", {}, 200),
    ("JSON", b"{}", {"content_type": "application/json"}, 415),
    ("another coding", GOOD, {"content_encoding": "br"}, 415),
    ("garbage", b"\xff" * 100, {}, 400),
    ("garbage said to be gzip", GOOD, {"content_encoding": "gzip"}, 400),
    ("gzip that is cut off", gzip.compress(GOOD)[:-9], {"content_encoding": "gzip"}, 400),
    ("a gzip bomb", BOMB, {"content_encoding": "gzip"}, 413),
    ("too large", bytes(MAX_BYTES + 1), {}, 413),
    ("another path", GOOD, {"path": "/v1/metrics"}, 404),
]


@pytest.mark.parametrize(("body", "more", "status"), [r[1:] for r in HTTP], ids=[r[0] for r in HTTP])
async def test_over_http(
    receiver: Receiver, send: Reply, body: bytes, more: dict[str, str], status: int
) -> None:
    assert await send.http(body, **more) == status
    assert len(receiver.exports) == (status == 200)


async def test_a_chunked_body_that_does_not_end_is_refused_when_it_is_too_large(
    receiver: Receiver, send: Reply
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_BYTES // 65536 + 64):
            yield bytes(65536)

    try:
        assert await send.http(endless()) == 413
    except aiohttp.ClientConnectionError:
        pass  # closed while it was still sending
    assert receiver.exports == []


GRPC = [
    ("an export", GOOD, None, "OK"),
    ("gzip", GOOD, grpc.Compression.Gzip, "OK"),
    ("gzip of what would be too large", LARGE, grpc.Compression.Gzip, "OK"),
    ("nothing", b"", None, "OK"),
    ("garbage", b"\xff" * 100, None, "INVALID_ARGUMENT"),
    ("garbage in gzip", b"\xff" * 10_000, grpc.Compression.Gzip, "INVALID_ARGUMENT"),
    ("garbage that begins as gzip does", b"\x1f\x8b" * 10, None, "INVALID_ARGUMENT"),
    ("a gzip bomb", bytes(MAX_PLAIN + 1), grpc.Compression.Gzip, "RESOURCE_EXHAUSTED"),
    ("too large", bytes(MAX_BYTES + 1), None, "RESOURCE_EXHAUSTED"),
    ("another compression", GOOD, grpc.Compression.Deflate, "UNIMPLEMENTED"),
]


@pytest.mark.parametrize(("message", "compression", "code"), [r[1:] for r in GRPC], ids=[r[0] for r in GRPC])
async def test_over_grpc(
    receiver: Receiver, send: Reply, message: bytes, compression: Any, code: str
) -> None:
    assert await send.grpc(message, compression) == code
    assert len(receiver.exports) == (code == "OK")


def test_decompression_stops_at_the_bound() -> None:
    """256 MiB of zeros in a megabyte: no more than the bound is ever held."""
    zeros = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    bomb = b"".join(zeros.compress(bytes(1 << 20)) for _ in range(256)) + zeros.flush()
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        decompress(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MAX_PLAIN


SIZES = [(MAX_PLAIN, True), (MAX_PLAIN + 1, False)]


@pytest.mark.parametrize(("size", "fits"), SIZES)
def test_the_bound_is_exact(size: int, fits: bool) -> None:
    data = gzip.compress(bytes(size))
    if fits:
        assert len(decompress(data)) == size
    else:
        with pytest.raises(TooLargeError):
            decompress(data)


async def test_more_exports_at_a_time_than_allowed_are_told_to_come_again(
    receiver: Receiver, send: Reply
) -> None:
    receiver.wait = asyncio.Event()
    busy = [asyncio.create_task(send.http(GOOD)) for _ in range(MAX_EXPORTS)]
    async with asyncio.timeout(10):
        while len(receiver.exports) < MAX_EXPORTS:
            await asyncio.sleep(0.001)
    assert await send.http(GOOD) == 503
    assert await send.grpc(GOOD) == "UNAVAILABLE"
    receiver.wait.set()
    assert await asyncio.gather(*busy) == [200] * MAX_EXPORTS


async def test_an_address_that_is_taken_is_an_error(receiver: Receiver) -> None:
    for addresses in ((("127.0.0.1", receiver.ports[0]), None), (None, ("127.0.0.1", receiver.ports[1]))):
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            async with receiving(receiver.take, *addresses):
                pass


def test_what_is_no_gzip_is_malformed() -> None:
    with pytest.raises(MalformedError):
        decompress(b"hello")
