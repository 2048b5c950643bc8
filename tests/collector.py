"""A collector on loopback, over HTTP and gRPC, that keeps what it gets and answers as it is told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WITHIN = 20.0


class Collector:
    """`answers` are used up one an export; after that every export is taken."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Any] = []
        self.requests: list[Any] = []  # parsed
        self.headers: list[dict[str, str]] = []
        self._changed = asyncio.Event()

    @property
    def spans(self) -> list[Span]:
        """All that came."""
        return [
            span
            for request in self.requests
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]

    def took(self, request: Any, headers: dict[str, str]) -> Any:
        """Note an export; returns what to answer, None for yes."""
        answer = self.answers.pop(0) if self.answers else None
        self.headers.append(headers)
        if answer is None or callable(answer):
            self.requests.append(request)
        self._changed.set()
        return answer

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so`, looked at after every export."""
        async with asyncio.timeout(WITHIN):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def http_collector() -> AsyncIterator[Collector]:
    """An answer is a web.Response, or a function that gives one."""
    collector = Collector()

    async def export(request: web.Request) -> web.StreamResponse:
        parsed = trace_service_pb2.ExportTraceServiceRequest.FromString(await request.read())
        answer = collector.took(parsed, dict(request.headers) | {"path": request.path})
        if callable(answer):
            answer = answer()
        return answer if answer is not None else web.Response(content_type="application/x-protobuf")

    application = web.Application(client_max_size=64 << 20)
    application.router.add_post("/{path:.*}", export)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()


@asynccontextmanager
async def grpc_collector() -> AsyncIterator[Collector]:
    """An answer is a grpc.StatusCode, or a function that gives an ExportTraceServiceResponse."""
    collector = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        async def Export(self, request: Any, context: Any) -> Any:
            answer = collector.took(request, {str(k): str(v) for k, v in context.invocation_metadata()})
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "as told")
            return trace_service_pb2.ExportTraceServiceResponse() if answer is None else answer()

    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await server.stop(0.1)


COLLECTORS = {"http": http_collector, "grpc": grpc_collector}
