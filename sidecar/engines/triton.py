"""Triton with its LLM back ends (TensorRT-LLM, vLLM). Its queue and compute times are not an LLM's phases.

Source: server e1db8a603, core 73aad7c, tensorrtllm_backend 0b9d7d5, vllm_backend 8de0c14 (2026-08).
"""

from sidecar.engines.table import Engine, Interval, Signal

_REQUESTS = "nv_trt_llm_request_metrics"
_VLLM = "vLLM back end, with REPORT_CUSTOM_METRICS"

TRITON = Engine(
    name="triton",
    title="Triton Inference Server",
    path="/metrics",
    enable="on by default, on port 8002: set `engine.metrics`; the vLLM back end needs REPORT_CUSTOM_METRICS",
    marks=("nv_inference_", "nv_trt_llm_"),
    model=("model",),
    processes=("version", "gpu_uuid"),
    signals=(
        Signal(
            "requests_running",
            "gauge",
            (_REQUESTS,),
            "live",
            where={"request_type": ("scheduled",)},
            note="TensorRT-LLM back end",
        ),
        Signal(
            "requests_waiting",
            "gauge",
            (_REQUESTS,),
            "live",
            where={"request_type": ("waiting",)},
            note="TensorRT-LLM back end",
        ),
        Signal(
            "kv_cache_usage_ratio",
            "gauge",
            ("nv_trt_llm_kv_cache_block_metrics",),
            "live",
            where={"kv_cache_block_type": ("fraction",)},
            largest=True,
            note="TensorRT-LLM back end",
        ),
        Signal("input_tokens", "counter", ("vllm:prompt_tokens_total",), "live", note=_VLLM),
        Signal("output_tokens", "counter", ("vllm:generation_tokens_total",), "live", note=_VLLM),
        Signal(
            "requests_finished",
            "counter",
            ("nv_inference_request_success",),
            "at_end",
            value="finished",
            note="each model of an ensemble counts",
        ),
        Signal(
            "requests_finished",
            "counter",
            ("nv_inference_request_failure",),
            "at_end",
            value="error",
            where={"reason": ("REJECTED", "BACKEND", "OTHER")},
        ),
        Signal(
            "requests_finished",
            "counter",
            ("nv_inference_request_failure",),
            "at_end",
            value="abort",
            where={"reason": ("CANCELED",)},
        ),
        Signal(
            "ttft",
            "histogram",
            ("vllm:time_to_first_token_seconds",),
            "live",
            Interval("arrival", "first token", "wall"),
            note=f"{_VLLM}; Triton's own time to the first response has four buckets and is not read",
        ),
        Signal(
            "itl",
            "histogram",
            ("vllm:time_per_output_token_seconds",),
            "live",
            Interval("token", "the next one", "monotonic"),
            note=_VLLM,
        ),
        Signal(
            "e2e",
            "histogram",
            ("vllm:e2e_request_latency_seconds",),
            "at_end",
            Interval("arrival", "last token", "wall"),
            note=_VLLM,
        ),
    ),
)
