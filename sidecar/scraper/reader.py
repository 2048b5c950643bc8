"""One address: its page read again and again, what came of it, and what of that may be shown now."""

import asyncio
import logging
import ssl
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median
from time import monotonic

from sidecar import catalogue
from sidecar.catalogue import Family
from sidecar.config import EngineConfig
from sidecar.core.engine_history import EngineHistory
from sidecar.core.signals import EngineSignals, Reading
from sidecar.engine_view import series_of
from sidecar.engines import ENGINES, detect
from sidecar.engines.page import MAX_SAMPLES, names, pieces, samples
from sidecar.engines.reader import ModelLabel, Series, gather, in_steps, wanted
from sidecar.engines.table import Engine
from sidecar.exposition import Counter, Gauge
from sidecar.exposition import Series as Shown
from sidecar.scraper.fetch import Failed, Fetcher, Page
from sidecar.scraper.targets import Target

log = logging.getLogger("sidecar.scraper")

MIN_INTERVAL = 5.0
INTERVAL_RATIO = 100  # an interval is so many times what a reading takes
STALE_INTERVALS = 3
PAUSE = 60.0  # after a failure that will not pass by itself
SERIES_A_TURN = 50
MAX_VERSION = 64


class EngineReader:
    """Reads the page of one address."""

    def __init__(
        self,
        target: Target,
        config: EngineConfig,
        model_label: ModelLabel,
        tls: ssl.SSLContext | bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.instance = target.instance
        self.history = EngineHistory()
        self.failures: Tally[str] = Tally()
        self.off = False  # for good: several engines answer here
        self.state: str | None = None  # why the last reading failed, "" when it did not; None: none yet
        self._target, self._config, self._model_label = target, config, model_label
        self._tls, self._clock = tls, clock
        self._lasting = False
        self._version = ""
        self._durations: deque[float] = deque(maxlen=20)
        self._series: dict[str, list[Shown]] = {}

    # --- reading

    async def run(self) -> None:
        """Read until cancelled, or until reading makes no sense here."""
        async with self.fetcher() as fetcher:
            while not self.off:
                await self.scrape(fetcher)
                await asyncio.sleep(self.pause)

    def fetcher(self) -> Fetcher:
        """What asks this address."""
        return Fetcher(self._target, self._config, self._tls, self._clock)

    @property
    def interval(self) -> float:
        """Seconds between two readings."""
        taken = median(self._durations) if self._durations else 0.0
        return self._config.interval or max(MIN_INTERVAL, INTERVAL_RATIO * taken)

    @property
    def pause(self) -> float:
        """Seconds until the next reading."""
        return max(self.interval, PAUSE) if self._lasting else self.interval

    async def scrape(self, fetcher: Fetcher) -> None:
        """One reading. Whatever goes wrong is counted and told, never raised."""
        try:
            page = await fetcher.page()
            signals = await self._read(page)
            self.history.add(Reading(page.at, signals))
            if self.history.several:
                self.off = True
                raise Failed("several_engines", "several engines answer here in turn; name each by itself")
            await self._render(signals)
            self._tell("", f"the page of {ENGINES[signals.engine].title} is read")
            if len(self.history.readings) == 1:
                self._version = await _version(fetcher, ENGINES[signals.engine])
        except Failed as failed:
            self._fail(failed)
        except Exception as fault:  # one of ours: it must not end the reader
            log.exception("reading an engine's page failed")
            self._fail(Failed("not_metrics", type(fault).__name__, lasting=True))

    async def _read(self, page: Page) -> EngineSignals:
        self._durations.append(page.took)
        engine = detect(await _names(page.text), self._config.kind)
        if engine is None:
            raise Failed("unknown_engine", "no table knows the metrics of this page", lasting=True)
        series = await _series(page.text, engine)
        steps = in_steps(series, engine, self._model_label, page.started)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                signals: EngineSignals = done.value
                return signals
            await asyncio.sleep(0)

    async def _render(self, signals: EngineSignals) -> None:
        series: dict[str, list[Shown]] = {}
        for count, (family, each) in enumerate(series_of(signals, self.instance), 1):
            series.setdefault(family.name, []).append(each)
            if not count % SERIES_A_TURN:
                await asyncio.sleep(0)
        self._series, self._lasting = series, False

    def _fail(self, failed: Failed) -> None:
        self.failures[failed.reason] += 1
        self._series, self._lasting = {}, failed.lasting
        self._tell(failed.reason, f"no engine view: {failed.reason}: {failed}")

    def _tell(self, state: str, message: str) -> None:
        """Once a change."""
        if state != self.state:
            log.log(logging.WARNING if state else logging.INFO, "engine %s: %s", self.instance, message)
        self.state = state

    # --- showing

    def shown(self, now: float) -> dict[str, list[Shown]]:
        """Family name -> series, as they are at `now`; what is too old is not there."""
        if self.state is None:
            return {}
        latest = self.history.latest
        fresh = latest is not None and now - latest.at <= STALE_INTERVALS * self.interval
        found = dict(self._series) if fresh else {}
        for family, value, *labels in self._own(now):
            series = (
                Counter(family, (self.instance, *labels))
                if family.kind == "counter"
                else Gauge(family, (self.instance, *labels))
            )
            series.value = value
            found.setdefault(family.name, []).append(series)
        return found

    def _own(self, now: float) -> Iterator[tuple[Family, float, *tuple[str, ...]]]:
        """What is known of the reading itself."""
        latest = self.history.latest
        yield catalogue.ENGINE_UP, int(self.state == "")
        yield catalogue.ENGINE_RESETS, self.history.resets
        for reason, count in self.failures.items():
            yield catalogue.ENGINE_SCRAPE_FAILURES, count, reason
        if latest is not None:
            yield catalogue.ENGINE_SCRAPE_AGE, now - latest.at
            yield catalogue.ENGINE_SCRAPE_DURATION, self._durations[-1]
            yield catalogue.ENGINE_INFO, 1, latest.signals.engine, self._version
        if self.off:
            for signal in catalogue.SIGNALS:
                yield catalogue.ENGINE_SIGNAL, 0, signal


async def _names(text: str) -> set[str]:
    found: set[str] = set()
    for lines in pieces(text):
        found |= names(lines)
        if len(found) > MAX_SAMPLES:
            raise Failed("too_large", f"more than {MAX_SAMPLES} metrics", lasting=True)
        await asyncio.sleep(0)
    return found


async def _series(text: str, engine: Engine) -> Series:
    asked, series, found = wanted(engine), Series(), 0
    for lines in pieces(text):
        read = [sample for sample in samples(lines, asked) if sample is not None]
        gather(read, engine, series)
        found += len(read)
        if found > MAX_SAMPLES:
            raise Failed("too_large", f"more than {MAX_SAMPLES} samples", lasting=True)
        await asyncio.sleep(0)
    return series


async def _version(fetcher: Fetcher, engine: Engine) -> str:
    """What the engine calls its version, empty when it does not tell."""
    if engine.version is None:
        return ""
    path, key = engine.version
    try:
        told = await fetcher.json(path)
    except Failed:
        return ""
    version = told.get(key) if isinstance(told, dict) else None
    fits = isinstance(version, str) and version.isprintable() and len(version) <= MAX_VERSION
    return str(version) if fits else ""
