"""The HTTP side: vLLM's routes on aiohttp.

The head of a stream goes out at once, also while the request queues, as vLLM's does. Each event is one
HTTP chunk. A client that goes away cancels its handler, which frees the slot.
"""

import asyncio
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from sidecar.emulator import asked, wire
from sidecar.emulator.asked import Asked, AskedError
from sidecar.emulator.engine import Engine, Run
from sidecar.emulator.exposition import CONTENT_TYPE, Exposition
from sidecar.emulator.schedule import Schedule, TimeModel

VERSION = "0.32.0"
KEEP_ALIVE_SECONDS = 5.0
"""uvicorn's default, which vLLM keeps."""
COMMON_HEADERS = {"Server": "uvicorn", "Vary": "Origin"}
MAX_BODY_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What the emulated engine is."""

    models: tuple[str, ...] = ("emulated",)
    times: TimeModel = field(default_factory=TimeModel)
    seed: int = 0
    natural_tokens: int = 64
    """Output tokens of a request without a limit, without the end token."""
    max_model_len: int = 32_768
    kv_tokens: int = 131_072


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One generating endpoint: how its request is read and its response written."""

    id_prefix: str
    read: Callable[[bytes, tuple[str, ...], int], Asked]
    events: Callable[[wire.Reply], wire.EventWriter]
    body: Callable[[wire.Reply], bytes]


ENDPOINTS = {
    "/v1/chat/completions": Endpoint("chatcmpl-", asked.read_chat, wire.chat_events, wire.chat_body),
    "/v1/completions": Endpoint("cmpl-", asked.read_completion, wire.completion_events, wire.completion_body),
}


class Server:
    """The routes. Build it inside a running event loop."""

    def __init__(self, options: Options) -> None:
        self.options = options
        exposition = Exposition(options.models[0], options.kv_tokens)
        self.engine = Engine(Schedule(options.times, options.seed), exposition, options.natural_tokens)
        self._started = int(time.time())

    def application(self) -> web.Application:
        """An aiohttp application with vLLM's routes and `/emulator/truth`."""
        application = web.Application(middlewares=[_plain_errors], client_max_size=MAX_BODY_BYTES)
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

    def _generating(self, endpoint: Endpoint) -> Handler:
        async def generate(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            wants = endpoint.read(body, self.options.models, self.options.max_model_len)
            name = request.headers.get("X-Request-Id") or secrets.token_hex(8)
            run = self.engine.submit(wants, name)
            reply = wire.Reply(wants, run.answers, endpoint.id_prefix + name, int(time.time()))
            try:
                if wants.stream:
                    return await _stream(request, run, endpoint.events(reply))
                async for _ in run.tokens():
                    pass
                return _json(endpoint.body(reply))
            finally:
                self.engine.leave(run)

        return generate

    async def _models(self, _request: web.Request) -> web.Response:
        return _json(wire.models_body(self.options.models, self._started, self.options.max_model_len))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(headers=COMMON_HEADERS)

    async def _version(self, _request: web.Request) -> web.Response:
        return _json(b'{"version":"%b"}' % VERSION.encode())

    async def _metrics(self, _request: web.Request) -> web.Response:
        self.engine.turn()
        page = self.engine.exposition.render(self.engine.schedule)
        return web.Response(body=page, headers=COMMON_HEADERS | {"Content-Type": CONTENT_TYPE})

    async def _truth(self, _request: web.Request) -> web.Response:
        return web.json_response(list(self.engine.truths))


async def _stream(request: web.Request, run: Run, writer: wire.EventWriter) -> web.StreamResponse:
    headers = COMMON_HEADERS | {"Content-Type": "text/event-stream; charset=utf-8"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    async for choice in run.tokens():
        for event in writer.token(choice):
            await response.write(event)
    for event in writer.end():
        await response.write(event)
    await response.write_eof()
    return response


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers=COMMON_HEADERS, content_type="application/json")


@web.middleware
async def _plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refusals in OpenAI's shape; unknown routes as FastAPI answers them."""
    try:
        return await handler(request)
    except AskedError as refused:
        return _json(wire.error_body(refused), refused.status)
    except web.HTTPException as error:
        return _json(b'{"detail":"%b"}' % error.reason.encode(), error.status)


async def start(options: Options, host: str, port: int) -> tuple[web.AppRunner, str]:
    """Listen; port 0 takes a free one. Returns the runner (call its `cleanup`) and HOST:PORT.

    Raises OSError when the address can't be had.
    """
    runner = web.AppRunner(
        Server(options).application(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=1024).start()
    bound_host, bound_port = runner.addresses[0][:2]
    return runner, f"{bound_host}:{bound_port}"


async def serve(options: Options, address: tuple[str, int], announce: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT; `announce(listen)` is called when ready. Raises OSError."""
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
