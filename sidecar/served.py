"""Which models the engine serves: the only names that become labels.

Asks `GET /v1/models` (OpenAI's list, which vLLM, SGLang, llama.cpp and most others answer), often until
it succeeds and seldom after that; also what readiness knows of the engine.
"""

import asyncio
from collections.abc import Callable, Iterable

import aiohttp
import msgspec

RETRY_SECONDS = 2.0
REFRESH_SECONDS = 60.0
TIMEOUT_SECONDS = 5.0
MAX_PAGE = 1 << 20


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class ServedModels:
    """Learns served names and hands them to `learn`; `reachable` tells whether the engine answered last."""

    def __init__(
        self, upstream: str, configured: Iterable[str], learn: Callable[[Iterable[str]], None]
    ) -> None:
        self._url = upstream.rstrip("/") + "/v1/models"
        self._learn = learn
        self.reachable = False
        self.asked = asyncio.Event()  # once, whatever came of it
        learn(configured)

    async def watch(self) -> None:
        """Run until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                known = await self._ask(session)
                self.asked.set()
                await asyncio.sleep(REFRESH_SECONDS if known and self.reachable else RETRY_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(self._url) as response:
                self.reachable = response.status < 500
                page = await response.content.read(MAX_PAGE)
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.reachable = False
            return False
        try:
            names = [model.id for model in msgspec.json.decode(page, type=_Models).data]
        except msgspec.DecodeError:
            return response.status in (401, 403, 404)  # it will not tell; ask seldom
        self._learn(names)
        return bool(names)
