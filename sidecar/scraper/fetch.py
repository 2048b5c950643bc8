"""The requests to one address: where its metrics page is, and its bytes within bounds.

The page is looked for in an order in which nothing is taken away: reading TensorRT-LLM's `/metrics` or
`/perf_metrics` removes records, so `/v1/models` is asked first who answers there.
"""

import json
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from sidecar.config import ConfigError, EngineConfig
from sidecar.engines import ENGINES
from sidecar.engines.page import MAX_JSON, MAX_PAGE, PageError, text_of
from sidecar.engines.table import Engine
from sidecar.scraper.targets import Target

START_HEADER = "Process-Start-Time-Unix"  # llama.cpp's; not a time, but another number in each run
# Where a page may be, those first whose reading takes nothing away on any engine.
PATHS = ("/prometheus/metrics", "/v1/metrics", "/metrics")


class Failed(Exception):  # noqa: N818 -- it says what a reading has
    """A page could not be had. `reason` is one of `catalogue.SCRAPE_FAILURES`; `lasting`: it won't pass."""

    def __init__(self, reason: str, detail: str, lasting: bool = False) -> None:
        super().__init__(detail)
        self.reason, self.lasting = reason, lasting


class Answer(NamedTuple):
    """What an address answered. `at`: when its head came, the engine had the page then; `took`: all of it."""

    status: int
    headers: Any
    body: bytes
    at: float
    took: float


class Page(NamedTuple):
    """A metrics page. `started` is what the engine told of its start beside the page."""

    text: str
    started: float | None
    at: float
    took: float


class Fetcher:
    """Asks one address; a context manager. Every method raises Failed and nothing else."""

    def __init__(
        self, target: Target, config: EngineConfig, tls: ssl.SSLContext | bool, clock: Callable[[], float]
    ) -> None:
        self._target, self._config, self._clock = target, config, clock
        self._path = target.path
        self._engine: Engine | None = ENGINES.get(config.kind)
        self._barred: set[str] = set()
        # A connection each time: engines close idle ones after 5 s, just when the next reading comes.
        connector = aiohttp.TCPConnector(
            ssl=tls, force_close=True, resolver=_Pinned(target.address) if target.address else None
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=config.timeout),
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
            auto_decompress=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._session.close()

    async def page(self) -> Page:
        """The metrics page, looked for as long as it is not known where it is."""
        if self._path:
            try:
                return await self._page(self._path)
            except Failed as failed:
                if failed.reason == "status":  # perhaps another engine is started there now
                    self._path = self._target.path
                raise
        refused = Failed("status", "this engine has no metrics page", lasting=True)
        for path in await self._paths():
            try:
                page = await self._page(path)
            except Failed as failed:
                if failed.reason not in ("status", "unauthorized", "not_metrics"):
                    raise
                refused = failed
            else:
                self._path = path
                return page
        raise refused

    async def _page(self, path: str) -> Page:
        if path in self._barred:
            raise Failed("not_metrics", "answered JSON; reading that again might take records away", True)
        answer = self._checked(await self.get(path))
        try:
            return Page(text_of(answer.body), _started(answer), answer.at, answer.took)
        except PageError as wrong:
            if answer.body.lstrip()[:1] in (b"[", b"{"):
                self._barred.add(path)
            raise Failed("not_metrics", str(wrong), lasting=True) from None

    async def json(self, path: str) -> Any:
        """A JSON document, None when there is none."""
        return _decoded(await self.get(path))

    async def get(self, path: str) -> Answer:
        """Any answer, of whatever status."""
        begun, body = self._clock(), bytearray()
        try:
            key = self._config.api_key()
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            url = self._target.base + path
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                at = self._clock()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_PAGE:
                        raise Failed("too_large", f"more than {MAX_PAGE} bytes", lasting=True)
                return Answer(response.status, response.headers, bytes(body), at, self._clock() - begun)
        except ConfigError as wrong:
            raise Failed("unauthorized", str(wrong)) from None
        except TimeoutError:
            raise Failed("timeout", f"no page within {self._config.timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as wrong:
            raise Failed("unreachable", type(wrong).__name__) from None

    async def _paths(self) -> list[str]:
        if self._config.kind != "auto":
            return [ENGINES[self._config.kind].path] if ENGINES[self._config.kind].path else []
        models = await self.get("/v1/models")
        if models.status >= 500:  # it is not up; who it is, and so what may be read, is not known
            raise Failed("status", f"/v1/models answered {models.status}")
        owner = _owner(_decoded(models))
        self._engine = next((each for each in ENGINES.values() if each.owner and each.owner == owner), None)
        if self._engine is None:
            return list(PATHS)
        return [path for path in dict.fromkeys((self._engine.path, *PATHS)) if path not in self._engine.never]

    def _checked(self, answer: Answer) -> Answer:
        if answer.status in (401, 403):
            hint = "set engine.api_key_file or api_key_env"
            raise Failed("unauthorized", f"answered {answer.status}; {hint}", lasting=True)
        if answer.status != 200:
            hint = f"; {self._engine.title}: {self._engine.enable}" if self._engine else ""
            lasting = answer.status < 500 or answer.status == 501
            raise Failed("status", f"answered {answer.status}{hint}", lasting)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Failed("not_metrics", "compressed, which was not asked for", lasting=True)
        return answer


def _decoded(answer: Answer) -> Any:
    """The JSON of an answer, None when it has none. Bounded, for it is decoded in one turn of the loop."""
    if answer.status != 200 or len(answer.body) > MAX_JSON:
        return None
    try:
        return json.loads(answer.body)
    except ValueError:
        return None


def _started(answer: Answer) -> float | None:
    try:
        return float(answer.headers[START_HEADER])
    except (KeyError, ValueError):
        return None


def _owner(models: Any) -> str:
    """Who the first of `/v1/models` belongs to: the engine's name on most engines."""
    try:
        return str(models["data"][0]["owned_by"])
    except (LookupError, TypeError):
        return ""


class _Pinned(AbstractResolver):
    """One address of a name that has several; the name stays in Host and in the certificate's check."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        own = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [
            ResolveResult(
                hostname=host, host=self._address, port=port, family=own, proto=0, flags=socket.AI_NUMERICHOST
            )
        ]

    async def close(self) -> None:
        """Nothing to close."""
