"""The HTTP side: vLLM's routes on aiohttp.

The head of a stream goes out at once, also while the request queues, as vLLM's does. A client that goes
away cancels its handler, which frees the sequences of its request.
"""

import asyncio
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.emulator import wire
from sidecar.emulator.asked import Asked, AskedError
from sidecar.emulator.clock import WallClock
from sidecar.emulator.engine import Ended, Engine, Watchers
from sidecar.emulator.exchange import ENDPOINTS, Endpoint, EngineError, Exchange
from sidecar.emulator.exporter import Exporter
from sidecar.emulator.exposition import CONTENT_TYPE, Exposition
from sidecar.emulator.options import Options, fault_of
from sidecar.emulator.scheduler import Step
from sidecar.emulator.spans import span_of
from sidecar.emulator.truth import Truths

VERSION = "0.32.0"
KEEP_ALIVE_SECONDS = 5.0
"""uvicorn's default, which vLLM keeps."""
MAX_BODY_BYTES = 256 * 1024 * 1024


class Server:
    """The routes. Build it inside a running event loop. Raises OptionsError."""

    def __init__(self, options: Options) -> None:
        self.options, self.context = options, options.context
        self.truths = Truths(options.truth)
        self.engine = Engine(options, Watchers(self._stepped, self._ended))
        self.clock = WallClock(time.time(), self.engine.started, options.clock)
        self.exposition = Exposition(
            options.models[0], options.limits, self.context, self.clock, self.engine.scheduler
        )
        self._exporter = None if options.otlp is None else Exporter(options.otlp, options.otlp_delay)
        self._requests = 0

    def application(self) -> web.Application:
        """An aiohttp application with vLLM's routes and `/emulator/truth`."""
        application = web.Application(middlewares=[self._vllm_errors], client_max_size=MAX_BODY_BYTES)
        application.on_response_prepare.append(self._add_headers)
        application.on_cleanup.append(self._close)
        for path, endpoint in ENDPOINTS.items():
            application.router.add_post(path, self._generating(endpoint))
        for path, handler in {
            "/v1/models": self._models,
            "/health": self._health,
            "/version": self._version,
            "/metrics": self._metrics,
            "/emulator/truth": self._truth,
        }.items():
            application.router.add_get(path, handler)
        return application

    def _stepped(self, step: Step) -> None:
        self.exposition.stepped(step)

    def _ended(self, ended: Ended) -> None:
        self.exposition.ended(ended)
        self.truths.add(ended)
        if self._exporter is not None and (span := span_of(ended, self.clock)) is not None:
            self._exporter.add(span)

    def _generating(self, endpoint: Endpoint) -> Handler:
        async def generate(request: web.Request) -> web.StreamResponse:
            wants = self._admit(endpoint.read(await request.read(), self.options.models, self.context))
            self._requests += 1
            fault = fault_of(self.options.faults, self._requests)
            exchange = Exchange(self.engine, self.clock, self.options, endpoint, request, wants, fault)
            return await (exchange.stream() if wants.stream else exchange.answer())

        return generate

    def _admit(self, wants: Asked) -> Asked:
        """What the server's options make of it. Raises AskedError when the queue is full."""
        api = self.options.api
        if api.max_queued is not None and self.engine.scheduler.queued >= api.max_queued:
            self.exposition.rejected()
            raise AskedError(503, "The request queue is full.", "ServiceUnavailableError", None)
        if api.force_include_usage:
            return replace(wants, include_usage=True, continuous_usage=True)
        return wants

    async def _models(self, _request: web.Request) -> web.Response:
        created = int(self.clock.at(self.engine.started))
        return _json(wire.models_body(self.options.models, created, self.context))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return _json(b'{"version":"%b"}' % VERSION.encode())

    async def _metrics(self, _request: web.Request) -> web.Response:
        self.engine.turn()
        return web.Response(body=self.exposition.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _truth(self, _request: web.Request) -> web.Response:
        return web.json_response(list(self.truths.latest))

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "uvicorn"
        response.headers["Vary"] = "Origin"
        response.headers["Date"] = formatdate(self.clock.at(time.monotonic()), usegmt=True)
        if self.options.api.request_id_headers:
            response.headers["X-Request-Id"] = request.headers.get("X-Request-Id") or uuid.uuid4().hex

    @web.middleware
    async def _vllm_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refusals in OpenAI's shape; unknown routes as FastAPI answers them."""
        try:
            return await handler(request)
        except AskedError as refused:
            return _json(wire.error_body(refused), refused.status)
        except EngineError:
            return _json(wire.BROKEN_BODY, 500)
        except web.HTTPException as error:
            return _json(b'{"detail":"%b"}' % error.reason.encode(), error.status)

    async def _close(self, _application: web.Application) -> None:
        self.engine.close()
        self.truths.close()
        if self._exporter is not None:
            await self._exporter.close()


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


async def start(options: Options, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Listen; port 0 takes a free one. Returns the runner (call its `cleanup`) and HOST:PORT.

    Raises OSError when the address can't be had, OptionsError.
    """
    runner = web.AppRunner(
        Server(options).application(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError:
        await runner.cleanup()
        raise
    bound_host, bound_port = runner.addresses[0][:2]
    return runner, f"{bound_host}:{bound_port}"


async def serve(options: Options, address: tuple[str, int], announce: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT; `announce(listen)` is called when ready. Raises as `start`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner, listen = await start(options, *address)
    try:
        announce(listen)
        await stop.wait()
    finally:
        await runner.cleanup()
