"""The admin pages: metrics, health, readiness, drain, the settings in force, the latest requests.

They share the loop with the streams, so nothing long happens in one turn of it: the metrics page is
rendered and compressed slice by slice, and the streams run between two slices. No page holds anything
that a request or a response said. Errors are short JSON.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from sidecar import __version__, catalogue
from sidecar.config import Config
from sidecar.exposition import END
from sidecar.history import History
from sidecar.metrics import Metrics
from sidecar.windows import Windows

log = logging.getLogger("sidecar.admin")

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# (type, version) of an Accept header that we can serve, and what is then served. `*` is what curl sends.
_FORMATS = {
    ("application/openmetrics-text", "1.0.0"): OPENMETRICS,
    ("application/openmetrics-text", ""): OPENMETRICS,
    ("text/plain", "0.0.4"): TEXT,
    ("text/plain", ""): TEXT,
    ("text/*", ""): TEXT,
    ("*/*", ""): TEXT,
}
_ROWS_A_TURN = 50

_LINKS = (
    ("/metrics", "metrics, for Prometheus"),
    ("/api/requests", "the latest, the slowest and the failed requests"),
    ("/api/window", "where the time of the last minute went"),
    ("/config", "the settings in force"),
    ("/-/ready", "readiness"),
    ("/-/healthy", "health"),
)

Ready = Callable[[], tuple[bool, str]]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Pages:
    """The handlers, and what they show."""

    def __init__(
        self,
        metrics: Metrics,
        history: History,
        windows: Windows,
        config: Config,
        ready: Ready,
        drain: Callable[[], object],
    ) -> None:
        self._metrics, self._history, self._config = metrics, history, config
        self._windows = windows
        self._ready, self._drain = ready, drain
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)
        metrics.gauge(catalogue.CONFIG_INFO.name, config.digest()).set(1)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """`GET /metrics`: text or OpenMetrics by Accept, gzip by Accept-Encoding."""
        content_type = negotiate(request.headers.getall("Accept", []))
        response = web.StreamResponse(
            headers={"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        )
        gzip = None
        if accepts_gzip(request.headers.getall("Accept-Encoding", [])):
            response.headers["Content-Encoding"] = "gzip"
            gzip = zlib.compressobj(level=1, wbits=31)
        await response.prepare(request)
        try:
            for piece in self._page(content_type == OPENMETRICS):
                data = piece if gzip is None else gzip.compress(piece)
                if data:
                    await response.write(data)
                await asyncio.sleep(0)
            await response.write_eof(b"" if gzip is None else gzip.flush())
        except ConnectionError:  # the scraper did not wait
            pass
        return response

    def _page(self, openmetrics: bool) -> Iterator[bytes]:
        yield from self._metrics.render_slices(openmetrics)
        generate = generate_openmetrics if openmetrics else generate_latest
        yield generate(self._process).removesuffix(END)
        if openmetrics:
            yield END

    async def healthy(self, _request: web.Request) -> web.Response:
        """`GET /-/healthy`: the process serves; it never looks at the engine."""
        return web.json_response({"status": "healthy"})

    async def ready(self, _request: web.Request) -> web.Response:
        """`GET /-/ready`: 200, or 503 with the reason."""
        is_ready, reason = self._ready()
        return web.json_response({"ready": is_ready, "reason": reason}, status=200 if is_ready else 503)

    async def drain(self, request: web.Request) -> web.Response:
        """`POST /-/drain`: begin to drain, as SIGTERM does. A page of another site may not do it."""
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            return _error(403, "drain is not for other sites' pages")
        self._drain()
        return web.json_response({"status": "draining"}, status=202)

    async def config(self, _request: web.Request) -> web.Response:
        """`GET /config`: the settings in force; as a file they would give the same."""
        return web.Response(
            text=json.dumps(self._config.shown(), indent=2) + "\n", content_type="application/json"
        )

    async def requests(self, _request: web.Request) -> web.Response:
        """`GET /api/requests`: counts and times of single requests."""
        self._metrics.refresh()  # what has just ended is there
        views: dict[str, list[Any]] = {"recent": [], "slowest": [], "failed": []}
        for index, (view, kept) in enumerate(self._history.rows(monotonic()), 1):
            views[view].append(kept.as_json())
            if not index % _ROWS_A_TURN:
                await asyncio.sleep(0)
        return web.json_response(views)

    async def window(self, _request: web.Request) -> web.Response:
        """`GET /api/window`: means of the latest window, by model."""
        self._metrics.refresh()
        return web.json_response({"windows": self._windows.as_json(monotonic())})

    async def index(self, _request: web.Request) -> web.Response:
        """`GET /`: where to go."""
        items = "".join(f'<li><a href="{path}">{path}</a> {text}</li>' for path, text in _LINKS)
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>inference sidecar</title>'
            f"<h1>inference sidecar {__version__}</h1><ul>{items}</ul>"
            "<p><code>POST /-/drain</code> begins to drain.</p></html>"
        )
        return web.Response(text=page, content_type="text/html")


def build_admin(
    metrics: Metrics,
    history: History,
    windows: Windows,
    config: Config,
    ready: Ready,
    drain: Callable[[], object],
) -> web.Application:
    """The admin application. `ready` gives (is it, why not); `drain` begins to drain and returns at once."""
    pages = _Pages(metrics, history, windows, config, ready, drain)
    application = web.Application(middlewares=[_errors_as_json])
    application.add_routes(
        [
            web.get("/", pages.index),
            web.get("/metrics", pages.metrics, allow_head=False),
            web.get("/config", pages.config),
            web.get("/api/requests", pages.requests),
            web.get("/api/window", pages.window),
            web.get("/-/healthy", pages.healthy),
            web.get("/-/ready", pages.ready),
            web.post("/-/drain", pages.drain),
        ]
    )
    return application


@asynccontextmanager
async def listening(application: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve the pages; gives the bound address as `host:port`. Raises OSError when it can't be bound."""
    runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        yield f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()


def negotiate(accept: list[str]) -> str:
    """The content type to serve, as Prometheus's own library chooses: the first of the best that is known."""
    rows = sorted(_preferences(accept), key=lambda row: -row[2])
    for media_type, version, quality in rows:
        if quality > 0 and (media_type, version) in _FORMATS:
            return _FORMATS[media_type, version]
    return TEXT


def accepts_gzip(accept_encoding: list[str]) -> bool:
    """Does Accept-Encoding name gzip, not with q=0?"""
    return any(coding in ("gzip", "x-gzip") and q > 0 for coding, _, q in _preferences(accept_encoding))


def _preferences(values: list[str]) -> Iterator[tuple[str, str, float]]:
    """(value, its version parameter, q) of each element (RFC 9110 section 12.4.2); a bad q leaves it out."""
    for element in ",".join(values).split(","):
        value, *parameters = element.split(";")
        found = {"version": "", "q": "1"}
        for parameter in parameters:
            name, _, content = parameter.partition("=")
            found[name.strip().lower()] = content.strip().strip('"')
        try:
            yield value.strip().lower(), found["version"], float(found["q"])
        except ValueError:
            continue


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        response = _error(error.status, error.reason)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception:
        log.exception(
            "admin page failed", extra={"route": getattr(request.match_info.route.resource, "canonical", "")}
        )
        return _error(500, "internal error")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
