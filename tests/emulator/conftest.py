"""A running emulator on a port of its own, and a receiver for its spans."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from sidecar.emulator.costs import StepCosts
from sidecar.emulator.options import Options
from sidecar.emulator.server import start

StartEngine = Callable[..., Awaitable[str]]

FAST = StepCosts(fixed=0.001, per_prefill_token=0.0, per_sequence=0.0)


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Call it with step costs and other options: the base URL of a new emulator."""
    async with AsyncExitStack() as stack:

        async def begin(costs: StepCosts = FAST, **others) -> str:
            options = Options(models=("tiny-chat",), costs=costs, **others)
            runner, listen = await start(options, "127.0.0.1", 0)
            stack.push_async_callback(runner.cleanup)
            return f"http://{listen}"

        yield begin


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


class Collector:
    """An OTLP receiver: the spans that were posted to it, and the resource of each."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.posts: list[tuple[str, str | None]] = []
        self.received: list[tuple[Any, Any, Any]] = []
        self._arrived = asyncio.Condition()

    async def spans(self, count: int) -> list[Any]:
        """The first `count`, as soon as they are there."""
        async with asyncio.timeout(30), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return [span for _, _, span in self.received[:count]]

    async def posted(self, count: int) -> None:
        """Wait for that many posts."""
        async with asyncio.timeout(30), self._arrived:
            await self._arrived.wait_for(lambda: len(self.posts) >= count)

    async def receive(self, request: web.Request) -> web.Response:
        export = ExportTraceServiceRequest.FromString(await request.read())
        async with self._arrived:
            self.posts.append((request.path, request.headers.get("Content-Type")))
            self.received += [
                (of_resource.resource, of_scope.scope, span)
                for of_resource in export.resource_spans
                for of_scope in of_resource.scope_spans
                for span in of_scope.spans
            ]
            self._arrived.notify_all()
        return web.Response(status=self.status)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    receiver = Collector()
    runner = web.ServerRunner(web.Server(receiver.receive))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield receiver
    await runner.cleanup()
