"""vLLM: V1 and V0, and its Rust front end, which has the same names.

Source: vllm/v1/metrics/loggers.py and stats.py at 017e9f4448 (2026-08-17); recorded page of 0.32.0.
"""

from sidecar.engines.table import Engine, Interval, Signal

_ARRIVAL = "front end, before templating and tokenisation"
_SCHEDULED = "first scheduled"
_FIRST = "batch with the first token"
_LAST = "batch with the last token"
_V0 = "V0 measured from the arrival, on the wall clock"

VLLM = Engine(
    name="vllm",
    title="vLLM",
    path="/metrics",
    enable="on by default; off with `--disable-log-stats`",
    marks=("vllm:",),
    model=("model_name",),
    processes=("engine",),
    version=("/version", "version"),
    owner="vllm",
    signals=(
        Signal("requests_running", "gauge", ("vllm:num_requests_running",), "live"),
        Signal(
            "requests_waiting",
            "gauge",
            ("vllm:num_requests_waiting",),
            "live",
            note="since April 2026 with deferred requests",
        ),
        Signal(
            "kv_cache_usage_ratio",
            "gauge",
            ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "live",
            largest=True,
            note="a fraction, despite its name",
        ),
        Signal("preemptions", "counter", ("vllm:num_preemptions_total",), "live"),
        Signal(
            "prefix_cache_queries",
            "counter",
            ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
            "live",
        ),
        Signal(
            "prefix_cache_hits",
            "counter",
            ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            "live",
            note="V0 has a rate only: missing",
        ),
        Signal(
            "input_tokens",
            "counter",
            ("vllm:prompt_tokens_total",),
            "live",
            note="when prefill ends, cached tokens included; also of requests whose client left",
        ),
        Signal("output_tokens", "counter", ("vllm:generation_tokens_total",), "live"),
        Signal(
            "requests_finished",
            "counter",
            ("vllm:request_success_total",),
            "at_end",
            by="finished_reason",
            note="without requests whose client left",
        ),
        Signal("spec_tokens", "counter", ("vllm:spec_decode_num_draft_tokens_total",), "live", value="draft"),
        Signal(
            "spec_tokens",
            "counter",
            ("vllm:spec_decode_num_accepted_tokens_total",),
            "live",
            value="accepted",
        ),
        Signal(
            "queue",
            "histogram",
            ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
            "at_end",
            Interval("queued in the scheduler", _SCHEDULED, "monotonic"),
            note=f"with waits for grammar compilation and remote KV cache; buckets begin at 0.3 s; {_V0}",
        ),
        Signal(
            "prefill",
            "histogram",
            ("vllm:request_prefill_time_seconds",),
            "at_end",
            Interval(_SCHEDULED, _FIRST, "monotonic"),
            note=f"buckets begin at 0.3 s; {_V0}",
        ),
        Signal(
            "decode",
            "histogram",
            ("vllm:request_decode_time_seconds",),
            "at_end",
            Interval(_FIRST, _LAST, "monotonic"),
            note="preemption included; buckets begin at 0.3 s",
        ),
        Signal(
            "ttft",
            "histogram",
            ("vllm:time_to_first_token_seconds",),
            "live",
            Interval(_ARRIVAL, f"{_FIRST} processed in the front end", "wall"),
            note="one a sequence, also of requests whose client left later",
        ),
        Signal(
            "itl",
            "histogram",
            ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            "live",
            Interval("batch with a token of the request", "the next such batch", "monotonic"),
            note="one an engine step, not a token; the old name meant the same",
        ),
        Signal(
            "e2e",
            "histogram",
            ("vllm:e2e_request_latency_seconds",),
            "at_end",
            Interval(_ARRIVAL, f"{_LAST} processed in the front end", "wall"),
        ),
    ),
    recorded="0.32.0",
    seen=frozenset(
        {
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:num_preemptions_total",
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:request_success_total",
            "vllm:request_queue_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:e2e_request_latency_seconds",
        }
    ),
)
