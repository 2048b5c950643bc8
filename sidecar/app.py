"""The composition root: names every part once, puts them together, runs until told to stop."""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sidecar import admin, catalogue, served
from sidecar.config import Config, ConfigError, EngineConfig
from sidecar.core.record import RequestRecord
from sidecar.history import History
from sidecar.joins import Joins
from sidecar.metrics import Metrics
from sidecar.proxy import Proxy, RequestStart, Upstream
from sidecar.proxy.edit import Asks
from sidecar.proxy.observer import StreamObserver
from sidecar.proxy.proxy import Overhead, TracePolicy
from sidecar.proxy.selftest import failure
from sidecar.request_labels import RequestLabels
from sidecar.scraper import Scraper
from sidecar.windows import Windows

if TYPE_CHECKING:
    from sidecar.tracing import Tracing

log = logging.getLogger("sidecar")

# A request leaves no cycles behind (tests/core/test_observation.py), so the garbage collector finds next
# to nothing; at CPython's own 700 it would look for it several times a request in flight.
GC_THRESHOLDS = (20_000, 20, 50)
SUPPORTED_AIOHTTP = "3.14"


class StartError(Exception):
    """The sidecar can't start, with the reason and what to do."""


class Sinks:
    """What becomes of an observation: metrics, history, spans, the gauges of open streams."""

    def __init__(
        self,
        metrics: Metrics,
        history: History,
        labels: RequestLabels,
        joins: Joins,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._metrics, self._history, self._labels, self._joins = metrics, history, labels, joins
        self._tracing = tracing
        self.windows = Windows(metrics)
        self.open: set[StreamObserver] = set()

    def started(self, observer: StreamObserver) -> None:
        """An exchange began."""
        self.open.add(observer)
        if self._tracing is not None:
            self._tracing.started(observer.trace, observer.observation.request_id)

    def gap_sink(self, model: str | None, operation: str) -> Callable[[float, int | None], None]:
        """Where the gaps of one stream are counted, live."""
        return self._metrics.gap_sink(self._metrics.model_label(model), operation)

    def finished(self, observer: StreamObserver, record: RequestRecord) -> None:
        """An exchange ended."""
        self.open.discard(observer)
        self._joins.finished(self._history.add(record))
        # An exemplar leads somewhere when the caller exports this trace, for it sampled it, or we do.
        exported = self._trace(observer, record) or bool(observer.trace.sampled)
        labels = self._labels.values(observer.headers)
        self._metrics.record(record, record.trace_id if exported else None, labels)
        if record.missed:
            self._metrics.child("llm_sidecar_observer_errors_total", "missed").inc(record.missed)
        self.windows.ended(record)

    def _trace(self, observer: StreamObserver, record: RequestRecord) -> bool:
        """Whether its spans are exported. A fault in making them costs the spans and nothing else."""
        if self._tracing is None:
            return False
        facts = observer.observation.facts
        try:
            several = facts.n * facts.prompts > 1 or record.choices > 1
            return self._tracing.finished(record, observer.trace, several)
        except Exception:
            log.exception("a request's spans are lost")
            self._metrics.child("llm_sidecar_observer_errors_total", "tracing").inc()
            return False

    def undecodable(self) -> None:
        """A compressed body could not be read."""
        self._metrics.child("llm_sidecar_observer_errors_total", "decode").inc()

    def measure_open(self, now: float, proxy: Proxy) -> None:
        """Silent streams and requests in flight, as they are now."""
        proxy.unseen.show()
        streams = [o.observation for o in self.open if o.observation.streaming]
        self._metrics.set_silence([o.silent_since(now) for o in streams])
        self._metrics.set_in_flight([(o.observation.model, o.observation.operation) for o in self.open])


def upstream_of(url: str) -> Upstream:
    """The address in an upstream URL."""
    parts = urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Upstream(parts.hostname or "127.0.0.1", parts.port or (443 if tls else 80), tls)


def engine_scraper(config: EngineConfig, upstream: str, metrics: Metrics) -> Scraper:
    """What reads the engine's page, and shows it on ours. Raises StartError when its key can't be had."""
    try:
        config.api_key()
        secure = any(url.startswith("https:") for url in config.metrics or (upstream,))
        tls = ssl.create_default_context(cafile=config.ca_file or None) if secure else True
    except ConfigError as wrong:
        raise StartError(str(wrong)) from None
    except OSError as wrong:  # SSLError too
        raise StartError(f"engine.ca_file: can't be read: {wrong.strerror}") from None
    scraper = Scraper(config, upstream, metrics.model_label, tls)
    metrics.foreign = scraper.families
    return scraper


def engine_key(config: EngineConfig) -> str:
    """The engine's API key as it is now; empty when there is none, or it can't be read any more."""
    try:
        return config.api_key()
    except ConfigError as wrong:
        log.warning("%s", wrong)
        return ""


async def serve(config: Config, announce: Callable[[str, str], None]) -> int:
    """Run the sidecar; `announce(listen, admin)` is called when it is ready. Returns the exit code.

    Raises StartError or OSError when it can't start.
    """
    wrong = await failure()
    if wrong is not None:
        raise StartError(f"the self-test failed: {wrong}; supported aiohttp: {SUPPORTED_AIOHTTP}.x")
    _log_json_lines(config.log.level)
    stop = asyncio.Event()
    _on_signals(stop)
    labels = RequestLabels(config.labels)
    metrics = Metrics(config.metrics, labels)
    history = History()
    upstream = upstream_of(config.upstream)
    tracing = _tracing(config, upstream)
    joins = Joins(metrics, spans=config.tracing.receives)
    sinks = Sinks(metrics, history, labels, joins, tracing)

    def attach(start: RequestStart) -> StreamObserver:
        return StreamObserver(start, sinks, config.stall_threshold)

    policy = TracePolicy(config.tracing.trust_parent, takes_part=tracing is not None)
    if tracing is not None:
        tracing.on_timings, tracing.phases = joins.span, joins.attributes
        policy = policy._replace(sampled=tracing.tells_the_engine)
        metrics.follow(catalogue.SPANS.name, tracing.counts)
        metrics.follow(catalogue.ENGINE_SPANS.name, tracing.engine_counts)
    timings = config.engine_timings.request
    asks = Asks(usage=config.usage.inject or timings, timings=timings)
    proxy = Proxy(upstream, config.limits, attach, asks=asks, tracing=policy)
    if tracing is not None:
        tracing.catch_up = proxy.unseen.show
    metrics.follow(catalogue.LABEL_OVERFLOW.name, labels.overflowed)
    metrics.take_counters(proxy.rejected, proxy.retries, proxy.faults, proxy.edits)
    proxy.overhead = Overhead(
        *(metrics.histogram("llm_sidecar_overhead_seconds", stage).observe for stage in Overhead._fields)
    )
    proxy.on_lag = metrics.child("llm_sidecar_event_loop_lag_seconds").observe
    scraper = engine_scraper(config.engine, config.upstream, metrics) if config.engine.enabled else None

    def refresh() -> None:
        sinks.measure_open(monotonic(), proxy)
        sinks.windows.update(scraper.readings if scraper is not None else {})

    metrics.refresh = refresh
    state = served.ServedModels(
        config.upstream, config.models, metrics.learn_models, partial(engine_key, config.engine)
    )
    sinks.windows.base_of = state.base_of

    def ready() -> tuple[bool, str]:
        if stop.is_set():
            return False, "draining"
        if config.ready.check_upstream and not state.reachable:
            return False, "the engine does not answer"
        return True, "ready"

    pages = admin.build_admin(metrics, history, sinks.windows, config, ready, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        if tracing is not None:
            await stack.enter_async_context(tracing.running())
        admin_address = await stack.enter_async_context(admin.listening(pages, *config.admin_address))
        listen_host, listen_port = await proxy.start(*config.listen_address)
        stack.push_async_callback(proxy.stop)
        watching = [asyncio.create_task(state.watch()), asyncio.create_task(_expire(joins))]
        if scraper is not None:
            watching.append(asyncio.create_task(_scrape(scraper, state)))
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        host = f"[{listen_host}]" if ":" in listen_host else listen_host
        announce(f"{host}:{listen_port}", admin_address)
        await stop.wait()
        log.info("draining")
        ended = await proxy.drain(config.drain.grace, config.drain.limit)
        log.info("drained" if ended else "drain limit reached: open requests are cut")
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    return 0


async def _scrape(scraper: Scraper, state: served.ServedModels) -> None:
    await state.asked.wait()  # a page read before that would have its models as `other`
    await scraper.run()


async def _expire(joins: Joins) -> None:
    while True:
        await asyncio.sleep(1.0)
        joins.expire(monotonic())


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = {"time": self.formatTime(record), "level": record.levelname, "logger": record.name}
        return json.dumps({**said, "message": super().format(record)})


def _log_json_lines(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _tracing(config: Config, upstream: Upstream) -> "Tracing | None":
    """Imports what tracing needs only when it is on."""
    if not config.tracing.on:
        return None
    try:
        from sidecar.tracing import Tracing

        return Tracing(config.tracing, (upstream.host, upstream.port))
    except ImportError as missing:
        package = (missing.name or "").partition(".")[0]
        extra = "tracing-grpc" if package == "grpc" else "tracing"
        raise StartError(f"tracing needs the package {package}; install inference-sidecar[{extra}]") from None
    except ConfigError as wrong:
        raise StartError(str(wrong)) from None


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
