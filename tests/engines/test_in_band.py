"""Engines' timings inside their answers, in their own units and words."""

from typing import Any

import pytest

from sidecar.core.join import PhaseBreakdown, join
from sidecar.core.record import RequestRecord
from sidecar.core.server_timings import ServerTimings
from sidecar.engines.in_band import IN_BAND, timings_of
from tests.core.test_recordings import replayed

TRT = "server_queue;dur=1.5, server_ttft;dur=21.5, server_e2e;dur=121.5, server_kv_transfer;dur=0"

CASES: dict[str, tuple[dict[str, Any], bool, ServerTimings | None]] = {
    "vLLM: its time to first token starts when the request is scheduled": (
        {"metrics": {"queue_time_ms": 4.0, "time_to_first_token_ms": 30.0, "generation_time_ms": 90.0,
                     "mean_itl_ms": 3.0, "tokens_per_second": 300.0}},
        True, ServerTimings(queue=0.004, prefill=0.030, decode=0.090),
    ),
    "llama.cpp does not say its queue": (
        {"timings": {"cache_n": 26, "prompt_n": 5, "prompt_ms": 12.5, "predicted_n": 32, "predicted_ms": 480.0}},
        True, ServerTimings(prefill=0.0125, decode=0.48, cached_input_tokens=26),
    ),
    "Ollama: what is left of the total is the queue and the loading": (
        {"ollama": {"total_duration": 5_000_000_000, "load_duration": 2_000_000_000,
                    "prompt_eval_duration": 500_000_000, "eval_duration": 1_500_000_000}},
        True, ServerTimings(queue=3.0, prefill=0.5, decode=1.5, e2e=5.0),
    ),
    "Ollama leaves out what is zero": (
        {"ollama": {"total_duration": 1_000_000_000, "eval_duration": 900_000_000}},
        False, ServerTimings(queue=0.1, decode=0.9, e2e=1.0),
    ),
    "SGLang has no duration of the prefill": (
        {"meta_info": {"queue_time": 0.25, "e2e_latency": 1.5, "cached_tokens": 8, "request_received_ts": 1.7e9,
                       "prefill_finished_time": 1.7e9}},
        True, ServerTimings(queue=0.25, e2e=1.5, cached_input_tokens=8),
    ),
    "SGLang after a retraction: a queue below zero is none": (
        {"meta_info": {"queue_time": -0.25, "e2e_latency": 1.5}}, True, ServerTimings(e2e=1.5),
    ),
    "TensorRT-LLM, the event after [DONE]": (
        {"trtllm.perf_metrics": {"Server-Timing": TRT, "X-TRTLLM-Start-End-Time": "server-start;ts=12.5"}},
        True, ServerTimings(queue=0.0015, prefill=0.020, decode=0.1, ttft=0.0215, e2e=0.1215),
    ),
    "TensorRT-LLM, in one piece": (
        {"headers": {"server-timing": TRT}},
        False, ServerTimings(queue=0.0015, prefill=0.020, decode=0.1, ttft=0.0215, e2e=0.1215),
    ),
    "a head comes before a stream has happened": ({"headers": {"server-timing": TRT}}, True, None),
    "Dynamo: the epoch stamp is not read": (
        {"nvext": {"timing": {"request_received_ms": 1.7e12, "prefill_wait_time_ms": 10, "prefill_time_ms": 40,
                              "ttft_ms": 52, "total_time_ms": 252, "kv_hit_rate": 0.5}}},
        True, ServerTimings(queue=0.01, prefill=0.04, decode=0.2, ttft=0.052, e2e=0.252),
    ),
    "Groq": (
        {"x_groq": {"id": "req_1", "usage": {"queue_time": 0.01, "prompt_time": 0.02, "completion_time": 0.3}}},
        True, ServerTimings(queue=0.01, prefill=0.02, decode=0.3),
    ),
    "TGI, in one piece": (
        {"headers": {"x-queue-time": "3", "x-inference-time": "240", "x-total-time": "250"}},
        False, ServerTimings(queue=0.003, e2e=0.25),
    ),
    "OpenAI's own": ({"headers": {"openai-processing-ms": "321"}}, False, ServerTimings(e2e=0.321)),
    "nothing": ({}, True, None),
    "another kind of value": ({"timings": [1, 2], "metrics": "fast", "nvext": {"timing": None}}, True, None),
    "numbers that are none": (
        {"metrics": {"queue_time_ms": True, "time_to_first_token_ms": "x", "generation_time_ms": float("nan")}},
        True, None,
    ),
    "beyond a day": ({"metrics": {"queue_time_ms": 1e12}}, True, None),
    "a huge number": ({"metrics": {"queue_time_ms": 10**400}}, True, None),
    "an odd server timing": (
        {"headers": {"server-timing": ';;dur=,a;dur="2";desc="x,y", server_queue ; x=1 ; DUR = 3'}},
        False, ServerTimings(queue=0.003),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("extras", "streaming", "expected"), CASES.values(), ids=CASES.keys())
def test_timings(extras: dict[str, Any], streaming: bool, expected: ServerTimings | None) -> None:
    said = timings_of(extras, streaming=streaming)
    if expected is None or said is None:
        assert said is expected
        return
    for name in ("queue", "prefill", "decode", "ttft", "e2e"):
        value = getattr(expected, name)
        assert getattr(said, name) == (None if value is None else pytest.approx(value)), name
    assert said.cached_input_tokens == expected.cached_input_tokens


def test_every_row_has_a_case() -> None:
    read = {row.extra for row in IN_BAND}
    assert read == {name for extras, _, _ in CASES.values() for name in extras}


def joined(name: str) -> tuple[RequestRecord, PhaseBreakdown]:
    record, _ = replayed(name)
    phases = join(record, timings_of(record.engine, streaming=bool(record.streaming)), "in_band")
    assert phases is not None
    return record, phases


# One request at a time, with `timings`: what is left beside prefill is HTTP, tokenisation and the wait for the
# server's loop, a few ms (real-engines.md section 3).
ALONE = [
    "llama.cpp/gemma/chat_stream",
    "llama.cpp/gemma/chat_nostream",
    "llama.cpp/gemma/completions_stream_usage",
    "llama.cpp/gemma/responses_stream",
    "llama.cpp/plain_binary/chat_stream",
    "llama.cpp/tiny/chat_stream_reasoning",
    "llama.cpp/tiny_native/native_completion_stream",
    "llama.cpp/tiny_native/native_completion_nostream",
]


@pytest.mark.parametrize("name", ALONE)
def test_a_recorded_request_that_was_alone_leaves_a_few_milliseconds_unattributed(name: str) -> None:
    record, phases = joined(name)
    assert phases.status == "ok"
    assert 0 <= (phases.unattributed or -1) < 0.005
    assert phases.stretch == pytest.approx(0, abs=0.001)
    total = record.f1 if record.streaming else record.e
    assert phases.ttft + (0 if record.streaming else phases.generation or 0) == pytest.approx(total)


def test_ten_recorded_requests_on_four_slots_show_the_queue_as_unattributed_time() -> None:
    """The second wave waits for the first to end, the third for the second."""
    waves = [
        [joined(f"llama.cpp/load/load_{number:02d}") for number in wave]
        for wave in (range(4), range(4, 8), (8, 9))
    ]
    first = waves[0][0][0].e or 0.0
    second = min(record.e or 0.0 for record, _ in waves[1])
    for wave, waited in zip(waves, (0.0, first, second), strict=True):
        for _, phases in wave:
            assert phases.status == "ok"
            assert phases.unattributed == pytest.approx(waited, abs=0.015)


def test_a_tool_call_that_was_held_back_is_no_faster_decode() -> None:
    """22 tokens, of which the ~15 before the tool's name give no event (real-engines.md section 3)."""
    _, phases = joined("llama.cpp/tiny/chat_stream_tools_auto")
    assert phases.status == "ok"
    assert 0.4 < phases.held_back / (phases.decode or 1) < 0.8
    assert (phases.unattributed or 0) > phases.held_back
