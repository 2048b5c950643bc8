"""What engines say of a request's timing inside its own answer: a table, and one reader for all rows.

Source: engines.md 1.4, 2.x "In-band" and section 5. Only durations are taken, or differences of two of
them; stamps (`request_received_ms`, `*_ts`, `X-TRTLLM-Start-End-Time`) are never read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sidecar.core.answer_headers import EXTRA as HEADERS
from sidecar.core.server_timings import ServerTimings

MS, NS, S = 1e-3, 1e-9, 1.0
MAX_SECONDS = 86400.0


class InBand(NamedTuple):
    """Where an engine's numbers are and what is made of them.

    A term is a sum of fields: `("a", "-b")` is a minus b. Without all its fields a term is unknown, unless
    `absent_is_zero`.
    """

    engine: str
    extra: str  # what the dialect kept: a member of the answer, an event's type, or the headers
    inside: tuple[str, ...]  # members down to the object with the fields
    unit: float  # seconds
    terms: dict[str, tuple[str, ...]]  # field of ServerTimings -> its sum
    switched_on_by: str  # in the engine's or the client's words
    streams: bool = True
    cached: str | None = None  # field: input tokens out of the cache
    absent_is_zero: bool = False
    note: str = ""


_TRT_TERMS = {
    "queue": ("server_queue",),
    "prefill": ("server_ttft", "-server_queue"),
    "decode": ("server_e2e", "-server_ttft"),
    "ttft": ("server_ttft",),
    "e2e": ("server_e2e",),
}
_TRT_ON = (
    "`return_perf_metrics: true`, and the request header `X-TRTLLM-return-metrics: 1` or `engine_timings`"
)

# The first row with a known term counts.
IN_BAND: tuple[InBand, ...] = (
    InBand(
        "vllm", "metrics", (), MS,
        {
            "queue": ("queue_time_ms",),
            "prefill": ("time_to_first_token_ms",),
            "decode": ("generation_time_ms",),
        },
        "`--enable-per-request-metrics`, and usage asked for by the client or by `engine_timings`",
        note="`time_to_first_token_ms` starts when the request is scheduled: it is the prefill. After a "
        "preemption the second wait is in `generation_time_ms`. Not sent with n > 1.",
    ),
    InBand(
        "llama.cpp", "timings", (), MS,
        {"prefill": ("prompt_ms",), "decode": ("predicted_ms",)},
        "always",
        cached="cache_n",
        note="The queue is not told: it is in `unattributed`, and in the time to headers (b9428 and later).",
    ),
    InBand(
        "ollama", "ollama", (), NS,
        {
            "queue": ("total_duration", "-prompt_eval_duration", "-eval_duration"),
            "prefill": ("prompt_eval_duration",),
            "decode": ("eval_duration",),
            "e2e": ("total_duration",),
        },
        "always, on the native routes",
        absent_is_zero=True,
        note="`queue` is what is left of the total: waiting, and loading the model.",
    ),
    InBand(
        "sglang", "meta_info", (), S,
        {"queue": ("queue_time",), "e2e": ("e2e_latency",)},
        "`--enable-metrics`, on `/generate`",
        cached="cached_tokens",
        note="No duration tells prefill from decode, so the join says `missing`: use the spans. A queue time "
        "below zero (after a retraction) is not taken.",
    ),
    InBand(
        "tensorrt_llm", "trtllm.perf_metrics", ("Server-Timing",), MS, _TRT_TERMS, _TRT_ON,
        note="An event after `[DONE]`.",
    ),
    InBand("tensorrt_llm", HEADERS, ("server-timing",), MS, _TRT_TERMS, _TRT_ON, streams=False),
    InBand(
        "dynamo", "nvext", ("timing",), MS,
        {
            "queue": ("prefill_wait_time_ms",),
            "prefill": ("prefill_time_ms",),
            "decode": ("total_time_ms", "-ttft_ms"),
            "ttft": ("ttft_ms",),
            "e2e": ("total_time_ms",),
        },
        '`nvext: {"extra_fields": ["timing"]}` in the request',
    ),
    InBand(
        "groq", "x_groq", ("usage",), S,
        {"queue": ("queue_time",), "prefill": ("prompt_time",), "decode": ("completion_time",)},
        "always, in streams",
    ),
    InBand(
        "tgi", HEADERS, (), MS,
        {"queue": ("x-queue-time",), "e2e": ("x-total-time",)},
        "always, on native routes that do not stream",
        streams=False,
        note="`x-inference-time` has prefill and decode in one, so the join says `missing`.",
    ),
    InBand(
        "openai", HEADERS, (), MS, {"e2e": ("openai-processing-ms",)},
        "always, by OpenAI's own service",
        streams=False,
    ),
)  # fmt: skip


def timings_of(extras: Mapping[str, object], *, streaming: bool) -> ServerTimings | None:
    """The timings in what a response said (`RequestRecord.engine`); None when it said none."""
    for row in IN_BAND:
        if row.extra in extras and (row.streams or not streaming):
            timings = _read(row, _object(extras[row.extra], row.inside))
            if timings is not None:
                return timings
    return None


def _read(row: InBand, fields: Mapping[str, object]) -> ServerTimings | None:
    terms = {name: _sum(fields, term, row) for name, term in row.terms.items()}
    known = {name: seconds for name, seconds in terms.items() if seconds is not None}
    if not known:
        return None
    cached = fields.get(row.cached) if row.cached else None
    return ServerTimings(**known, cached_input_tokens=cached if type(cached) is int and cached >= 0 else None)


def _sum(fields: Mapping[str, object], term: tuple[str, ...], row: InBand) -> float | None:
    total, found = 0.0, False
    for name in term:
        value = _number(fields.get(name.removeprefix("-")))
        if value is None and not row.absent_is_zero:
            return None
        found = found or value is not None
        total += -(value or 0.0) if name.startswith("-") else value or 0.0
    seconds = total * row.unit
    return seconds if found and 0 <= seconds <= MAX_SECONDS else None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e18 else None


def _object(value: object, inside: tuple[str, ...]) -> Mapping[str, object]:
    for name in inside:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return _server_timing(value)
    return value if isinstance(value, dict) else {}


def _server_timing(header: str) -> dict[str, object]:
    """`name;dur=number;desc=text, name;dur=number` (W3C Server Timing), in its own unit."""
    durations: dict[str, object] = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                durations[name] = value.strip().strip('"')
    return durations
