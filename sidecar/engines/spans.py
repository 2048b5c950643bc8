"""The engines' spans: how each is recognised, which attributes it has, in which unit.

Only durations are read, never a span's own start or end: those are another machine's wall clock. What each
attribute means: vLLM `vllm/tracing`, SGLang `python/sglang/srt/observability/trace.py`, TensorRT-LLM
`tensorrt_llm/llmapi/tracing.py`, TGI `router/src/server.rs`, Dynamo `lib/llm/src/http/service`.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sidecar.core.server_timings import ServerTimings
from sidecar.core.span_match import EngineSpan, Reading, Stage

Attributes = Mapping[str, str | float]

QUEUE = "gen_ai.latency.time_in_queue"
PREFILL = "gen_ai.latency.time_in_model_prefill"
DECODE = "gen_ai.latency.time_in_model_decode"
TTFT = "gen_ai.latency.time_to_first_token"
E2E = "gen_ai.latency.e2e"
REQUEST_ID = "gen_ai.request.id"

SGLANG_QUEUE_STAGE = "prefill_waiting"

_MAX_SECONDS = 86_400.0  # no request takes longer: such a number is none
_RUST_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|ms|µs|us|ns)")
_RUST_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}


class SpanRow(NamedTuple):
    """One engine's request span."""

    engine: str
    is_request: Callable[[EngineSpan], bool]
    timings: Callable[[Attributes, Stage], ServerTimings]
    request_id: str | None = None  # the attribute that carries the request's id


def read(span: EngineSpan, stage: Stage) -> Reading | None:
    """What a span says of the request that it is about; None for a span that is about no request.

    `stage` gives the seconds of the spans below it with some name.
    """
    for row in ROWS:
        if row.is_request(span):
            request_id = span.attributes.get(row.request_id) if row.request_id else None
            return Reading(
                row.engine,
                row.timings(span.attributes, stage),
                request_id if isinstance(request_id, str) else None,
            )
    return None


def _vllm(attributes: Attributes, _stage: Stage) -> ServerTimings:
    return ServerTimings(
        queue=_number(attributes, QUEUE),
        prefill=_number(attributes, PREFILL),
        decode=_number(attributes, DECODE),
        ttft=_number(attributes, TTFT),
        e2e=_number(attributes, E2E),
    )


def _sglang(attributes: Attributes, stage: Stage) -> ServerTimings:
    """Its prefill begins when the request is dispatched, so the queue is in it: a stage span tells it."""
    queue = _number(attributes, QUEUE)
    if queue is None:
        queue = stage(SGLANG_QUEUE_STAGE)
    return ServerTimings(
        queue=queue,
        prefill=_rest(_number(attributes, PREFILL), queue),
        decode=_number(attributes, DECODE),
        ttft=_number(attributes, TTFT),
        e2e=_number(attributes, E2E),
    )


def _tensorrt_llm(attributes: Attributes, _stage: Stage) -> ServerTimings:
    """Queue, first and last token are all counted from the request's arrival."""
    queue, ttft, e2e = (_number(attributes, name) for name in (QUEUE, TTFT, E2E))
    return ServerTimings(queue=queue, prefill=_rest(ttft, queue), decode=_rest(e2e, ttft), ttft=ttft, e2e=e2e)


def _tgi(attributes: Attributes, _stage: Stage) -> ServerTimings:
    """Its inference time is prefill and decode together, so those stay unknown."""
    return ServerTimings(
        queue=_rust_duration(attributes, "queue_time"), e2e=_rust_duration(attributes, "total_time")
    )


def _dynamo(attributes: Attributes, _stage: Stage) -> ServerTimings:
    """The router's view; the parts are in the span of the worker's own engine, below it."""
    return ServerTimings(ttft=_number(attributes, "ttft_ms", 1e-3))


# The first row that applies counts. TensorRT-LLM's span is known by its tracer: its name has not been seen.
ROWS = (
    SpanRow("trtllm", lambda s: s.scope == "trt.llm" and E2E in s.attributes, _tensorrt_llm, REQUEST_ID),
    SpanRow("sglang", lambda s: "rid" in s.attributes and E2E in s.attributes, _sglang, "rid"),
    SpanRow("vllm", lambda s: s.name == "llm_request", _vllm, REQUEST_ID),
    SpanRow("tgi", lambda s: "inference_time" in s.attributes and "queue_time" in s.attributes, _tgi),
    SpanRow(
        "dynamo", lambda s: s.name == "http-request" and "ttft_ms" in s.attributes, _dynamo, "x_request_id"
    ),
)


def _number(attributes: Attributes, name: str, unit: float = 1.0) -> float | None:
    """Seconds; None for what is missing or can't be a duration."""
    value = attributes.get(name)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if value is None or isinstance(value, bool) or not math.isfinite(value):
        return None
    seconds = value * unit
    return seconds if 0 <= seconds <= _MAX_SECONDS else None


def _rust_duration(attributes: Attributes, name: str) -> float | None:
    """Seconds of what Rust's `{:?}` prints of a Duration, such as `12.3ms`."""
    match = _RUST_DURATION.fullmatch(str(attributes.get(name, "")))
    return None if match is None else float(match[1]) * _RUST_UNITS[match[2]]


def _rest(whole: float | None, part: float | None) -> float | None:
    """What is left of a duration; None when one is unknown or the part is longer than the whole."""
    return None if whole is None or part is None or part > whole else whole - part
