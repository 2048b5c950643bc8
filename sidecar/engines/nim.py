"""NVIDIA NIM for LLMs 1.x, whose names have no prefix. NIM 2.x passes its engine's page on, read as such.

Source: NVIDIA's documentation of 1.x. What a duration means follows the engine inside and is not told.
"""

from sidecar.engines.table import Engine, Interval, Signal

_OPAQUE = "as in the engine inside, which the page does not name"

NIM = Engine(
    name="nim",
    title="NVIDIA NIM",
    path="/v1/metrics",
    enable="on by default; 2.x has the names of its engine (vLLM or SGLang) on the same path",
    marks=("num_request_max", "request_finish_total"),
    model=("model_name", "model"),
    signals=(
        Signal("requests_running", "gauge", ("num_requests_running",), "live"),
        Signal("requests_waiting", "gauge", ("num_requests_waiting",), "live"),
        Signal("kv_cache_usage_ratio", "gauge", ("gpu_cache_usage_perc",), "live", largest=True),
        Signal("input_tokens", "counter", ("prompt_tokens_total",), "live"),
        Signal("output_tokens", "counter", ("generation_tokens_total",), "live"),
        Signal("requests_finished", "counter", ("request_finish_total",), "at_end", by="finished_reason"),
        Signal(
            "ttft",
            "histogram",
            ("time_to_first_token_seconds",),
            "live",
            Interval("arrival", "first token", ""),
            note=_OPAQUE,
        ),
        Signal(
            "e2e",
            "histogram",
            ("e2e_request_latency_seconds",),
            "at_end",
            Interval("arrival", "end", ""),
            note=_OPAQUE,
        ),
    ),
)
