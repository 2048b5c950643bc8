"""Every exported metric as data: names, labels, units, buckets, and what each number means.

Everyone else imports from here; `docs/metrics.md` is printed from here. Base units: seconds, tokens,
ratios of 0 to 1. No colon in a name: colons are for recording rules, and a scraper that asks for
OpenMetrics would get an underscore instead. Every label has a closed set of values, or a capped one
(`model`), so the number of series has an end that is known before the first request.

At most 16 buckets a latency family, `+Inf` included. Where they lie: gaps between tokens are 5 to 50 ms
on today's engines and promises about them are of the same size; first tokens are promised within 0.2 to
2 s; the rest may take minutes. Lengths go by powers of four, as in OpenTelemetry's
`gen_ai.client.token.usage`.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]
Detail = Literal["basic", "full"]


class Family(NamedTuple):
    """One metric family. `labels` are in the order in which a child's values are given."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: str = ""
    buckets: tuple[float, ...] = ()  # upper bounds without +Inf
    detail: Detail = "basic"  # "full": only with `metrics.detail: full`


# --- labels

OTHER: Final = "other"

OPERATIONS: Final = ("chat", "text_completion", "responses", "messages", "generate", "embeddings", OTHER)
OUTCOMES: Final = (
    "completed",
    "client_disconnected_before_output",
    "client_disconnected",
    "client_error",
    "overloaded",
    "upstream_error",
    "upstream_unreachable",
    "upstream_reset",
    "truncated",
    "error_in_stream",
    "timeout",
)
ITL_BASES: Final = ("per_chunk_usage", "chunks")
TPOT_BASES: Final = ("usage", "chunks")
SILENCES: Final = (2, 10, 60)  # seconds
PHASES: Final = ("queue", "prefill", "decode", "ttft", "itl", "e2e")
SIGNALS: Final = (
    "requests_running",
    "requests_waiting",
    "kv_cache_usage_ratio",
    "preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "input_tokens",
    "output_tokens",
    "requests_finished",
    "spec_tokens",
    *PHASES,
)
JOINED_PHASES: Final = (
    "upload", "connect", "queue", "prefill", "unattributed", "decode", "stretch", "ttft", "generation",
)  # fmt: skip
FINISH_REASONS: Final = ("stop", "length", "abort", "error", "repetition", "finished", OTHER)
SPEC_TOKENS: Final = ("draft", "accepted")
SCRAPE_FAILURES: Final = (
    "unreachable",
    "timeout",
    "unauthorized",
    "status",
    "too_large",
    "not_metrics",
    "unknown_engine",
    "several_engines",
)

LABELS: Final[dict[str, tuple[str, ...]]] = {
    "model": (),  # a served name or `other`
    "operation": OPERATIONS,
    "streaming": ("true", "false"),
    "outcome": OUTCOMES,
    "basis": ("per_chunk_usage", "usage", "chunks"),
    "during": ("reasoning", "output", "tool_call"),
    "older_than": tuple(str(seconds) for seconds in SILENCES),
    "signal": SIGNALS,
    "phase": (*JOINED_PHASES, *(phase for phase in PHASES if phase not in JOINED_PHASES)),
    "kind": SPEC_TOKENS,
    "engine_instance": (),  # host:port
    "engine": (),
    "stage": (),  # the rest is what the sidecar's own code names
    "reason": (),
    "result": (),
    "status": ("ok", "missing", "negative", "ambiguous"),
    "source": ("in_band", "span", "none"),
    "size": ("256", "1k", "4k", "16k", "64k", "inf"),  # uncached input tokens up to
    "term": ("n", "x", "y", "xx", "xy"),
    "cohort": ("first_token", "finished"),
    "side": ("sidecar", "engine"),
    "label": (),
    "version": (),
    "digest": (),
}
"""Label -> its values; none listed: not a list that is known here."""

# --- buckets (seconds, tokens)

