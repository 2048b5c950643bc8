"""SGLang.

Source: python/sglang/srt/observability/metrics_collector.py and req_time_stats.py at v0.5.18; the page that
the collector classes of 0.5.23 render.
"""

from sidecar.engines.table import Engine, Interval, Signal

_ENTRY = "start of the request handler"
_HITS = ("device_hit", "host_hit", "storage_hit")

SGLANG = Engine(
    name="sglang",
    title="SGLang",
    path="/metrics",
    enable="`--enable-metrics`; with DP attention also `--enable-metrics-for-all-schedulers`",
    marks=("sglang:",),
    model=("model_name",),
    processes=("dp_rank", "engine_type"),
    copies=("tp_rank", "pp_rank", "moe_ep_rank"),
    totals=("priority",),
    signals=(
        Signal(
            "requests_running",
            "gauge",
            ("sglang:num_running_reqs",),
            "live",
            note="written at prefill batches and every 40 decode steps: seconds old under load",
        ),
        Signal(
            "requests_waiting",
            "gauge",
            ("sglang:num_queue_reqs",),
            "live",
            note="without those that wait for a grammar or for PD transfer; as old as requests_running",
        ),
        Signal("kv_cache_usage_ratio", "gauge", ("sglang:token_usage",), "live", largest=True),
        Signal(
            "preemptions",
            "counter",
            ("sglang:num_retracted_requests_total", "sglang:total_retracted_reqs"),
            "live",
            note="SGLang says retracted",
        ),
        Signal(
            "prefix_cache_queries",
            "counter",
            ("sglang:prefill_effective_tokens_total",),
            "live",
            where={"mode": ("input", *_HITS)},
        ),
        Signal(
            "prefix_cache_hits",
            "counter",
            ("sglang:prefill_effective_tokens_total", "sglang:cached_tokens_total"),
            "live",
            where={"mode": (*_HITS, ""), "cache_source": ("total", "")},
            note="the older name moves when requests end",
        ),
        Signal(
            "input_tokens",
            "counter",
            ("sglang:prompt_tokens_total",),
            "at_end",
            note="cached tokens included",
        ),
        Signal("output_tokens", "counter", ("sglang:generation_tokens_total",), "at_end"),
        Signal(
            "requests_finished",
            "counter",
            ("sglang:num_requests_total",),
            "at_end",
            value="finished",
            note="no reason told",
        ),
        Signal(
            "requests_finished",
            "counter",
            ("sglang:num_aborted_requests_total", "sglang:num_aborted_requests"),
            "at_end",
            value="abort",
        ),
        Signal(
            "queue",
            "histogram",
            ("sglang:queue_time_seconds", "sglang:queue_time_s"),
            "live",
            Interval("entry into the scheduler's queue", "batch formed", "monotonic"),
            note="without grammar compilation and PD bootstrap",
        ),
        Signal(
            "prefill",
            "histogram",
            ("sglang:per_stage_req_latency_seconds",),
            "live",
            Interval("forward entry", "prefill result processed", "monotonic"),
            where={"stage": ("prefill_forward",)},
            note="without the chunks before the last of a chunked prefill",
        ),
        Signal(
            "ttft",
            "histogram",
            ("sglang:time_to_first_token_seconds",),
            "live",
            Interval(_ENTRY, "first output batch in the tokenizer manager", "monotonic"),
            where={"is_streaming": ("true", "")},
            note="streamed requests; releases without the label mix in unary ones",
        ),
        Signal(
            "itl",
            "histogram",
            ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
            "live",
            Interval("output batch", "the next one, divided by its tokens", "monotonic"),
            note="one a token",
        ),
        Signal(
            "e2e",
            "histogram",
            ("sglang:e2e_request_latency_seconds",),
            "at_end",
            Interval(_ENTRY, "end seen by the tokenizer manager", "monotonic"),
        ),
    ),
    recorded="0.5.23, rendered by its collector classes without a server",
    seen=frozenset(
        {
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:token_usage",
            "sglang:prefill_effective_tokens_total",
            "sglang:cached_tokens_total",
            "sglang:prompt_tokens_total",
            "sglang:generation_tokens_total",
            "sglang:num_requests_total",
            "sglang:num_aborted_requests_total",
            "sglang:queue_time_seconds",
            "sglang:time_to_first_token_seconds",
            "sglang:inter_token_latency_seconds",
            "sglang:e2e_request_latency_seconds",
        }
    ),
)
