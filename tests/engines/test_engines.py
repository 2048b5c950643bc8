"""Which engine a page is of."""

from typing import get_args

import pytest

from sidecar.config import EngineConfig
from sidecar.engines import ENGINES, detect

PAGES = [
    ("vLLM", ["python_info", "vllm:num_requests_running"], "vllm"),
    ("SGLang", ["sglang:token_usage"], "sglang"),
    ("llama.cpp", ["llamacpp:requests_processing"], "llama.cpp"),
    ("TGI", ["tgi_queue_size"], "tgi"),
    ("LMDeploy", ["lmdeploy:num_requests_running"], "lmdeploy"),
    ("TensorRT-LLM today", ["trtllm_num_requests_running"], "tensorrt_llm"),
    ("TensorRT-LLM below Dynamo", ["trtllm:e2e_request_latency_seconds_sum"], "tensorrt_llm"),
    ("TensorRT-LLM's first releases", ["time_to_first_token_seconds_sum", "request_queue_time_seconds_sum"],
     "tensorrt_llm"),
    ("NIM 1.x", ["num_requests_running", "num_request_max", "time_to_first_token_seconds_sum"], "nim"),
    ("NIM 2.x shows vLLM's names", ["vllm:kv_cache_usage_perc"], "vllm"),
    ("a front end of Dynamo's", ["dynamo_frontend_requests_total"], "dynamo"),
    ("a worker of Dynamo's shows its engine's names",
     ["dynamo_component_requests_total", "vllm:num_requests_running"], "vllm"),
    ("Triton with the vLLM back end", ["vllm:prompt_tokens_total", "nv_inference_count"], "triton"),
    ("Triton with the TensorRT-LLM back end", ["nv_trt_llm_request_metrics"], "triton"),
    ("an unknown program", ["go_goroutines", "process_start_time_seconds"], None),
    ("vLLM without statistics", ["http_requests_total", "python_info"], None),
    ("nothing", [], None),
]  # fmt: skip


@pytest.mark.parametrize(("names", "engine"), [row[1:] for row in PAGES], ids=[row[0] for row in PAGES])
def test_detect(names: list[str], engine: str | None) -> None:
    found = detect(names)
    assert (found.name if found else None) == engine


KINDS = [
    ("NIM that was set and passes vLLM on", ["vllm:num_requests_running"], "nim", "vllm"),
    (
        "an engine that was set and shows another one's names too",
        ["vllm:a", "nv_inference_count"],
        "vllm",
        "vllm",
    ),
    ("an engine that was set and is not there", ["go_goroutines"], "vllm", None),
]


@pytest.mark.parametrize(
    ("names", "kind", "engine"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS]
)
def test_detect_what_was_set(names: list[str], kind: str, engine: str | None) -> None:
    found = detect(names, kind)
    assert (found.name if found else None) == engine


def test_the_setting_has_all_engines_and_auto() -> None:
    annotation = EngineConfig.model_fields["kind"].annotation
    assert set(get_args(annotation)) == {"auto", *ENGINES}


def test_a_page_that_may_not_be_read_is_no_page_of_its_engine() -> None:
    assert [engine.name for engine in ENGINES.values() if engine.path in engine.never] == []
    assert ENGINES["tensorrt_llm"].never == ("/metrics", "/perf_metrics")
