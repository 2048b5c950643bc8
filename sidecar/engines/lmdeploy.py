"""LMDeploy. All its times are taken from wall clocks, some across its Python and C++ halves.

Source: lmdeploy/metrics/loggers.py and stats.py at 1263d5cd8 (v0.16.0+5).
"""

from sidecar.engines.table import Engine, Interval, Signal

LMDEPLOY = Engine(
    name="lmdeploy",
    title="LMDeploy",
    path="/metrics",
    enable="on by default; off with `--disable-metrics`; its API key is asked for",
    marks=("lmdeploy:",),
    model=("model_name",),
    processes=("engine",),
    signals=(
        Signal("requests_running", "gauge", ("lmdeploy:num_requests_running",), "live"),
        Signal("requests_waiting", "gauge", ("lmdeploy:num_requests_waiting",), "live"),
        Signal("kv_cache_usage_ratio", "gauge", ("lmdeploy:gpu_cache_usage_perc",), "live", largest=True),
        Signal("prefix_cache_queries", "counter", ("lmdeploy:prompt_tokens_total",), "live"),
        Signal("prefix_cache_hits", "counter", ("lmdeploy:cached_tokens_total",), "live"),
        Signal("input_tokens", "counter", ("lmdeploy:prompt_tokens_total",), "live"),
        Signal("output_tokens", "counter", ("lmdeploy:generation_tokens_total",), "live"),
        Signal(
            "requests_finished",
            "counter",
            ("lmdeploy:request_success_total",),
            "at_end",
            by="finished_reason",
        ),
        Signal(
            "spec_tokens",
            "counter",
            ("lmdeploy:spec_decode_num_draft_tokens_total",),
            "live",
            value="draft",
        ),
        Signal(
            "spec_tokens",
            "counter",
            ("lmdeploy:spec_decode_num_accepted_tokens_total",),
            "live",
            value="accepted",
        ),
        Signal(
            "queue",
            "histogram",
            ("lmdeploy:request_queue_time_seconds",),
            "at_end",
            Interval("queued", "scheduled", "wall"),
        ),
        Signal(
            "prefill",
            "histogram",
            ("lmdeploy:request_prefill_time_seconds",),
            "at_end",
            Interval("scheduled", "first token in the engine", "wall"),
        ),
        Signal(
            "decode",
            "histogram",
            ("lmdeploy:request_decode_time_seconds",),
            "at_end",
            Interval("first token in the engine", "end in the front end", "wall"),
            note="from one process to another",
        ),
        Signal(
            "ttft",
            "histogram",
            ("lmdeploy:time_to_first_token_seconds",),
            "live",
            Interval("arrival", "first output in the front end", "wall"),
        ),
        Signal(
            "itl",
            "histogram",
            ("lmdeploy:iter_token_latency",),
            "live",
            Interval("token in the engine", "the next output in the front end", "wall"),
            note="carries the way between processes every time",
        ),
        Signal(
            "e2e",
            "histogram",
            ("lmdeploy:e2e_request_latency_seconds",),
            "at_end",
            Interval("arrival", "end in the front end", "wall"),
        ),
    ),
)
