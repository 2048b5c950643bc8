"""One address over time: readings, failures, restarts; what is shown of it and what is not."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from sidecar.catalogue import SCRAPE_FAILURES, SIGNALS
from sidecar.core.signals import Key
from sidecar.exposition import Histogram
from sidecar.scraper import reader as module
from sidecar.scraper.fetch import Fetcher
from sidecar.scraper.reader import EngineReader

from .engine import PAGE, Answer, FakeEngine, settings

DATA = Path(__file__).parent.parent / "data" / "expositions"


def label(name: str | None) -> str:
    return name or "only"


class Watched:
    """A reader of a fake engine, with a clock that moves when it is told to."""

    def __init__(self, engine: FakeEngine, **config: Any) -> None:
        self.engine, self.now = engine, 1000.0
        self.reader = EngineReader(
            engine.target("/metrics"), settings(**config), label, clock=lambda: self.now
        )
        self.fetcher: Fetcher | None = None

    async def scrape(self, answer: Answer | None = None, after: float = 5.0) -> None:
        if answer is not None:
            self.engine.answers["/metrics"] = answer
        if self.fetcher is None:
            self.fetcher = self.reader.fetcher()
        self.now += after
        await self.reader.scrape(self.fetcher)

    def values(self) -> dict[str, Any]:
        """`family` or `family/last label` -> value, a histogram's its counts."""
        found: dict[str, Any] = {}
        for name, members in self.reader.shown(self.now).items():
            for series in members:
                line = series.text(False).splitlines()[0]
                pairs = line.partition("{")[2].rpartition("}")[0]
                last = json.loads(pairs.split(",")[-1].split("=")[1])
                value = series.counts if isinstance(series, Histogram) else series.value
                found[name.removeprefix("llm_engine_") + (f"/{last}" if "," in pairs else "")] = value
        return found


@pytest_asyncio.fixture(name="watched")
async def _watched() -> AsyncIterator[Watched]:
    async with FakeEngine().serving() as engine:
        watched = Watched(engine)
        yield watched
        if watched.fetcher is not None:
            await watched.fetcher.__aexit__()


@pytest.fixture(name="said")
def _said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "sidecar.scraper")
    return lambda: [record.getMessage().split(": ", 1)[1] for record in caplog.records]


def tokens(count: int, started: float = 1.5e9) -> str:
    return f'vllm:generation_tokens_total{{model_name="m"}} {count}\nprocess_start_time_seconds {started}\n'


# --- what is shown


async def test_before_the_first_reading_nothing_is_shown(watched: Watched) -> None:
    assert watched.values() == {}


async def test_after_a_reading_the_engine_s_values_are_shown(watched: Watched) -> None:
    await watched.scrape()
    watched.now += 2.0
    values = watched.values()
    assert values["requests_running/m"] == 3
    assert values["output_tokens_total/m"] == 100
    assert values["phase_seconds/0.3"] == [2, 2]
    assert {name for name in SIGNALS if values[f"signal_available/{name}"]} == {
        "requests_running", "output_tokens", "queue",
    }  # fmt: skip
    assert (values["up"], values["resets_total"], values["scrape_age_seconds"]) == (1, 0, 2.0)
    assert values["info/"] == 1
    assert not [name for name in values if name.startswith("scrape_failures")]


@pytest.mark.parametrize("path", sorted(DATA.glob("*.txt")), ids=lambda path: path.stem)
async def test_every_recorded_page_passes_through(watched: Watched, path: Path) -> None:
    await watched.scrape(path.read_text())
    assert watched.values()["up"] == 1
    latest = watched.reader.history.latest
    assert latest is not None
    expected = json.loads((DATA / "expected.json").read_text())[path.name]
    assert {key.signal for key in latest.signals.gauges} == set(expected["gauges"])


async def test_a_value_disappears_after_three_intervals(watched: Watched) -> None:
    await watched.scrape()
    watched.now += 15.0
    assert "requests_running/m" in watched.values()
    watched.now += 0.1
    values = watched.values()
    assert not [name for name in values if name.startswith(("requests", "output", "phase", "signal"))]
    assert values["scrape_age_seconds"] == pytest.approx(15.1)


FAILURES: dict[str, tuple[Answer, str]] = {
    "no page": (web.Response(status=404), "status"),
    "a key is wanted": (web.Response(status=401), "unauthorized"),
    "another program": ("go_goroutines 7\n", "unknown_engine"),
    "an empty page": ("", "unknown_engine"),
    "JSON": (web.json_response([]), "not_metrics"),
}


