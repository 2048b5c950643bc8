"""The join against the truth: an engine whose true phases are known, and whose wall clock may be wrong.

The emulator writes down what it did; what it tells (in its answers, on its page) is vLLM's. The sidecar has to
come to the same numbers by durations alone.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
import pytest

from sidecar.app import Sinks
from sidecar.config import EngineConfig, Limits, MetricsConfig, TracingConfig
from sidecar.core import window_join
from sidecar.emulator import scheduler
from sidecar.emulator.clock import ClockError
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.options import Api, Options
from sidecar.emulator.server import start
from sidecar.history import History
from sidecar.joins import Joins
from sidecar.metrics import Metrics
from sidecar.proxy import Proxy, Upstream
from sidecar.proxy.observer import StreamObserver
from sidecar.proxy.proxy import TracePolicy
from sidecar.proxy.unseen import Unseen
from sidecar.request_labels import RequestLabels
from sidecar.scraper.reader import EngineReader
from sidecar.scraper.targets import Target
from sidecar.tracing import Tracing

MILLISECOND = 0.001
COSTS = StepCosts(fixed=0.004, per_prefill_token=0.00005, per_sequence=0.0002)
CLOCKS = {
    "a right clock": ClockError(),
    "an hour ahead": ClockError(offset=3600.0),
    "an hour behind": ClockError(offset=-3600.0),
    "running backwards": ClockError(drift=-2.0),
    "stepped while requests run": ClockError(steps=((500.0, 0.3), (-900.0, 0.6))),
}


class Stand:
    """Emulator, proxy and reader in one loop."""

    def __init__(
        self, engine: str, proxy: str, unseen: Unseen, sinks: Sinks, history: History, reader: EngineReader
    ) -> None:
        self.engine, self.proxy, self.sinks, self.history, self.reader = engine, proxy, sinks, history, reader
        self._unseen = unseen

    async def read_page(self) -> None:
        async with self.reader.fetcher() as fetcher:
            await self.reader.scrape(fetcher)
        assert self.reader.state == ""

    async def load(self, count: int, *, at_once: int, bypass: int = 0) -> None:
        """`count` streamed requests, so many at a time; every `bypass`-th goes to the engine directly."""
        turn = asyncio.Semaphore(at_once)
        async with aiohttp.ClientSession() as session:

            async def ask(number: int) -> None:
                base = self.engine if bypass and number % bypass == 0 else self.proxy
                body = {
                    "model": "emulated", "stream": True, "stream_options": {"include_usage": True},
                    "messages": [{"role": "user", "content": "word " * (20 + 37 * number % 400)}],
                    "max_tokens": 6 + number % 9,
                }  # fmt: skip
                async with (
                    turn,
                    session.post(
                        f"http://{base}/v1/chat/completions",
                        json=body,
                        headers={"X-Request-Id": f"r{number}"},
                    ) as response,
                ):
                    assert response.status == 200
                    assert (await response.read()).rstrip().endswith(b"data: [DONE]")

            await asyncio.gather(*(ask(number) for number in range(count)))

    def rows(self) -> dict[str, dict[str, Any]]:
        self._unseen.show()
        return {str(row["id"]): row for row in self.history.as_json()["recent"]}


@contextlib.asynccontextmanager
async def stand(
    clock: ClockError, truth: Path, *, tracing: Tracing | None = None, **api: Any
) -> AsyncIterator[Stand]:
    """With `tracing`, which runs, the emulator sends its spans there."""
    otlp = None if tracing is None else f"http://127.0.0.1:{tracing.ports[1]}"
    options = Options(
        costs=COSTS, limits=scheduler.Limits(max_sequences=4), clock=clock, truth=str(truth), api=Api(**api),
        otlp=otlp, otlp_delay=0.05,
    )  # fmt: skip
    runner, engine = await start(options, "127.0.0.1", 0)
    metrics, history = Metrics(MetricsConfig()), History(recent=2000)
    metrics.learn_models(["emulated"])
    joins = Joins(metrics, spans=tracing is not None)
    sinks = Sinks(metrics, history, RequestLabels({}), joins, tracing)
    policy = TracePolicy(takes_part=tracing is not None)
    if tracing is not None:
        tracing.on_timings, tracing.phases = joins.span, joins.attributes
        policy = policy._replace(sampled=tracing.tells_the_engine)
    host, port = engine.rsplit(":", 1)
    proxy = Proxy(
        Upstream(host, int(port)), Limits(), lambda start: StreamObserver(start, sinks, 1.0), tracing=policy
    )
    if tracing is not None:
        tracing.catch_up = proxy.unseen.show
    _, listen = await proxy.start("127.0.0.1", 0)
    reader = EngineReader(Target(f"http://{engine}", "/metrics", engine), EngineConfig(), metrics.model_label)
    try:
        yield Stand(engine, f"127.0.0.1:{listen}", proxy.unseen, sinks, history, reader)
    finally:
        await proxy.stop()
        await runner.cleanup()


def truths(path: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.mark.integration
@pytest.mark.parametrize("at_once", [1, 12], ids=["one in flight", "under load"])
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
async def test_each_request_in_band_within_a_millisecond(
    clock: ClockError, at_once: int, tmp_path: Path
) -> None:
    async with stand(clock, tmp_path / "truth", per_request_metrics=True) as standing:
        await standing.load(12 if at_once == 1 else 48, at_once=at_once)
        rows, true = standing.rows(), truths(tmp_path / "truth")
    assert set(rows) == set(true)
    for name, row in rows.items():
        assert row["join"] == {"status": "ok", "source": "in_band"}, name
        for phase in ("queue", "prefill", "decode"):
            assert row["phases"][phase] == pytest.approx(true[name][phase], abs=MILLISECOND), (name, phase)
    if at_once > 1:
        assert max(line["queue"] for line in true.values()) > 0.02, "nothing ever waited"


@pytest.mark.integration
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
async def test_each_request_by_its_span_within_a_millisecond(clock: ClockError, tmp_path: Path) -> None:
    config = TracingConfig(receive_http="127.0.0.1:0")
    tracing = Tracing(config, ("127.0.0.1", 1))
    async with tracing.running(), stand(clock, tmp_path / "truth", tracing=tracing) as standing:
        await standing.load(48, at_once=12)
        async with asyncio.timeout(20):
            while not all(row["join"] for row in standing.rows().values()):
                await asyncio.sleep(0.02)
        rows, true = standing.rows(), truths(tmp_path / "truth")
    assert set(rows) == set(true)
    for name, row in rows.items():
        assert row["join"] == {"status": "ok", "source": "span"}, name
        for phase in ("queue", "prefill", "decode"):
            assert row["phases"][phase] == pytest.approx(true[name][phase], abs=MILLISECOND), (name, phase)


@pytest.mark.integration
@pytest.mark.parametrize("clock", CLOCKS.values(), ids=CLOCKS)
async def test_window_means_within_two_percent_at_full_coverage(
    clock: ClockError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_join, "SECONDS", 0.1)
    async with stand(clock, tmp_path / "truth") as standing:
        await standing.read_page()
        await standing.load(60, at_once=12)
        await standing.read_page()
        standing.rows()
        standing.sinks.windows.update({"e": list(standing.reader.history.readings)})
        [window] = standing.sinks.windows.latest
        rows, true = standing.rows(), truths(tmp_path / "truth")
    assert (window.status, window.coverage, window.requests) == ("ok", 1.0, 60)
    for phase in ("queue", "prefill", "decode"):
        assert window.phases[phase] == pytest.approx(mean(line[phase] for line in true.values()), rel=0.02)
    assert window.phases["ttft"] == pytest.approx(mean(row["ttft"] for row in rows.values()))
    parts = sum(window.phases[name] for name in ("upload", "connect", "queue", "prefill", "unattributed"))
    assert parts == pytest.approx(window.phases["ttft"])


@pytest.mark.integration
async def test_when_half_of_the_requests_pass_by_the_window_is_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_join, "SECONDS", 0.1)
    async with stand(ClockError(), tmp_path / "truth") as standing:
        await standing.read_page()
        await standing.load(60, at_once=12, bypass=2)
        await standing.read_page()
        standing.rows()
        standing.sinks.windows.update({"e": list(standing.reader.history.readings)})
        [window] = standing.sinks.windows.latest
    assert (window.status, window.coverage, window.requests) == ("partial", 0.5, 30)
    assert set(window.phases) == {"queue", "prefill", "decode"}
