"""Reads the engine's metrics page: one reader an address, one reading at a time.

Reading is not free for the engine (vLLM renders its page on the loop that serves its API), so a reader
waits 100 times what a reading takes, at least 5 s. Nothing here can touch a relayed byte: a page that is
slow, dead, huge or wrong costs the engine view of its address and nothing else, and values of a page that
could not be read again are not shown.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic

from sidecar import catalogue
from sidecar.catalogue import Family
from sidecar.config import EngineConfig
from sidecar.core.engine_window import EngineWindow
from sidecar.core.signals import Reading
from sidecar.engines.reader import ModelLabel
from sidecar.exposition import Series
from sidecar.scraper.reader import EngineReader
from sidecar.scraper.targets import Target, resolve, targets

__all__ = ["EngineReader", "Scraper", "Target"]

RESOLVE_SECONDS = 60.0

Resolve = Callable[[str], Awaitable[list[str]]]


class Scraper:
    """Keeps a reader for each address of the engine, and shows what they read."""

    def __init__(
        self,
        config: EngineConfig,
        upstream: str,
        model_label: ModelLabel,
        tls: ssl.SSLContext | bool = True,
        resolve: Resolve = resolve,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._config, self._model_label, self._tls = config, model_label, tls
        self._resolve, self._clock = resolve, clock
        self._urls = config.metrics or (upstream,)
        self._found: dict[str, list[Target]] = {}  # by URL, as last resolved
        self._readers: dict[Target, tuple[EngineReader, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(RESOLVE_SECONDS)
        finally:
            await self._end(list(self._readers))

    async def look(self) -> None:
        """Resolve the names again; begin and end readers accordingly."""
        for url in self._urls:
            with contextlib.suppress(OSError):  # the last answer stands
                self._found[url] = targets(url, await self._resolve(url))
        # Two names may lead to one address: it is read once.
        named = {
            target.instance: target
            for url in reversed(self._urls)
            for target in reversed(self._found.get(url) or targets(url, ()))
        }
        wanted = set(named.values())
        await self._end([target for target in self._readers if target not in wanted])
        for target in wanted - set(self._readers):
            reader = EngineReader(target, self._config, self._model_label, self._tls, self._clock)
            self._readers[target] = (reader, asyncio.create_task(reader.run()))

    async def _end(self, gone: list[Target]) -> None:
        tasks = [self._readers.pop(target)[1] for target in gone]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what was read

    @property
    def readings(self) -> dict[str, tuple[Reading, ...]]:
        """By engine instance, the readings of the run that goes on; `engine_window.between` takes any two."""
        return {reader.instance: tuple(reader.history.readings) for reader, _ in self._readers.values()}

    @property
    def windows(self) -> dict[str, EngineWindow]:
        """By engine instance that is up, what it counted between its last two readings of one run."""
        up = [reader for reader, _ in self._readers.values() if reader.state == ""]
        found = {reader.instance: reader.history.window for reader in up}
        return {instance: window for instance, window in found.items() if window is not None}

    def families(self) -> Iterator[tuple[Family, list[Series]]]:
        """The engine view as it is now."""
        now = self._clock()
        shown = [reader.shown(now) for reader, _ in self._readers.values()]
        for family in catalogue.ENGINE_VIEW:
            yield family, [series for each in shown for series in each.get(family.name, ())]
