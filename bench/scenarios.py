"""What is measured: the workloads as a table, and one function for each way of measuring."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import machine
from processes import Peer, Upstream, load_result, start_load
from scraping import Scraper
from stalling import measure_stalled

Record = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """`connections` clients, each `requests` one after another; a stream has `tokens` at `rate` a second."""

    connections: int
    requests: int = 1
    stagger_ms: int = 500
    tokens: int = 100
    rate: int = 40
    step: bool = False  # all streams' tokens at the same instants, as an engine's step emits them
    unary: bool = False
    seconds: int = 30

    def arguments(self) -> list[str]:
        flags = {"-c": self.connections, "-r": self.requests, "-d": self.stagger_ms, "-t": self.seconds}
        return [text for pair in flags.items() for text in map(str, pair)] + ["-u"] * self.unary

    def expected_tokens(self) -> int:
        return 0 if self.unary else self.connections * self.requests * self.tokens


LOADS = {
    "s64": Load(64, tokens=120),
    "s256": Load(256),
    "s1024": Load(1024, stagger_ms=1000, tokens=80),
    "step256": Load(256, tokens=80, step=True),
    "ttft64": Load(64, requests=5, tokens=20),
    "unary32": Load(32, requests=300, stagger_ms=0, unary=True),
    "scrape": Load(256, tokens=240),
    "lag256": Load(256),
    "lagstep256": Load(256, tokens=80, step=True),
}
HISTOGRAMS = 1000  # at least this many are scraped
WARM_UP = Load(64, stagger_ms=200, tokens=60, rate=100, seconds=20)


@dataclass
class Bench:
    """What every measurement needs."""

    upstream: Upstream
    load_cpus: set[int]
    quiet_cores: float
    quiet_seconds: float


def run_load(bench: Bench, port: int, load: Load) -> Record:
    """One run of the load client; `lost` counts token events that never came."""
    bench.upstream.set(load.tokens, load.rate, load.step)
    result = load_result(start_load(port, load.arguments(), bench.load_cpus), load.seconds)
    return result | {"lost": load.expected_tokens() - result["tokens"]}


def measure_load(bench: Bench, peer: Peer | None, load: Load) -> Record:
    """CPU of the proxy per token event (unary: per request), latencies, and how disturbed the run was.

    `other_cores` is what everything that is not proxy, upstream, client or runner used of the machine.
    """

    def clocks() -> list[float]:
        proxy = machine.cpu_seconds(peer.pid) if peer else 0.0
        upstream = machine.cpu_seconds(bench.upstream.pid)
        return [proxy, upstream, machine.own_seconds(), machine.busy_seconds(), time.monotonic()]

    machine.wait_until_quiet(bench.quiet_cores, bench.quiet_seconds)
    before = clocks()
    result = run_load(bench, peer.port if peer else bench.upstream.port, load)
    proxy, upstream, own, busy, wall = (b - a for a, b in zip(before, clocks(), strict=True))
    units = result["tokens"] or result["done"] or 1
    return {
        "cpu_us": round(proxy * 1e6 / units, 2),
        "cpu_share": round(proxy / wall, 3),
        "other_cores": round((busy - proxy - upstream - own) / wall, 3),
        "load": result,
    }


def measure_memory(bench: Bench, peer: Peer | None) -> Record:
    """Private memory with 256 and 1,024 streams open, each sending two events a second."""
    assert peer is not None
    record: Record = {"rest_kib": machine.private_kib(peer.pid)}
    for streams in (256, 1024):
        load = Load(streams, stagger_ms=2000, tokens=16, rate=2, seconds=20)
        bench.upstream.set(load.tokens, load.rate)
        client = start_load(peer.port, load.arguments(), bench.load_cpus)
        _wait_for_open(bench.upstream, streams, seconds=6)
        time.sleep(1)
        record[f"kib_{streams}"] = machine.private_kib(peer.pid)
        result = load_result(client, load.seconds)
        record["load"] = result | {"lost": load.expected_tokens() - result["tokens"]}
    record["kib_per_stream"] = round((record["kib_1024"] - record["kib_256"]) / (1024 - 256), 2)
    return record


def _wait_for_open(upstream: Upstream, streams: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while upstream.stats()["open"] < streams and time.monotonic() < end:
        time.sleep(0.1)


def measure_scrape(bench: Bench, peer: Peer | None) -> Record:
    """Event p99 with and without a Prometheus that scrapes 1,000 histograms every second, gzip."""
    assert peer is not None
    without = measure_load(bench, peer, LOADS["scrape"])
    with Scraper(peer.admin_port) as scraper:
        scraped = measure_load(bench, peer, LOADS["scrape"])
    if scraper.histograms < HISTOGRAMS:
        raise RuntimeError(f"the page has {scraper.histograms} histograms, not {HISTOGRAMS}")
    return {
        "without_p99_us": without["load"]["event_us"]["p99"],
        "with_p99_us": scraped["load"]["event_us"]["p99"],
        "other_cores": max(without["other_cores"], scraped["other_cores"]),
        "scrapes": scraper.scrapes,
        "page_bytes": scraper.page_bytes,
        "histograms": scraper.histograms,
        "load": scraped["load"],
    }


def measure_lag(bench: Bench, peer: Peer | None, load: Load) -> Record:
    """How late the sidecar's own arrival stamps are: stamp minus the send time inside the event."""
    assert peer is not None
    record = measure_load(bench, peer, load)
    peer.terminate()
    return record | {"lag_us": json.loads((peer.directory / "lag.json").read_text())}


@dataclass(frozen=True)
class Scenario:
    measure: Callable[[Bench, Peer | None], Record]
    fresh: bool = False  # a process of its own: memory that an earlier load left behind would hide growth
    warm: bool = True  # load it a little first
    direct: bool = True  # also straight to the upstream, as the baseline of latencies
    only: str = ""  # the one variant that it is about


def _load(name: str) -> Callable[[Bench, Peer | None], Record]:
    return lambda bench, peer: measure_load(bench, peer, LOADS[name])


def _lag(name: str) -> Callable[[Bench, Peer | None], Record]:
    return lambda bench, peer: measure_lag(bench, peer, LOADS[name])


SCENARIOS = {
    **{name: Scenario(_load(name)) for name in ("s64", "s256", "s1024", "step256", "ttft64", "unary32")},
    "mem": Scenario(measure_memory, fresh=True, direct=False),
    "stalled": Scenario(measure_stalled, fresh=True, direct=False),
    "scrape": Scenario(measure_scrape, fresh=True, direct=False, only="sidecar-series"),
    **{
        name: Scenario(_lag(name), fresh=True, warm=False, direct=False, only="sidecar-lag")
        for name in ("lag256", "lagstep256")
    },
}
