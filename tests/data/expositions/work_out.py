"""What the recorded pages say, worked out without the code under test: prints expected.json.

    python work_out.py > expected.json

Which line is which signal is written down here by hand, from the engines' documentation.
"""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent

VLLM = 'engine="0",model_name="tiny-chat"'
RANK = 'dp_rank="0",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
STREAMED = 'is_streaming="true",model_name="m"'


def mode(name: str) -> str:
    return f'dp_rank="0",engine_type="unified",mode="{name}",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'


def vllm_reason(name: str) -> str:
    return f'engine="0",finished_reason="{name}",model_name="tiny-chat"'


# signal, or signal/value -> the lines that make it up: metric and labels
GAUGES = {
    "vllm": {
        "requests_running": [("vllm:num_requests_running", VLLM)],
        "requests_waiting": [("vllm:num_requests_waiting", VLLM)],
        "kv_cache_usage_ratio": [("vllm:kv_cache_usage_perc", VLLM)],
    },
    "sglang": {
        "requests_running": [("sglang:num_running_reqs", RANK)],
        "requests_waiting": [("sglang:num_queue_reqs", RANK)],
        "kv_cache_usage_ratio": [("sglang:token_usage", RANK)],
    },
    "llama.cpp": {
        "requests_running": [("llamacpp:requests_processing", "")],
        "requests_waiting": [("llamacpp:requests_deferred", "")],
    },
}
_PROMPT = [("llamacpp:prompt_tokens_total", ""), ("llamacpp:prompt_tokens_cached_total", "")]
_HITS = [
    ("sglang:prefill_effective_tokens_total", mode(name)) for name in ("device_hit", "host_hit", "storage_hit")
]
COUNTERS = {
    "vllm": {
        "preemptions": [("vllm:num_preemptions_total", VLLM)],
        "prefix_cache_queries": [("vllm:prefix_cache_queries_total", VLLM)],
        "prefix_cache_hits": [("vllm:prefix_cache_hits_total", VLLM)],
        "input_tokens": [("vllm:prompt_tokens_total", VLLM)],
        "output_tokens": [("vllm:generation_tokens_total", VLLM)],
        **{
            f"requests_finished/{name}": [("vllm:request_success_total", vllm_reason(name))]
            for name in ("stop", "length", "abort", "error", "repetition")
        },
    },
    "sglang": {
        "prefix_cache_queries": [("sglang:prefill_effective_tokens_total", mode("input")), *_HITS],
        "prefix_cache_hits": _HITS,
        "input_tokens": [("sglang:prompt_tokens_total", STREAMED)],
        "output_tokens": [("sglang:generation_tokens_total", STREAMED)],
        "requests_finished/finished": [("sglang:num_requests_total", STREAMED)],
        "requests_finished/abort": [("sglang:num_aborted_requests_total", 'model_name="m"')],
    },
    "llama.cpp": {
        "prefix_cache_queries": _PROMPT,
        "prefix_cache_hits": _PROMPT[1:],
        "input_tokens": _PROMPT,
        "output_tokens": [("llamacpp:tokens_predicted_total", "")],
        "spec_tokens/draft": [("llamacpp:spec_decode_num_draft_tokens_total", "")],
        "spec_tokens/accepted": [("llamacpp:spec_decode_num_accepted_tokens_total", "")],
    },
}
HISTOGRAMS = {
    "vllm": {
        "queue": ("vllm:request_queue_time_seconds", VLLM),
        "prefill": ("vllm:request_prefill_time_seconds", VLLM),
        "decode": ("vllm:request_decode_time_seconds", VLLM),
        "ttft": ("vllm:time_to_first_token_seconds", VLLM),
        "itl": ("vllm:inter_token_latency_seconds", VLLM),
        "e2e": ("vllm:e2e_request_latency_seconds", VLLM),
    },
    "sglang": {
        "queue": ("sglang:queue_time_seconds", RANK),
        "ttft": ("sglang:time_to_first_token_seconds", STREAMED),
        "itl": ("sglang:inter_token_latency_seconds", 'model_name="m"'),
        "e2e": ("sglang:e2e_request_latency_seconds", STREAMED),
    },
    "llama.cpp": {},
}
MODEL = {"vllm": "tiny-chat", "sglang": "m", "llama.cpp": ""}


def value(lines: list[str], name: str, labels: str) -> float:
    start = f"{name}{{{labels}}} " if labels else f"{name} "
    (line,) = [line for line in lines if line.startswith(start)]
    return float(line[len(start) :])


def buckets(lines: list[str], name: str, labels: str) -> list[tuple[str, float]]:
    """(bound, how many are in that bucket alone), in the page's order."""
    found = []
    for line in lines:
        if line.startswith(f"{name}_bucket{{"):
            inner, number = line[len(name) + 8 :].split("} ")
            bound = re.search(r'le="([^"]*)"', inner)
            rest = re.sub(r',?le="[^"]*"', "", inner).lstrip(",")
            if bound and rest == labels:
                found.append((bound[1], float(number)))
    before = [0.0, *(number for _, number in found)]
    return [(bound, number - earlier) for (bound, number), earlier in zip(found, before, strict=False)]


def page(path: Path) -> dict[str, object]:
    lines = path.read_text().splitlines()
    engine = next(name for name in MODEL if path.name.startswith(name))
    start = [line.split(" ")[1] for line in lines if line.startswith("process_start_time_seconds ")]
    return {
        "engine": engine,
        "model": MODEL[engine],
        "started": float(start[0]) if start else None,
        "gauges": {
            signal: sum(value(lines, *line) for line in found) for signal, found in GAUGES[engine].items()
        },
        "counters": {
            signal: sum(value(lines, *line) for line in found) for signal, found in COUNTERS[engine].items()
        },
        "distributions": {
            signal: {
                "buckets": buckets(lines, name, labels),
                "count": value(lines, f"{name}_count", labels),
                "sum": value(lines, f"{name}_sum", labels),
            }
            for signal, (name, labels) in HISTOGRAMS[engine].items()
        },
    }


if __name__ == "__main__":
    print(json.dumps({path.name: page(path) for path in sorted(HERE.glob("*.txt"))}, indent=1))
