"""Recorded pages as whole values, worked out without the code under test; then one rule a case."""

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.catalogue import SIGNALS
from sidecar.core.signals import Distribution, EngineSignals, Key
from sidecar.engines import ENGINES, detect
from sidecar.engines.page import name_of, pieces, samples, text_of
from sidecar.engines.reader import Series, gather, read, wanted
from sidecar.engines.table import Engine

DATA = Path(__file__).parent.parent / "data" / "expositions"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())


def label(name: str | None) -> str:
    return name or ""


def series_of(text: str, engine: Engine) -> Series:
    series: Series = {}
    for lines in pieces(text):
        gather((sample for sample in samples(lines, wanted(engine)) if sample is not None), engine, series)
    return series


def signals_of(text: str, engine: Engine, started: float | None = None) -> EngineSignals:
    return read(series_of(text, engine), engine, label, started)


def key(name: str, model: str) -> Key:
    signal, _, value = name.partition("/")
    return Key(signal, model, value)


def expected_signals(page: dict[str, Any]) -> EngineSignals:
    def distribution(told: dict[str, Any]) -> Distribution:
        bounds = tuple(float(bound) for bound, _ in told["buckets"] if bound != "+Inf")
        return Distribution(bounds, tuple(count for _, count in told["buckets"]), told["count"], told["sum"])

    model = page["model"]
    return EngineSignals(
        page["engine"],
        page["started"],
        {key(name, model): value for name, value in page["gauges"].items()},
        {key(name, model): value for name, value in page["counters"].items()},
        {key(name, model): distribution(told) for name, told in page["distributions"].items()},
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_page_says_what_it_says(name: str) -> None:
    text = text_of((DATA / name).read_bytes())
    engine = detect(name_of(line) for lines in pieces(text) for line in lines)
    assert engine is not None
    assert signals_of(text, engine) == expected_signals(EXPECTED[name])


def test_every_recorded_page_has_its_expectation() -> None:
    assert {path.name for path in DATA.glob("*.txt")} == set(EXPECTED)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_table_says_rightly_what_was_seen_in_a_recording(engine: Engine) -> None:
    found = Series()
    for path in DATA.glob(f"{engine.name}-*.txt"):
        found.update(series_of(text_of(path.read_bytes()), engine))
    seen = {
        part
        for row in engine.signals
        for name in row.names
        for part in ((name,) if isinstance(name, str) else name)
        if part + ("_count" if row.kind == "histogram" else "") in found
    }
    assert engine.seen == seen
    assert bool(engine.recorded) == bool(seen)


# --- one rule a case

VLLM, SGLANG, LLAMA = ENGINES["vllm"], ENGINES["sglang"], ENGINES["llama.cpp"]
RUNNING = "sglang:num_running_reqs"

GAUGES: dict[str, tuple[str, str, dict[str, float]]] = {  # engine, page, gauges and counters by signal/value
    "two engine processes are added up": (
        "vllm",
        'vllm:num_requests_waiting{engine="0",model_name=""} 2\n'
        'vllm:num_requests_waiting{engine="1",model_name=""} 3',
        {"requests_waiting": 5},
    ),
    "of the cache's use the fullest process counts": (
        "vllm",
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75',
        {"kv_cache_usage_ratio": 0.75},
    ),
    "the newest name goes first": (
        "vllm",
        "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2",
        {"kv_cache_usage_ratio": 0.2},
    ),
    "an older name is read where there is no newer one": (
        "vllm",
        "vllm:gpu_cache_usage_perc 0.1\nvllm:gpu_prefix_cache_hits_total 7",
        {"kv_cache_usage_ratio": 0.1, "prefix_cache_hits": 7},
    ),
    "of samples given twice the first counts": (
        "vllm",
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="0"} 9',
        {"requests_running": 2},
    ),
    "what is not a number is missing": (
        "vllm",
        "vllm:num_requests_running NaN\nvllm:num_preemptions_total +Inf\nvllm:num_requests_waiting 0",
        {"requests_waiting": 0},
    ),
    "what is not on the page is missing, not 0": (
        "vllm",
        "vllm:num_requests_running 1",
        {"requests_running": 1},
    ),
    "creation times are no counts": (
        "vllm",
        "vllm:prompt_tokens_total 5\nvllm:prompt_tokens_created 1.79e9",
        {"input_tokens": 5},
    ),
    "a reason that no table knows is `other`": (
        "vllm",
        'vllm:request_success_total{finished_reason="stop"} 1\n'
        'vllm:request_success_total{finished_reason="new"} 2\n'
        'vllm:request_success_total{finished_reason="newer"} 3',
        {"requests_finished/stop": 1, "requests_finished/other": 5},
    ),
    "the name of an enum is its last word": (
        "lmdeploy",
        'lmdeploy:request_success_total{finished_reason="FinishReason.LENGTH"} 4',
        {"requests_finished/length": 4},
    ),
    "tensor-parallel ranks tell the same: one is read": (
        "sglang",
        f'{RUNNING}{{dp_rank="0",tp_rank="0"}} 3\n{RUNNING}{{dp_rank="0",tp_rank="1"}} 3',
        {"requests_running": 3},
    ),
    "data-parallel ranks are added up, whatever their tensor rank": (
        "sglang",
        f'{RUNNING}{{dp_rank="0",tp_rank="0"}} 3\n{RUNNING}{{dp_rank="1",tp_rank="4"}} 2',
        {"requests_running": 5},
    ),
    "the empty priority is the total of the others": (
        "sglang",
        f'{RUNNING}{{priority=""}} 3\n{RUNNING}{{priority="1"}} 1\n{RUNNING}{{priority="2"}} 2',
        {"requests_running": 3},
    ),
    "the total of cached tokens is not added to its parts": (
        "sglang",
        'sglang:cached_tokens_total{cache_source="device"} 3\n'
        'sglang:cached_tokens_total{cache_source="total"} 5\n'
        'sglang:cached_tokens_total{cache_source="host"} 2',
        {"prefix_cache_hits": 5},
    ),
    "hits are some of the modes, queries all": (
        "sglang",
        'sglang:prefill_effective_tokens_total{mode="input"} 10\n'
        'sglang:prefill_effective_tokens_total{mode="device_hit"} 4\n'
        'sglang:prefill_effective_tokens_total{mode="new"} 100',
        {"prefix_cache_queries": 14, "prefix_cache_hits": 4},
    ),
    "a sum of which one part is missing is missing": ("llama.cpp", "llamacpp:prompt_tokens_total 5", {}),
    "llama.cpp's cached tokens are input tokens": (
        "llama.cpp",
        "llamacpp:prompt_tokens_total 5\nllamacpp:prompt_tokens_cached_total 3",
        {"input_tokens": 8, "prefix_cache_queries": 8, "prefix_cache_hits": 3},
    ),
    "TensorRT-LLM's first releases had no prefix": (
        "tensorrt_llm",
        'request_success_total{finished_reason="stop",model_name="undefined"} 2\n'
        'e2e_request_latency_seconds_count 2',
        {"requests_finished/stop": 2},
    ),
    "errors are requests that ended, too": (
        "tensorrt_llm",
        'trtllm_request_success_total{finished_reason="stop"} 2\n'
        'trtllm_request_error_total{http_code="400"} 3\n'
        'trtllm_request_error_total{http_code="500"} 1',
        {"requests_finished/stop": 2, "requests_finished/error": 4},
    ),
    "TGI's lengths are told by the sums of histograms": (
        "tgi",
        "tgi_request_input_length_sum 100\n"
        "tgi_request_input_length_count 4\n"
        "tgi_request_generated_tokens_sum 50",
        {"input_tokens": 100, "output_tokens": 50},
    ),
    "TGI's dropped requests are those whose client left": (
        "tgi",
        'tgi_request_success 5\n'
        'tgi_request_failure{err="dropped"} 2\n'
        'tgi_request_failure{err="overloaded"} 1\n'
        'tgi_request_failure{err="validation"} 3',
        {"requests_finished/finished": 5, "requests_finished/abort": 2, "requests_finished/error": 4},
    ),
    "Dynamo's cancelled requests are those whose client left": (
        "dynamo",
        'dynamo_frontend_requests_total{model="",status="success",error_type=""} 5\n'
        'dynamo_frontend_requests_total{model="",status="error",error_type="cancelled"} 2\n'
        'dynamo_frontend_requests_total{model="",status="error",error_type="internal"} 1\n'
        'dynamo_frontend_queued_requests{model=""} 9\ndynamo_frontend_router_queue_pending_requests 4',
        {
            "requests_finished/finished": 5,
            "requests_finished/abort": 2,
            "requests_finished/error": 1,
            "requests_waiting": 4,
        },
    ),
    "Triton's kinds of requests are told by a label": (
        "triton",
        'nv_trt_llm_request_metrics{request_type="scheduled",version="1"} 3\n'
        'nv_trt_llm_request_metrics{request_type="waiting",version="1"} 2\n'
        'nv_trt_llm_request_metrics{request_type="max",version="1"} 64\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",version="1"} 0.5\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",version="1"} 900',
        {"requests_running": 3, "requests_waiting": 2, "kv_cache_usage_ratio": 0.5},
    ),
    "NIM 1.x counts by the engine inside": (
        "nim",
        'num_requests_running{model_name=""} 3\nnum_request_max 8\ngpu_cache_usage_perc 0.5\n'
        'request_finish_total{finished_reason="length"} 2\nrequest_success_total 2',
        {"requests_running": 3, "kv_cache_usage_ratio": 0.5, "requests_finished/length": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("engine", "page", "said"), GAUGES.values(), ids=GAUGES)
def test_numbers(engine: str, page: str, said: dict[str, float]) -> None:
    signals = signals_of(page, ENGINES[engine])
    assert {**signals.gauges, **signals.counters} == {key(name, ""): value for name, value in said.items()}


def histogram(name: str, buckets: dict[str, float], total: float, labels: str = "") -> str:
    lines = [f'{name}_bucket{{le="{bound}"{labels}}} {count}' for bound, count in buckets.items()]
    plain = f"{{{labels.lstrip(',')}}}"
    return "\n".join(
        [*lines, f"{name}_count{plain} {list(buckets.values())[-1]}", f"{name}_sum{plain} {total}", ""]
    )


STAGE = "sglang:per_stage_req_latency_seconds"
TTFT = "vllm:time_to_first_token_seconds"
DISTRIBUTIONS: dict[str, tuple[str, str, dict[str, Distribution]]] = {
    "buckets are told each by itself": (
        "vllm",
        histogram(TTFT, {"0.1": 1, "1.0": 4, "+Inf": 5}, 3.5),
        {"ttft": Distribution((0.1, 1.0), (1, 3, 1), 5, 3.5)},
    ),
    "histograms of two processes are added up": (
        "vllm",
        histogram(TTFT, {"0.1": 1, "1.0": 4, "+Inf": 5}, 3.5, ',engine="0"')
        + histogram(TTFT, {"0.1": 2, "1.0": 2, "+Inf": 2}, 0.1, ',engine="1"'),
        {"ttft": Distribution((0.1, 1.0), (3, 3, 1), 7, 3.6)},
    ),
    "of layouts that differ the common bounds are kept": (
        "vllm",
        histogram(TTFT, {"0.1": 1, "0.5": 2, "1.0": 4, "+Inf": 5}, 3.5, ',engine="0"')
        + histogram(TTFT, {"0.1": 2, "1.0": 3, "2.0": 3, "+Inf": 3}, 0.5, ',engine="1"'),
        {"ttft": Distribution((0.1, 1.0), (3, 4, 1), 8, 4.0)},
    ),
    "bounds in any order, and written in any way": (
        "vllm",
        f'{TTFT}_bucket{{le="1"}} 4\n{TTFT}_bucket{{le="1e-1"}} 1\n{TTFT}_bucket{{le="+Inf"}} 5\n'
        f"{TTFT}_sum 3.5\n{TTFT}_count 5\n",
        {"ttft": Distribution((0.1, 1.0), (1, 3, 1), 5, 3.5)},
    ),
    "without buckets there are still count and sum": (
        "vllm",
        f"{TTFT}_sum 3.5\n{TTFT}_count 5\n",
        {"ttft": Distribution((), (5,), 5, 3.5)},
    ),
    "without a sum it is missing": ("vllm", f'{TTFT}_count 5\n{TTFT}_bucket{{le="1"}} 5\n', {}),
    "a sum that is not a number is none": ("vllm", f"{TTFT}_count 5\n{TTFT}_sum NaN\n", {}),
    "ITL under the name that it had": (
        "vllm",
        histogram("vllm:time_per_output_token_seconds", {"0.1": 1, "+Inf": 1}, 0.05),
        {"itl": Distribution((0.1,), (1, 0), 1, 0.05)},
    ),
    "SGLang's unary requests are in E2E but have no TTFT": (
        "sglang",
        histogram("sglang:time_to_first_token_seconds", {"1": 1, "+Inf": 1}, 0.5, ',is_streaming="true"')
        + histogram("sglang:time_to_first_token_seconds", {"1": 0, "+Inf": 7}, 70, ',is_streaming="false"')
        + histogram("sglang:e2e_request_latency_seconds", {"1": 0, "+Inf": 1}, 2, ',is_streaming="true"')
        + histogram("sglang:e2e_request_latency_seconds", {"1": 0, "+Inf": 7}, 70, ',is_streaming="false"'),
        {"ttft": Distribution((1.0,), (1, 0), 1, 0.5), "e2e": Distribution((1.0,), (0, 8), 8, 72)},
    ),
    "SGLang before the label": (
        "sglang",
        histogram("sglang:time_to_first_token_seconds", {"1": 1, "+Inf": 1}, 0.5, ',model_name=""'),
        {"ttft": Distribution((1.0,), (1, 0), 1, 0.5)},
    ),
    "one stage of SGLang's is prefill": (
        "sglang",
        histogram(STAGE, {"1": 2, "+Inf": 2}, 0.5, ',stage="prefill_forward"')
        + histogram(STAGE, {"1": 9, "+Inf": 9}, 4, ',stage="decode_waiting"'),
        {"prefill": Distribution((1.0,), (2, 0), 2, 0.5)},
    ),
    "ranks that tell the same are one histogram": (
        "sglang",
        histogram("sglang:queue_time_seconds", {"1": 2, "+Inf": 2}, 0.5, ',tp_rank="0"')
        + histogram("sglang:queue_time_seconds", {"1": 2, "+Inf": 2}, 0.5, ',tp_rank="1"'),
        {"queue": Distribution((1.0,), (2, 0), 2, 0.5)},
    ),
    "Triton's vLLM back end": (
        "triton",
        "nv_inference_count 1\n"
        + histogram("vllm:time_to_first_token_seconds", {"1": 2, "+Inf": 2}, 0.5, ',model="",version="1"'),
        {"ttft": Distribution((1.0,), (2, 0), 2, 0.5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("engine", "page", "said"), DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_distributions(engine: str, page: str, said: dict[str, Distribution]) -> None:
    assert signals_of(page, ENGINES[engine]).distributions == {
        key(name, ""): each for name, each in said.items()
    }


def test_what_the_models_are_called_is_for_the_sidecar_to_say() -> None:
    """Two models that get one label are added up; a page without models asks for the name of None."""
    page = 'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 2'
    asked = []

    def other(name: str | None) -> str:
        asked.append(name)
        return "other"

    assert read(series_of(page, VLLM), VLLM, other).gauges == {Key("requests_running", "other"): 3}
    read(series_of("llamacpp:requests_processing 1", LLAMA), LLAMA, other)
    assert asked == ["a", "b", None]


def test_the_start_is_the_page_s_or_what_was_told_beside_it() -> None:
    page = "vllm:num_requests_running 1\nprocess_start_time_seconds 1.5e9"
    assert signals_of(page, VLLM).started == 1.5e9
    assert signals_of("llamacpp:requests_processing 1", LLAMA, 7.0).started == 7.0
    assert signals_of("llamacpp:requests_processing 1", LLAMA).started is None


# --- the tables

ROWS = [(engine, row) for engine in ENGINES.values() for row in engine.signals]


@pytest.mark.parametrize(("engine", "row"), ROWS, ids=[f"{e.name}-{r.signal}-{r.value}" for e, r in ROWS])
def test_a_row_is_whole(engine: Engine, row: Any) -> None:
    assert row.signal in SIGNALS
    assert row.cohort in ("live", "at_end")
    assert (row.interval is not None) == (row.kind == "histogram")
    assert row.names
    assert not (row.value and row.by)
    assert not any(name.endswith(("_bucket", "_count")) for name in row.names if isinstance(name, str))
    assert not any("network_transit" in name for name in row.names), "two machines' clocks"


def test_llama_cpp_s_rates_are_not_read() -> None:
    """Each reading resets them."""
    assert not {name for name in wanted(LLAMA) if name.endswith("tokens_seconds")}
