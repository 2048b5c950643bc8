"""NVIDIA Dynamo's front end. Its workers' pages hold the series of their engine and are read as that.

Source: lib/llm/src/http/service/metrics.rs at 2a6da14c8 (2026-08-21). Never to be read: the transit time
between its parts, which subtracts one machine's wall clock from another's.
"""

from sidecar.engines.table import Engine, Interval, Signal

_ERRORS = (
    *("", "validation", "not_found", "overload", "unavailable", "response_timeout", "internal"),
    "not_implemented",
)

DYNAMO = Engine(
    name="dynamo",
    title="NVIDIA Dynamo front end",
    path="/metrics",
    enable="on by default; the worker's page needs `DYN_SYSTEM_PORT`",
    marks=("dynamo_frontend_",),
    model=("model",),
    signals=(
        Signal(
            "requests_running",
            "gauge",
            ("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests"),
            "live",
        ),
        Signal(
            "requests_waiting",
            "gauge",
            ("dynamo_frontend_router_queue_pending_requests",),
            "live",
            note="the router's queue; queued_requests would include prefill",
        ),
        Signal("prefix_cache_queries", "counter", ("dynamo_frontend_input_sequence_tokens_sum",), "at_end"),
        Signal("prefix_cache_hits", "counter", ("dynamo_frontend_cached_tokens_sum",), "at_end"),
        Signal("input_tokens", "counter", ("dynamo_frontend_input_sequence_tokens_sum",), "at_end"),
        Signal("output_tokens", "counter", ("dynamo_frontend_output_tokens_total",), "live"),
        Signal(
            "requests_finished",
            "counter",
            ("dynamo_frontend_requests_total",),
            "at_end",
            value="finished",
            where={"status": ("success",)},
        ),
        Signal(
            "requests_finished",
            "counter",
            ("dynamo_frontend_requests_total",),
            "at_end",
            value="error",
            where={"status": ("error",), "error_type": _ERRORS},
        ),
        Signal(
            "requests_finished",
            "counter",
            ("dynamo_frontend_requests_total",),
            "at_end",
            value="abort",
            where={"status": ("error",), "error_type": ("cancelled",)},
        ),
        Signal(
            "ttft",
            "histogram",
            ("dynamo_frontend_time_to_first_token_seconds",),
            "live",
            Interval("handler, after parsing", "first chunk with a token", "monotonic"),
            note="unary requests too",
        ),
        Signal(
            "itl",
            "histogram",
            ("dynamo_frontend_inter_token_latency_seconds",),
            "live",
            Interval("chunk with tokens", "the next one, divided by its tokens", "monotonic"),
            note="one a token, without those of the first chunk",
        ),
        Signal(
            "e2e",
            "histogram",
            ("dynamo_frontend_request_duration_seconds",),
            "at_end",
            Interval("handler", "response ended", "monotonic"),
            note="buckets begin at 1 s",
        ),
    ),
)
