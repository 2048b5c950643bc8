"""vLLM 0.32's /metrics page: names, labels, buckets and moments of recording, from planned instants.

Live: TTFT and prompt tokens at a sequence's first token, inter-token latency and generated tokens at each.
At the end: end-to-end, queue, prefill, decode, inference, lengths, finish reason. A sequence whose client
left is in the live families only (vLLM issue 31503).
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sidecar.emulator.schedule import Schedule, Sequence, Token

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
# vLLM counts what the engine saw; "tool_calls" is the API server's word for a stop.
REASON_OF = {"tool_calls": "stop"}

GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", TTFT_BUCKETS),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", TOKEN_BUCKETS),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        TOKEN_BUCKETS,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", REQUEST_BUCKETS),
    "request_queue_time_seconds": (
        "Histogram of time spent in WAITING phase for request.",
        REQUEST_BUCKETS,
    ),
    "request_inference_time_seconds": (
        "Histogram of time spent in RUNNING phase for request.",
        REQUEST_BUCKETS,
    ),
    "request_prefill_time_seconds": (
        "Histogram of time spent in PREFILL phase for request.",
        REQUEST_BUCKETS,
    ),
    "request_decode_time_seconds": (
        "Histogram of time spent in DECODE phase for request.",
        REQUEST_BUCKETS,
    ),
    "request_prompt_tokens": ("Number of prefill tokens processed.", LENGTH_BUCKETS),
    "request_generation_tokens": ("Number of generation tokens processed.", LENGTH_BUCKETS),
}


class Exposition:
    """The engine's metrics; `kv_tokens` is the size of its KV cache."""

    def __init__(self, model: str, kv_tokens: int) -> None:
        self._registry = CollectorRegistry()
        self._kv_tokens = kv_tokens
        own, labels, of = self._registry, ("engine", "model_name"), ("0", model)
        self._gauges = {n: Gauge(f"vllm:{n}", h, labels, registry=own).labels(*of) for n, h in GAUGES.items()}
        self._counters = {
            n: Counter(f"vllm:{n}", h, labels, registry=own).labels(*of) for n, h in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", help_, labels, buckets=buckets, registry=own).labels(*of)
            for name, (help_, buckets) in HISTOGRAMS.items()
        }
        success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*labels, "finished_reason"),
            registry=own,
        )
        self._success = {reason: success.labels(*of, reason) for reason in FINISHED_REASONS}

    def token(self, token: Token) -> None:
        """A token fell."""
        sequence = token.sequence
        self._counters["generation_tokens"].inc()
        if token.gap is not None:
            self._histograms["inter_token_latency_seconds"].observe(token.gap)
            return
        self._histograms["time_to_first_token_seconds"].observe(token.at - sequence.arrived)
        self._counters["prompt_tokens"].inc(sequence.work.prompt_tokens)
        self._counters["prefix_cache_queries"].inc(sequence.work.prompt_tokens)

    def finished(self, sequence: Sequence, finish_reason: str) -> None:
        """The last token of a sequence fell."""
        started, first, last = sequence.started, sequence.first, sequence.last
        assert started is not None and first is not None and last is not None  # noqa: PT018
        decode, tokens = last - first, sequence.tokens
        values = {
            "e2e_request_latency_seconds": last - sequence.arrived,
            "request_queue_time_seconds": started - sequence.arrived,
            "request_prefill_time_seconds": first - started,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": last - started,
            "request_time_per_output_token_seconds": decode / (tokens - 1) if tokens > 1 else 0.0,
            "request_prompt_tokens": sequence.work.prompt_tokens,
            "request_generation_tokens": tokens,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)
        self._success[REASON_OF.get(finish_reason, finish_reason)].inc()

    def render(self, schedule: Schedule) -> bytes:
        """The page, with the queue as it is now."""
        self._gauges["num_requests_running"].set(len(schedule.running))
        self._gauges["num_requests_waiting"].set(len(schedule.waiting))
        self._gauges["kv_cache_usage_perc"].set(schedule.tokens_held() / self._kv_tokens)
        return generate_latest(self._registry)