GAP_BUCKETS: Final = (
    0.001,
    0.002,
    0.003,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.025,
    0.04,
    0.06,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
)
FIRST_TOKEN_BUCKETS: Final = (
    0.01,
    0.025,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    5.0,
    15.0,
    60.0,
)
DURATION_BUCKETS: Final = (
    0.005,
    0.025,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    300.0,
    600.0,
)
WAIT_BUCKETS: Final = (
    0.001,
    0.01,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
STALL_BUCKETS: Final = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LENGTH_BUCKETS: Final = tuple(float(4**power) for power in range(14))
OVERHEAD_BUCKETS: Final = (
    5e-06,
    1e-05,
    2e-05,
    5e-05,
    0.0001,
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.05,
    0.1,
)
LAG_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)

_MODEL = ("model",)
_BY_OPERATION = ("model", "operation")
_BY_STREAMING = ("model", "operation", "streaming")
_BY_BASIS = ("model", "operation", "basis")


def _seconds(
    name: str, labels: tuple[str, ...], buckets: tuple[float, ...], text: str, detail: Detail = "basic"
) -> Family:
    return Family(name, "histogram", labels, text, "seconds", buckets, detail)


def _lengths(name: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(name, "histogram", labels, text, "tokens", LENGTH_BUCKETS)


def _counter(name: str, labels: tuple[str, ...], text: str, unit: str = "") -> Family:
    return Family(name, "counter", labels, text, unit)


def _gauge(name: str, labels: tuple[str, ...], text: str, unit: str = "") -> Family:
    return Family(name, "gauge", labels, text, unit)


def _info(name: str, labels: tuple[str, ...], text: str) -> Family:
    return Family(name, "info", labels, text)


# --- what the clients lived through

REQUESTS = _counter(
    "llm_requests_total",
    ("model", "operation", "streaming", "outcome"),
    "Finished requests by how they ended.",
)
IN_FLIGHT = _gauge("llm_requests_in_flight", _BY_OPERATION, "Requests that have begun and not ended.")
REQUEST_DURATION = _seconds(
    "llm_request_duration_seconds",
    _BY_STREAMING,
    DURATION_BUCKETS,
    "E2E: request head received until the end of the response body.",
)
HEADERS_TIME = _seconds(
    "llm_time_to_response_headers_seconds",
    _BY_STREAMING,
    FIRST_TOKEN_BUCKETS,
    "Request head received until response head received.",
    detail="full",
)
TTFB = _seconds(
    "llm_time_to_first_byte_seconds",
    _BY_STREAMING,
    FIRST_TOKEN_BUCKETS,
    "Request head received until the first byte of the response body.",
)
TTFT = _seconds(
    "llm_time_to_first_token_seconds",
    _BY_OPERATION,
    FIRST_TOKEN_BUCKETS,
    "TTFT: request head received until the first token-bearing chunk, reasoning included; streamed only.",
)
TTFO = _seconds(
    "llm_time_to_first_output_seconds",
    _BY_OPERATION,
    FIRST_TOKEN_BUCKETS,
    "TTFO: request head received until the first chunk of the answer itself; streamed only.",
)
REASONING = _seconds(
    "llm_reasoning_seconds",
    _MODEL,
    DURATION_BUCKETS,
    "First chunk of reasoning until first chunk of the answer; streamed only.",
)
ICL = _seconds(
    "llm_inter_chunk_latency_seconds",
    _BY_OPERATION,
    GAP_BUCKETS,
    "ICL: gaps between token-bearing chunks of one choice, without gaps in which the client took nothing.",
)
ITL = _seconds(
    "llm_inter_token_latency_seconds",
    _BY_BASIS,
    GAP_BUCKETS,
    "ITL: gap divided by the tokens of the chunk, once a token; basis chunks: one token a chunk assumed.",
)
TPOT = _seconds(
    "llm_time_per_output_token_seconds",
    _BY_BASIS,
    GAP_BUCKETS,
    "TPOT: mean time per output token after the first chunk, once a request; streamed only.",
)
STALL = _seconds("llm_stall_seconds", _MODEL, STALL_BUCKETS, "Gaps longer than the stall threshold.")
STALLS = _counter("llm_stalls_total", (*_BY_OPERATION, "during"), "Stalls by what the stream was doing.")
STALLED_REQUESTS = _counter("llm_stalled_requests_total", _BY_OPERATION, "Requests with at least one stall.")
SILENT_STREAMS = _gauge(
    "llm_silent_streams",
    ("older_than",),
    "Open streams without a token for so many seconds, also before the first one.",
)
OLDEST_SILENCE = _gauge(
    "llm_oldest_silent_stream_seconds",
    (),
    "The longest time since the last token, or since the request, of any open stream.",
    unit="seconds",
)
INPUT_TOKENS = _counter(
    "llm_input_tokens_total", _BY_OPERATION, "Input tokens, cached ones included, from usage.", unit="tokens"
)
CACHED_INPUT_TOKENS = _counter(
    "llm_cached_input_tokens_total",
    _BY_OPERATION,
    "Input tokens that the engine had cached, from usage.",
    unit="tokens",
)
OUTPUT_TOKENS = _counter(
    "llm_output_tokens_total", _BY_OPERATION, "Output tokens, reasoning included, from usage.", unit="tokens"
)
REASONING_TOKENS = _counter(
    "llm_reasoning_tokens_total", _BY_OPERATION, "Reasoning tokens, from usage.", unit="tokens"
)
WITHOUT_USAGE = _counter(
    "llm_requests_without_usage_total",
    _BY_OPERATION,
    "Completed requests whose response was read and carried no token counts.",
)
STREAM_CHUNKS = _counter("llm_stream_chunks_total", _BY_OPERATION, "Token-bearing chunks.")
STREAM_READS = _counter(
    "llm_stream_reads_total",
    _BY_OPERATION,
    "Socket reads that held a token-bearing chunk; chunks over reads is the coalescing.",
)
BUFFERED = _counter(
    "llm_buffered_responses_total",
    _BY_OPERATION,
    "Streams with the signature of a buffering hop between engine and sidecar.",
)
WRITE_WAIT = _seconds(
    "llm_client_write_wait_seconds",
    _MODEL,
    WAIT_BUCKETS,
    "Time of a request in which the client would not take bytes; one value a response.",
)
UPLOAD = _seconds(
    "llm_upload_seconds",
    _MODEL,
    WAIT_BUCKETS,
    "Request head received until the last byte of the request body.",
)
INPUT_LENGTH = _lengths("llm_request_input_tokens", _BY_OPERATION, "Input tokens of a request, from usage.")
OUTPUT_LENGTH = _lengths(
    "llm_request_output_tokens", _BY_OPERATION, "Output tokens of a request, from usage."
)

# --- what the engine says about itself: its own values, as they were when its page was last read

_INSTANCE = ("engine_instance",)
_BY_MODEL = ("engine_instance", "model")

ENGINE_INFO = _info(
    "llm_engine_info",
    ("engine_instance", "engine", "version"),
    "Which engine answers; the version is empty where it does not tell.",
)
ENGINE_UP = _gauge(
    "llm_engine_up", _INSTANCE, "1 when the last scrape gave a page that was understood, else 0."
)
ENGINE_SCRAPE_DURATION = _gauge(
    "llm_engine_scrape_duration_seconds",
    _INSTANCE,
    "How long the engine took to give its page, the last time it did.",
    unit="seconds",
)
ENGINE_SCRAPE_AGE = _gauge(
    "llm_engine_scrape_age_seconds",
    _INSTANCE,
    "Time since the engine last gave its page; older than three intervals, its values are left out.",
    unit="seconds",
)
ENGINE_SCRAPE_FAILURES = _counter(
    "llm_engine_scrape_failures_total",
    ("engine_instance", "reason"),
    f"Scrapes without a usable page; reason: {', '.join(SCRAPE_FAILURES)}.",
)
ENGINE_RESETS = _counter(
    "llm_engine_resets_total", _INSTANCE, "Times that the counters of the engine began anew."
)
ENGINE_SIGNAL = _gauge(
    "llm_engine_signal_available",
    ("engine_instance", "signal"),
    "1 when the page has this signal, 0 when it is missing there.",
)
ENGINE_RUNNING = _gauge(
    "llm_engine_requests_running", _BY_MODEL, "Requests in the batch, as the engine counts them."
)
ENGINE_WAITING = _gauge("llm_engine_requests_waiting", _BY_MODEL, "Requests in the queue of the engine.")
ENGINE_KV_USAGE = _gauge(
    "llm_engine_kv_cache_usage_ratio",
    _BY_MODEL,
    "Share of the KV cache in use, of the fullest engine process behind the address.",
)
ENGINE_PREEMPTIONS = _counter(
    "llm_engine_preemptions_total", _BY_MODEL, "Requests that were pushed back to the queue."
)
ENGINE_PREFIX_QUERIES = _counter(
    "llm_engine_prefix_cache_queries_total", _BY_MODEL, "Input tokens looked up in the prefix cache."
)
ENGINE_PREFIX_HITS = _counter(
    "llm_engine_prefix_cache_hits_total", _BY_MODEL, "Input tokens found in the prefix cache."
)
ENGINE_INPUT_TOKENS = _counter(
    "llm_engine_input_tokens_total", _BY_MODEL, "Input tokens, cached ones included.", unit="tokens"
)
ENGINE_OUTPUT_TOKENS = _counter(
    "llm_engine_output_tokens_total", _BY_MODEL, "Generated tokens.", unit="tokens"
)
ENGINE_FINISHED = _counter(
    "llm_engine_requests_finished_total",
    (*_BY_MODEL, "reason"),
    f"Requests that ended in the engine; reason: {', '.join(FINISH_REASONS)} (finished: not told which).",
)
ENGINE_SPEC_TOKENS = _counter(
    "llm_engine_spec_tokens_total",
    (*_BY_MODEL, "kind"),
    "Speculative decoding: tokens drafted, and of those accepted.",
    unit="tokens",
)
ENGINE_PHASE = Family(
    "llm_engine_phase_seconds",
    "histogram",
    (*_BY_MODEL, "phase"),
    "Durations that the engine measured, in its own buckets; docs/engines.md says between which events.",
    "seconds",
)

# --- the sidecar itself

BUILD_INFO = _info("llm_sidecar_build_info", ("version",), "The sidecar's version.")
CONFIG_INFO = _info("llm_sidecar_config_info", ("digest",), "Digest of the settings in force; see /config.")
OVERHEAD = _seconds(
    "llm_sidecar_overhead_seconds",
    ("stage",),
    OVERHEAD_BUCKETS,
    "Time between a read and the write it led to: of a request head on a pooled connection, of a response "
    "head, of one piece of a body in 16.",
)
LOOP_LAG = _seconds(
    "llm_sidecar_event_loop_lag_seconds",
    (),
    LAG_BUCKETS,
    "How late the event loop ran a timer; stamps may be late by as much.",
)
OBSERVER_ERRORS = _counter(
    "llm_sidecar_observer_errors_total", ("stage",), "Faults in observing; the bytes passed all the same."
)
LABEL_OVERFLOW = _counter(
    "llm_sidecar_label_overflow_total",
    ("label",),
    "Requests and series of served models that became other, for max_models or max_series was reached.",
)
REJECTED = _counter(
    "llm_sidecar_rejected_requests_total", ("reason",), "Requests refused before they were LLM requests."
)
RETRIES = _counter(
    "llm_sidecar_upstream_retries_total",
    ("reason",),
    "Requests sent again because a pooled connection had been closed.",
)
EDITS = _counter(
    "llm_sidecar_edits_total",
    ("result",),
    "Requests that could be asked for usage (usage.inject), and why not; events taken out of answers.",
)
SPANS = _counter(
    "llm_sidecar_spans_total",
    ("result",),
    "Spans for a collector: sent, or dropped (over_rate, queue_full, failed, rejected by the collector).",
)
ENGINE_SPANS = _counter(
    "llm_sidecar_engine_spans_total",
    ("result",),
    "Spans that engines sent: forwarded, of no request (unknown), not_forwarded, held_full, malformed.",
)

PHASE = _seconds(
    "llm_phase_seconds",
    ("model", "phase"),
    FIRST_TOKEN_BUCKETS,
    "Phases of joined requests, and their totals `ttft` and `generation`: the means of the parts add up to "
    "the mean of the total. queue, prefill, decode are the engine's own durations; unattributed is network, "
    "parsing, tokenisation, text held back; stretch is delivery and back-pressure.",
)
PHASE_NEGATIVE = _counter(
    "llm_phase_negative_seconds_total",
    ("model", "phase"),
    "What a phase was below zero: it counts as 0 in the histogram.",
    unit="seconds",
)
JOINS = _counter(
    "llm_join_requests_total",
    ("model", "status", "source"),
    "Requests that came to a first token, or to a whole answer in one piece, by whether the engine's "
    "durations were joined to them.",
)
PREFILL_FIT = _counter(
    "llm_prefill_fit_total",
    ("model", "size", "term"),
    "Sums over joined requests with known cached tokens, of x = uncached input kilotokens and y = prefill "
    "seconds, for the slope (n*xy - x*y) / (n*xx - x*x) over any window.",
)

WINDOW_PHASE = _gauge(
    "llm_window_phase_seconds",
    ("model", "phase"),
    "Means over the latest window of a minute or more, for engines that publish histograms; remainders only "
    "where all requests that the engine counted passed here.",
    "seconds",
)
JOIN_WINDOW = _counter(
    "llm_join_window_requests_total",
    ("model", "cohort", "side"),
    "Sequences counted by the engine and by the sidecar between the same readings of the engine's page: the "
    "ratio of their increases is the coverage.",
)

CLIENT_VIEW: Final = (
    REQUESTS, IN_FLIGHT, REQUEST_DURATION, HEADERS_TIME, TTFB, TTFT, TTFO, REASONING, ICL, ITL, TPOT,
    STALL, STALLS, STALLED_REQUESTS, SILENT_STREAMS, OLDEST_SILENCE, INPUT_TOKENS, CACHED_INPUT_TOKENS,
    OUTPUT_TOKENS, REASONING_TOKENS, WITHOUT_USAGE, STREAM_CHUNKS, STREAM_READS, BUFFERED, WRITE_WAIT,
    UPLOAD, INPUT_LENGTH, OUTPUT_LENGTH,
)  # fmt: skip
JOINED: Final = (PHASE, PHASE_NEGATIVE, JOINS, PREFILL_FIT, WINDOW_PHASE, JOIN_WINDOW)
ENGINE_VIEW: Final = (
    ENGINE_INFO, ENGINE_UP, ENGINE_SCRAPE_DURATION, ENGINE_SCRAPE_AGE, ENGINE_SCRAPE_FAILURES,
    ENGINE_RESETS, ENGINE_SIGNAL, ENGINE_RUNNING, ENGINE_WAITING, ENGINE_KV_USAGE, ENGINE_PREEMPTIONS,
    ENGINE_PREFIX_QUERIES, ENGINE_PREFIX_HITS, ENGINE_INPUT_TOKENS, ENGINE_OUTPUT_TOKENS,
    ENGINE_FINISHED, ENGINE_SPEC_TOKENS, ENGINE_PHASE,
)  # fmt: skip
ITSELF: Final = (
    BUILD_INFO, CONFIG_INFO, OVERHEAD, LOOP_LAG, OBSERVER_ERRORS, LABEL_OVERFLOW, REJECTED, RETRIES,
    EDITS, SPANS, ENGINE_SPANS,
)  # fmt: skip
STORED: Final = (
    *CLIENT_VIEW,
    *JOINED,
    *ITSELF,
)  # what the store keeps; the engine view is read anew each time
FAMILIES: Final = (*CLIENT_VIEW, *JOINED, *ENGINE_VIEW, *ITSELF)
