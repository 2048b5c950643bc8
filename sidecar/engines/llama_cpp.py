"""llama.cpp's server. No histograms and no labels; its rate gauges are reset by each reading and not used.

Source: tools/server/server-context.cpp at 3f545becc (2026-08-22); recorded pages of b11434.
"""

from sidecar.engines.table import Engine, Signal

_PROMPT = "llamacpp:prompt_tokens_total"
_CACHED = "llamacpp:prompt_tokens_cached_total"

LLAMA_CPP = Engine(
    name="llama.cpp",
    title="llama.cpp",
    path="/metrics",
    enable="`--metrics`; its API key is asked for; every reading resets its two rate gauges, for others too",
    marks=("llamacpp:",),
    version=("/props", "build_info"),
    owner="llamacpp",
    signals=(
        Signal("requests_running", "gauge", ("llamacpp:requests_processing",), "live", note="busy slots"),
        Signal("requests_waiting", "gauge", ("llamacpp:requests_deferred",), "live"),
        Signal(
            "kv_cache_usage_ratio",
            "gauge",
            ("llamacpp:kv_cache_usage_ratio",),
            "live",
            note="removed in May 2025",
        ),
        Signal(
            "prefix_cache_queries",
            "counter",
            ((_PROMPT, _CACHED),),
            "live",
            note="since b10424; before, cached tokens are not told",
        ),
        Signal("prefix_cache_hits", "counter", (_CACHED,), "live", note="since b10424"),
        Signal(
            "input_tokens",
            "counter",
            ((_PROMPT, _CACHED),),
            "live",
            note="since b10424; before, cached tokens are not told",
        ),
        Signal(
            "output_tokens",
            "counter",
            ("llamacpp:tokens_predicted_total",),
            "at_end",
            note="when the slot is released",
        ),
        Signal(
            "spec_tokens",
            "counter",
            ("llamacpp:spec_decode_num_draft_tokens_total",),
            "live",
            value="draft",
            note="since b10290",
        ),
        Signal(
            "spec_tokens",
            "counter",
            ("llamacpp:spec_decode_num_accepted_tokens_total",),
            "live",
            value="accepted",
            note="since b10290",
        ),
    ),
    recorded="b11434",
    seen=frozenset(
        {
            "llamacpp:requests_processing",
            "llamacpp:requests_deferred",
            _PROMPT,
            _CACHED,
            "llamacpp:tokens_predicted_total",
            "llamacpp:spec_decode_num_draft_tokens_total",
            "llamacpp:spec_decode_num_accepted_tokens_total",
        }
    ),
)
