"""Takes the engine's spans: OTLP over gRPC and over HTTP with protobuf bodies, both with gzip.

What comes in is bounded before and after decompression and in number; what is refused is told to the
engine and costs nothing else. The callback gets the bytes of each export, once they are known to be small.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from aiohttp import web

from sidecar.core.otlp_frames import MalformedError

MAX_BYTES = 4 << 20  # of an export as it comes
MAX_PLAIN = 16 << 20  # of one decompressed
MAX_EXPORTS = 8  # at a time
BODY_SECONDS = 10.0
BIG = 65536  # is decompressed in a thread

Take = Callable[[bytes], Awaitable[None]]
"""Gets an export. Raises MalformedError for what is none."""

_SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
_PROTOBUF: Final = "application/x-protobuf"
_GZIP_MAGIC: Final = b"\x1f\x8b"  # no export begins with it: field 3 of wire type 7 there is none
_IDENTITY_AND_GZIP: Final = 0b101  # gRPC's bit set of compression algorithms


class TooLargeError(Exception):
    """More bytes than an export may have."""


def decompress(data: bytes) -> bytes:
    """A gzip member's content. Raises TooLargeError beyond MAX_PLAIN, MalformedError for what is none."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        plain = inflate.decompress(data, MAX_PLAIN)
        if inflate.unconsumed_tail or (not inflate.eof and inflate.decompress(b"", 1)):
            raise TooLargeError
    except zlib.error:
        raise MalformedError("not gzip") from None
    if not inflate.eof:
        raise MalformedError("cut off")
    return plain


async def _plain(data: bytes) -> bytes:
    return decompress(data) if len(data) < BIG else await asyncio.to_thread(decompress, data)


@asynccontextmanager
async def receiving(
    take: Take, grpc_address: tuple[str, int] | None, http_address: tuple[str, int] | None
) -> AsyncIterator[tuple[int | None, int | None]]:
    """Receive spans; gives the ports of gRPC and HTTP.

    Raises OSError when an address can't be bound, ImportError for gRPC without `grpcio`.
    """
    slots = asyncio.Semaphore(MAX_EXPORTS)
    async with AsyncExitStack() as stack:
        ports = [
            None if address is None else await stack.enter_async_context(listen(take, slots, *address))
            for listen, address in ((_grpc, grpc_address), (_http, http_address))
        ]
        yield ports[0], ports[1]


# --- HTTP


@asynccontextmanager
async def _http(take: Take, slots: asyncio.Semaphore, host: str, port: int) -> AsyncIterator[int]:
    async def traces(request: web.Request) -> web.Response:
        if slots.locked():
            return web.Response(status=503, headers={"Retry-After": "1"})
        async with slots:
            return await _receive(request, take)

    application = web.Application()
    application.router.add_post("/v1/traces", traces)
    runner = web.AppRunner(
        application, access_log=None, handle_signals=False, shutdown_timeout=1.0, auto_decompress=False
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _receive(request: web.Request, take: Take) -> web.Response:
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if request.content_type != _PROTOBUF or coding not in ("identity", "gzip"):
        return web.Response(status=415, text="only protobuf, plain or gzip")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await _body(request)
        await take(await _plain(data) if coding == "gzip" else data)
    except TooLargeError:
        return web.Response(status=413, headers={"Connection": "close"})
    except MalformedError as wrong:
        return web.Response(status=400, text=str(wrong))
    except TimeoutError:
        return web.Response(status=408, headers={"Connection": "close"})
    return web.Response(content_type=_PROTOBUF)  # an empty ExportTraceServiceResponse


async def _body(request: web.Request) -> bytes:
    data = bytearray()
    if (request.content_length or 0) > MAX_BYTES:
        raise TooLargeError
    async for piece in request.content.iter_any():
        data += piece
        if len(data) > MAX_BYTES:
            raise TooLargeError
    return bytes(data)


# --- gRPC


@asynccontextmanager
async def _grpc(take: Take, slots: asyncio.Semaphore, host: str, port: int) -> AsyncIterator[int]:
    import grpc

    async def export(data: bytes, context: Any) -> bytes:
        if slots.locked():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        async with slots:
            try:
                await take(await _plain(data) if data.startswith(_GZIP_MAGIC) else data)
            except TooLargeError:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
            except MalformedError as wrong:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(wrong))
        return b""

    handler = grpc.method_handlers_generic_handler(
        _SERVICE, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    server = grpc.aio.server(
        handlers=[handler],
        maximum_concurrent_rpcs=4 * MAX_EXPORTS,
        options=[
            ("grpc.max_receive_message_length", MAX_BYTES),
            # Decompressed here: gRPC has one bound for before and after, older ones none for after.
            ("grpc.per_message_decompression", 0),
            ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_AND_GZIP),
            ("grpc.so_reuseport", 0),
        ],
    )
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as failed:
        raise OSError(f"{host}:{port}: {failed}") from None
    if not bound:
        raise OSError(f"{host}:{port} can't be bound")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(1.0)
