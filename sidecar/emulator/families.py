"""The families of vLLM 0.32's /metrics page: names, help texts, buckets. Data only.

From a page of the real server (tests/data/emulator/vllm_metrics.txt). Left out are those about things
that are not emulated: FLOPs, external and multi-modal caches, sleep, Python and HTTP.
"""

GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
WAITING_BY_REASON = (
    "num_requests_waiting_by_reason",
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
    "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
    "reasons equals vllm:num_requests_waiting.",
)
CACHE_CONFIG = ("cache_config_info", "Information of the LLMEngine CacheConfig")
COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
}
# name -> help, label, all its values
LABELLED_COUNTERS = {
    "prompt_tokens_by_source": (
        "Number of prompt tokens by source.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    "prompt_tokens_cached_by_source": (
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded "
        "to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at "
        "admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    "request_success": (
        "Count of successfully processed requests.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
}
REJECTIONS = (
    "admission_rejections",
    "Number of admission attempts rejected by a queue limit, by reason.",
    ("max_num_queued_reqs", "max_num_queued_tokens"),
)

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
CHOICES = (1, 2, 5, 10, 20)


def lengths(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to the model's context."""
    decades = (digit * 10**power for power in range(len(str(max_model_len))) for digit in (1, 2, 5))
    return tuple(length for length in decades if length <= max_model_len)


# name -> help, buckets (`None`: those of lengths)
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...] | None]] = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", None),
    "request_generation_tokens": ("Number of generation tokens processed.", None),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", STEP_TOKENS),
    "request_max_num_generation_tokens": (
        "Histogram of maximum number of requested generation tokens.",
        None,
    ),
    "request_params_n": ("Histogram of the n request parameter.", CHOICES),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", None),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", TOKEN),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        TOKEN,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", REQUEST),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", REQUEST),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", REQUEST),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", REQUEST),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", REQUEST),
    "request_num_preemptions": ("Histogram of the number of times a request was preempted.", PREEMPTIONS),
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        None,
    ),
}
