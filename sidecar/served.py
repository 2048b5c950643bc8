"""Which models the engine serves: the only names that become labels.

Asks `GET /v1/models` (OpenAI's list, which vLLM, SGLang, llama.cpp and most others answer), often until
it succeeds and seldom after that; also what readiness knows of the engine. That the engine does not answer,
or won't tell its models, is logged when it begins and when it is over.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

import aiohttp
import msgspec

log = logging.getLogger("sidecar")

RETRY_SECONDS = 2.0
REFRESH_SECONDS = 60.0
TIMEOUT_SECONDS = 5.0
MAX_PAGE = 1 << 20
_WONT_TELL = (401, 403, 404)


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None  # of an adapter: the model that it is one of (vLLM)


class _Models(msgspec.Struct):
    data: list[_Model] = []


class ServedModels:
    """Learns served names and hands them to `learn`; `reachable` tells whether the engine answered last."""

    def __init__(
        self,
        upstream: str,
        configured: Iterable[str],
        learn: Callable[[Iterable[str]], None],
        api_key: Callable[[], str] = str,
    ) -> None:
        """`api_key` is asked each time; an empty one is not sent."""
        self._url = upstream.rstrip("/") + "/v1/models"
        self._learn = learn
        self._api_key = api_key
        self._parents: dict[str, str] = {}
        self.reachable = False
        self.asked = asyncio.Event()  # once, whatever came of it
        known = tuple(configured)
        self._configured = bool(known)
        self._trouble: str | None = None
        learn(known)

    async def watch(self) -> None:
        """Run until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                seldom, trouble = await self._ask(session)
                self.asked.set()
                self._tell(trouble)
                await asyncio.sleep(REFRESH_SECONDS if seldom and self.reachable else RETRY_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession) -> tuple[bool, str]:
        """(whether asking seldom is enough from now on, what is wrong)"""
        key = self._api_key()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with session.get(self._url, headers=headers) as response:
                self.reachable = response.status < 500
                page = await _all(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.reachable = False
            return False, f"the engine does not answer {self._url} ({type(error).__name__})"
        if not self.reachable:
            return False, f"the engine answers {self._url} with status {response.status}"
        models = _models(page) if response.status == 200 else []
        names = [model.id for model in models]
        self._parents = {model.id: model.parent for model in models if model.parent}
        self._learn(names)
        if names or self._configured:
            return bool(names) or response.status in _WONT_TELL, ""
        return response.status in _WONT_TELL, (
            f"the engine does not list its models at {self._url} (status {response.status}): until `models` "
            "names them, or `engine.api_key_env` gives a key that may, all are counted as `other`"
        )

    def base_of(self, name: str) -> str:
        """The model of an adapter; the engine counts its requests as that model's."""
        return self._parents.get(name, name)

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        elif self._trouble and not trouble:
            log.warning("the engine answers and its models are known")
        self._trouble = trouble


async def _all(response: aiohttp.ClientResponse) -> bytes:
    """The body, cut at MAX_PAGE."""
    page = bytearray()
    async for piece in response.content.iter_any():
        page += piece
        if len(page) >= MAX_PAGE:
            break
    return bytes(page)


def _models(page: bytes) -> list[_Model]:
    try:
        return msgspec.json.decode(page, type=_Models).data
    except (ValueError, RecursionError):
        return []
