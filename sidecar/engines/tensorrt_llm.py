"""TensorRT-LLM's `trtllm-serve`. Its `/metrics` and `/perf_metrics` are JSON lists that reading empties.

Source: tensorrt_llm/metrics/collector.py and serve/openai_server.py, several versions up to August 2026.
"""

from sidecar.engines.table import Engine, Interval, Signal

_ARRIVAL = "arrival at the LLM API, after HTTP parsing"
_SCHEDULED = "first scheduled"
_FIRST = "first token"
_LAST = "last token"
_STALE = "refreshed when a request ends: old during long generations"


def _ages(stem: str) -> tuple[str, ...]:
    """Today's prefix, the one that some deployments through Dynamo have, the first releases' none."""
    return f"trtllm_{stem}", f"trtllm:{stem}", stem


TENSORRT_LLM = Engine(
    name="tensorrt_llm",
    title="TensorRT-LLM",
    path="/prometheus/metrics",
    enable="`return_perf_metrics: true` in the file given by `--config` (`--extra_llm_api_options`)",
    # The first releases' names have no prefix; NIM 1.x shares some of them, but not this one.
    marks=("trtllm_", "trtllm:", "request_queue_time_seconds"),
    model=("model_name",),
    processes=("engine_type",),
    version=("/version", "version"),
    owner="tensorrt_llm",
    never=("/metrics", "/perf_metrics"),
    signals=(
        Signal("requests_running", "gauge", _ages("num_requests_running"), "at_end", note=_STALE),
        Signal("requests_waiting", "gauge", _ages("num_requests_waiting"), "at_end", note=_STALE),
        Signal(
            "kv_cache_usage_ratio",
            "gauge",
            _ages("kv_cache_utilization"),
            "at_end",
            largest=True,
            note=_STALE,
        ),
        Signal("prefix_cache_queries", "counter", _ages("prompt_tokens_total"), "at_end"),
        Signal("prefix_cache_hits", "counter", _ages("prompt_cached_tokens_total"), "at_end"),
        Signal("input_tokens", "counter", _ages("prompt_tokens_total"), "at_end", note="not when n > 1"),
        Signal("output_tokens", "counter", _ages("generation_tokens_total"), "at_end", note="not when n > 1"),
        Signal(
            "requests_finished", "counter", _ages("request_success_total"), "at_end", by="finished_reason"
        ),
        Signal("requests_finished", "counter", _ages("request_error_total"), "at_end", value="error"),
        Signal(
            "spec_tokens", "counter", _ages("spec_decode_num_draft_tokens_total"), "at_end", value="draft"
        ),
        Signal(
            "spec_tokens",
            "counter",
            _ages("spec_decode_num_accepted_tokens_total"),
            "at_end",
            value="accepted",
        ),
        Signal(
            "queue",
            "histogram",
            _ages("request_queue_time_seconds"),
            "at_end",
            Interval(_ARRIVAL, _SCHEDULED, "monotonic"),
        ),
        Signal(
            "prefill",
            "histogram",
            _ages("request_prefill_time_seconds"),
            "at_end",
            Interval(_SCHEDULED, _FIRST, "monotonic"),
        ),
        Signal(
            "decode",
            "histogram",
            _ages("request_decode_time_seconds"),
            "at_end",
            Interval(_FIRST, _LAST, "monotonic"),
        ),
        Signal(
            "ttft",
            "histogram",
            _ages("time_to_first_token_seconds"),
            "at_end",
            Interval(_ARRIVAL, _FIRST, "monotonic"),
        ),
        Signal(
            "e2e",
            "histogram",
            _ages("e2e_request_latency_seconds"),
            "at_end",
            Interval(_ARRIVAL, _LAST, "monotonic"),
        ),
    ),
)
