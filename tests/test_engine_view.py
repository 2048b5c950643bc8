"""The engine's values on our page: what a parser of Prometheus's reads there is what the engine said."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar.catalogue import ENGINE_VIEW, SIGNALS
from sidecar.config import MetricsConfig
from sidecar.core.signals import Distribution, EngineSignals, Key
from sidecar.engine_view import series_of
from sidecar.engines import ENGINES
from sidecar.engines.page import pieces, samples
from sidecar.engines.reader import Series, gather, read, wanted
from sidecar.exposition import END, slices
from sidecar.exposition import Series as Shown
from sidecar.metrics import Metrics

DATA = Path(__file__).parent / "data" / "expositions"

SIGNALS_OF_ONE = EngineSignals(
    "vllm",
    1.5,
    {Key("requests_running", "m"): 4.0, Key("kv_cache_usage_ratio", "m"): 0.25},
    {
        Key("output_tokens", "m"): 1959.0,
        Key("requests_finished", "m", "stop"): 10.0,
        Key("requests_finished", "other", "abort"): 0.0,
        Key("spec_tokens", "m", "accepted"): 3.0,
    },
    {
        Key("ttft", "m"): Distribution((0.1, 2.5), (3.0, 2.0, 1.0), 6.0, 12.5),
        Key("itl", "m"): Distribution((), (7.0,), 7.0, 0.25),
    },
)
I = {"engine_instance": "10.0.0.1:8000"}  # noqa: E741
M = {**I, "model": "m"}
SAID = [
    ("llm_engine_requests_running", M, 4.0),
    ("llm_engine_kv_cache_usage_ratio", M, 0.25),
    ("llm_engine_output_tokens_total", M, 1959.0),
    ("llm_engine_requests_finished_total", {**M, "reason": "stop"}, 10.0),
    ("llm_engine_requests_finished_total", {**I, "model": "other", "reason": "abort"}, 0.0),
    ("llm_engine_spec_tokens_total", {**M, "kind": "accepted"}, 3.0),
    ("llm_engine_phase_seconds_bucket", {**M, "phase": "ttft", "le": "0.1"}, 3.0),
    ("llm_engine_phase_seconds_bucket", {**M, "phase": "ttft", "le": "2.5"}, 5.0),
    ("llm_engine_phase_seconds_bucket", {**M, "phase": "ttft", "le": "+Inf"}, 6.0),
    ("llm_engine_phase_seconds_count", {**M, "phase": "ttft"}, 6.0),
    ("llm_engine_phase_seconds_sum", {**M, "phase": "ttft"}, 12.5),
    ("llm_engine_phase_seconds_bucket", {**M, "phase": "itl", "le": "+Inf"}, 7.0),
    ("llm_engine_phase_seconds_count", {**M, "phase": "itl"}, 7.0),
    ("llm_engine_phase_seconds_sum", {**M, "phase": "itl"}, 0.25),
]
HAS = {
    "requests_running",
    "kv_cache_usage_ratio",
    "output_tokens",
    "requests_finished",
    "spec_tokens",
    "ttft",
    "itl",
}


def recorded(name: str) -> EngineSignals:
    text = (DATA / f"{name}.txt").read_text()
    engine = next(engine for engine in ENGINES.values() if name.startswith(engine.name))
    series: Series = {}
    for lines in pieces(text):
        gather((sample for sample in samples(lines, wanted(engine)) if sample is not None), engine, series)
    return read(series, engine, str)


def page(openmetrics: bool, signals: EngineSignals = SIGNALS_OF_ONE) -> str:
    """Through the store, as it is served."""
    metrics = Metrics(MetricsConfig())
    found: dict[str, list[Shown]] = {}
    for family, series in series_of(signals, "10.0.0.1:8000"):
        found.setdefault(family.name, []).append(series)
    metrics.foreign = lambda: [(family, found.get(family.name, [])) for family in ENGINE_VIEW]
    text = b"".join(metrics.render_slices(openmetrics))
    return (text + END if openmetrics else text).decode()


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_a_parser_reads_what_the_engine_said(openmetrics: bool) -> None:
    parse = parse_openmetrics if openmetrics else parse_text
    read = [
        (sample.name, sample.labels, sample.value)
        for family in parse(page(openmetrics))
        for sample in family.samples
        if sample.name.startswith("llm_engine_")
    ]
    available = [
        ("llm_engine_signal_available", {**I, "signal": name}, float(name in HAS)) for name in SIGNALS
    ]
    assert sorted(read, key=repr) == sorted(SAID + available, key=repr)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["vllm-0.32.0-queued", "sglang-0.5.23-collectors", "llama.cpp-queued"])
def test_promtool_finds_nothing_to_say(name: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        assert os.environ.get("CI") != "true", "promtool is missing: CI installs it"
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=page(False, recorded(name)),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_counts_are_written_as_whole_numbers() -> None:
    assert 'llm_engine_output_tokens_total{engine_instance="10.0.0.1:8000",model="m"} 1959\n' in page(False)


def test_a_page_without_an_engine_view_has_none_of_its_families() -> None:
    assert b"llm_engine" not in b"".join(Metrics(MetricsConfig()).render_slices(False))


def test_a_family_without_series_is_left_out() -> None:
    assert b"".join(slices([(family, []) for family in ENGINE_VIEW], False)) == b""