@pytest.mark.parametrize(("answer", "reason"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_is_counted_told_once_and_takes_the_values_away(
    watched: Watched, said: Callable[[], list[str]], answer: Answer, reason: str
) -> None:
    await watched.scrape()
    for _ in range(3):
        await watched.scrape(answer)
    values = watched.values()
    assert (values["up"], values[f"scrape_failures_total/{reason}"]) == (0, 3)
    assert not [name for name in values if name.startswith(("requests", "output", "phase", "signal"))]
    assert values["scrape_age_seconds"] == 15.0
    assert reason in SCRAPE_FAILURES
    assert len(said()) == 2
    assert said()[1].startswith(f"no engine view: {reason}: ")


async def test_an_engine_that_comes_back_is_shown_again(
    watched: Watched, said: Callable[[], list[str]]
) -> None:
    await watched.scrape()
    await watched.scrape(web.Response(status=503))
    await watched.scrape(PAGE)
    values = watched.values()
    assert (values["up"], values["requests_running/m"], values["scrape_failures_total/status"]) == (1, 3, 1)
    assert [line.split(":")[0] for line in said()] == [
        "the page of vLLM is read", "no engine view", "the page of vLLM is read",
    ]  # fmt: skip


async def test_the_server_that_died_is_counted_as_unreachable(watched: Watched) -> None:
    await watched.scrape()
    async with FakeEngine().serving() as dead:
        pass
    other = Watched(dead)
    await other.scrape()
    assert other.values() == {"up": 0, "resets_total": 0, "scrape_failures_total/unreachable": 1}
    assert other.fetcher is not None
    await other.fetcher.__aexit__()


async def test_a_fault_of_ours_is_counted_and_the_reader_goes_on(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(module, "series_of", lambda *_: 1 / 0)
        await watched.scrape()
    assert watched.values()["up"] == 0
    await watched.scrape()
    assert watched.values()["up"] == 1


async def test_an_engine_that_has_counted_nothing_yet_is_known_by_what_it_declares(watched: Watched) -> None:
    await watched.scrape("# TYPE trtllm_request_success_total counter\n")
    values = watched.values()
    assert (values["up"], values["info/"]) == (1, 1)
    assert {values[f"signal_available/{name}"] for name in SIGNALS} == {0}


async def test_too_many_metrics_are_refused(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLES", 100)
    await watched.scrape("".join(f"m{n} 1\n" for n in range(101)))
    assert watched.values()["scrape_failures_total/too_large"] == 1


async def test_too_many_samples_are_refused(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLES", 100)
    page = "".join(f'vllm:num_requests_running{{engine="{n}"}} 1\n' for n in range(101))
    await watched.scrape(page)
    assert watched.values()["scrape_failures_total/too_large"] == 1


async def test_one_line_that_is_wrong_costs_only_itself(watched: Watched) -> None:
    await watched.scrape(f"{PAGE}vllm:num_preemptions_total{{ 7\nvllm:num_requests_waiting 2\n")
    values = watched.values()
    assert (values["up"], values["requests_waiting/only"], values["requests_running/m"]) == (1, 2, 3)
    assert values["signal_available/preemptions"] == 0


# --- one run, several runs, several engines


async def test_a_restart_is_counted_and_there_is_no_window_over_it(watched: Watched) -> None:
    await watched.scrape(tokens(100))
    await watched.scrape(tokens(150))
    window = watched.reader.history.window
    assert window is not None
    assert (window.start, window.end) == (1005.0, 1010.0)
    assert window.counters == {Key("output_tokens", "m"): 50}
    await watched.scrape(tokens(20, started=1.6e9))
    assert watched.reader.history.window is None
    values = watched.values()
    assert (values["resets_total"], values["output_tokens_total/m"]) == (1, 20)


async def test_several_engines_behind_one_address_switch_the_view_off(
    watched: Watched, said: Callable[[], list[str]]
) -> None:
    await watched.scrape(tokens(100, 1.0))
    await watched.scrape(tokens(200, 2.0))
    assert watched.values()["up"] == 1
    await watched.scrape(tokens(101, 1.0))
    assert watched.reader.off
    assert watched.values() == {
        "up": 0,
        "resets_total": 2,
        "scrape_failures_total/several_engines": 1,
        **{f"signal_available/{name}": 0 for name in SIGNALS},
    }
    assert said()[1:] == [
        "no engine view: several_engines: several engines answer here in turn; name each by itself"
    ]
    asked = len(watched.engine.asked)
    await asyncio.wait_for(watched.reader.run(), 10)  # it ends by itself
    assert len(watched.engine.asked) == asked


async def test_a_label_that_vanishes_takes_its_series_along_and_is_no_restart(watched: Watched) -> None:
    two = 'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2\n'
    await watched.scrape(two)
    await watched.scrape(two.splitlines()[0])
    values = watched.values()
    assert (values["requests_running/a"], values["resets_total"]) == (1, 0)
    assert "requests_running/b" not in values


async def test_another_layout_of_buckets_is_shown_as_it_is_and_is_no_restart(watched: Watched) -> None:
    await watched.scrape()
    await watched.scrape(PAGE.replace('le="0.3"', 'le="0.7"'))
    values = watched.values()
    assert (values["phase_seconds/0.7"], values["resets_total"]) == ([2, 2], 0)
    assert "phase_seconds/0.3" not in values
    assert watched.reader.history.window is not None


# --- the version


async def test_the_version_is_asked_once_a_run(watched: Watched) -> None:
    watched.engine.answers["/version"] = web.json_response({"version": "0.32.0"})
    await watched.scrape(tokens(1))
    await watched.scrape(tokens(2))
    assert "info/0.32.0" in watched.values()
    assert watched.engine.times["/version"] == 1
    watched.engine.answers["/version"] = web.json_response({"version": "0.33.0"})
    await watched.scrape(tokens(0, started=1.6e9))
    assert "info/0.33.0" in watched.values()
    assert watched.engine.times["/version"] == 2


@pytest.mark.parametrize("told", [[], {}, {"version": 7}, {"version": "x" * 65}, {"version": "a\nb"}, "0.32"])
async def test_a_version_that_is_none_is_empty(watched: Watched, told: Any) -> None:
    watched.engine.answers["/version"] = web.json_response(told)
    await watched.scrape()
    assert watched.values()["info/"] == 1


# --- when


INTERVALS = [
    ("a fast page", {}, 0.001, 5.0),
    ("a page of 50 ms", {}, 0.05, 5.0),
    ("a page of 200 ms", {}, 0.2, 20.0),
    ("as it is set", {"interval": "1s"}, 0.2, 1.0),
]


@pytest.mark.parametrize(
    ("config", "taken", "interval"), [row[1:] for row in INTERVALS], ids=[r[0] for r in INTERVALS]
)
async def test_the_interval_is_a_hundred_times_what_a_reading_takes(
    config: dict[str, Any], taken: float, interval: float
) -> None:
    async with FakeEngine().serving() as engine:
        watched = Watched(engine, **config)

        async def slow(_request: web.BaseRequest) -> str:
            watched.now += taken
            return PAGE

        engine.answers["/metrics"] = slow
        for _ in range(3):
            await watched.scrape()
        assert watched.reader.interval == pytest.approx(interval)
        assert watched.reader.pause == watched.reader.interval
        assert watched.values()["scrape_duration_seconds"] == pytest.approx(taken)
        assert watched.fetcher is not None
        await watched.fetcher.__aexit__()


PAUSES = [
    ("what llama.cpp answers without --metrics", web.Response(status=501), 60.0),
    ("no such page", web.Response(status=404), 60.0),
    ("a key is wanted", web.Response(status=401), 60.0),
    ("another program's page", "go_goroutines 7\n", 60.0),
    ("an engine that is loading its model", web.Response(status=503), 5.0),
    ("an engine that is up", PAGE, 5.0),
]


@pytest.mark.parametrize(("answer", "pause"), [row[1:] for row in PAUSES], ids=[row[0] for row in PAUSES])
async def test_what_will_not_pass_by_itself_is_asked_seldom(
    watched: Watched, answer: Answer, pause: float
) -> None:
    await watched.scrape(web.Response(status=404))
    await watched.scrape(answer)
    assert watched.reader.pause == pause


async def test_there_is_never_a_second_reading_in_flight() -> None:
    release = asyncio.Event()

    async def held(_request: web.BaseRequest) -> str:
        await release.wait()
        return PAGE

    async with FakeEngine({"/metrics": held}).serving() as engine:
        reader = EngineReader(engine.target("/metrics"), settings(interval="1ms"), label)
        running = asyncio.create_task(reader.run())
        await engine.arrived.wait()
        for _ in range(200):
            await asyncio.sleep(0)
        assert engine.asked == ["/metrics"]
        engine.arrived.clear()
        release.set()
        await asyncio.wait_for(engine.arrived.wait(), 10)  # it goes on
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert engine.most == 1


async def test_a_long_page_is_read_in_many_turns_of_the_loop(watched: Watched) -> None:
    """Streams are served between them: no piece may hold the loop for the whole page."""
    page = "".join(
        f'vllm:time_to_first_token_seconds_bucket{{engine="{n}",le="{bound}"}} 1\n'
        for n in range(40)
        for bound in (0.1, 0.5, 1.0, "+Inf")
    ) + "".join(
        f'vllm:time_to_first_token_seconds_{part}{{engine="{n}"}} 1\n'
        for n in range(40)
        for part in ("sum", "count")
    )
    await watched.scrape(page + "# padding\n" * 5000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await watched.scrape()
    counting.cancel()
    assert turns > (5000 + 240) / 100
    assert watched.values()["phase_seconds/0.1"] == [40, 0, 0, 0]


async def test_times_are_the_sidecar_s_own(watched: Watched) -> None:
    """A reading has the time when the head of the answer came, on our clock, whatever the page says."""

    async def slow(_request: web.BaseRequest) -> str:
        watched.now += 2.0
        return f"{PAGE}vllm:lora_requests_info {time.time()}\n"

    await watched.scrape(slow)
    latest = watched.reader.history.latest
    assert latest is not None
    assert latest.at == 1007.0
