"""Hugging Face TGI: no model label; durations are in seconds without saying so; all recorded at the end.

Source: router/src/infer/mod.rs and backends/v3/src at v3.3.7 (2026-01-08).
"""

from sidecar.engines.table import Engine, Interval, Signal

TGI = Engine(
    name="tgi",
    title="Hugging Face TGI",
    path="/metrics",
    enable="on by default",
    marks=("tgi_",),
    version=("/info", "version"),
    signals=(
        Signal("requests_running", "gauge", ("tgi_batch_current_size",), "live"),
        Signal("requests_waiting", "gauge", ("tgi_queue_size",), "live"),
        Signal("input_tokens", "counter", ("tgi_request_input_length_sum",), "at_end"),
        Signal("output_tokens", "counter", ("tgi_request_generated_tokens_sum",), "at_end"),
        Signal("requests_finished", "counter", ("tgi_request_success",), "at_end", value="finished"),
        Signal(
            "requests_finished",
            "counter",
            ("tgi_request_failure",),
            "at_end",
            value="error",
            where={"err": ("overloaded", "validation", "template", "incomplete", "generation")},
        ),
        Signal(
            "requests_finished",
            "counter",
            ("tgi_request_failure",),
            "at_end",
            value="abort",
            where={"err": ("dropped",)},
        ),
        Signal(
            "queue",
            "histogram",
            ("tgi_request_queue_duration",),
            "at_end",
            Interval("queued, after validation", "first batch starts", "monotonic"),
        ),
        Signal(
            "e2e",
            "histogram",
            ("tgi_request_duration",),
            "at_end",
            Interval("start of the handler", "end", "monotonic"),
            note="not of clients that left",
        ),
    ),
)
