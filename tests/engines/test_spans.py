"""Each engine's span: the recorded ones of vLLM, the documented ones of the others."""

from typing import Any

import pytest

from sidecar.core.server_timings import ServerTimings
from sidecar.core.span_match import EngineSpan, Reading
from sidecar.engines.spans import read
from tests.data_spans import engine_spans, recorded


def span(name: str, scope: str = "", **attributes: Any) -> EngineSpan:
    dotted = {key.replace("__", "."): value for key, value in attributes.items()}
    return EngineSpan("t", "s", None, scope, name, 1.0, dotted)


def latencies(**seconds: float) -> dict[str, float]:
    return {f"gen_ai__latency__{name}": value for name, value in seconds.items()}


STAGES = {"prefill_waiting": 0.25}

CASES: dict[str, tuple[EngineSpan, dict[str, float], Reading | None]] = {
    "vLLM 0.9 had totals only": (
        span(
            "llm_request",
            "vllm.llm_engine",
            gen_ai__request__id="cmpl-x-0",
            **latencies(time_in_queue=0.25, time_to_first_token=0.5, e2e=4.0),
        ),
        {},
        Reading("vllm", ServerTimings(queue=0.25, ttft=0.5, e2e=4.0), "cmpl-x-0"),
    ),
    "SGLang: its prefill holds the queue, which a stage tells": (
        span(
            " Req 0123abcd",
            rid="0123abcd-1",
            **latencies(
                time_in_model_prefill=1.0, time_in_model_decode=2.0, time_to_first_token=1.5, e2e=3.75
            ),
        ),
        STAGES,
        Reading(
            "sglang", ServerTimings(queue=0.25, prefill=0.75, decode=2.0, ttft=1.5, e2e=3.75), "0123abcd-1"
        ),
    ),
    "SGLang without stages: the two can't be told apart": (
        span(
            " Req 0123abcd",
            rid="r",
            **latencies(
                time_in_model_prefill=1.0, time_in_model_decode=2.0, time_to_first_token=1.5, e2e=3.75
            ),
        ),
        {},
        Reading("sglang", ServerTimings(decode=2.0, ttft=1.5, e2e=3.75), "r"),
    ),
    "SGLang, should it set the queue": (
        span(" Req 0123abcd", rid="r", **latencies(time_in_queue=0.125, time_in_model_prefill=1.0, e2e=3.75)),
        STAGES,
        Reading("sglang", ServerTimings(queue=0.125, prefill=0.875, e2e=3.75), "r"),
    ),
    "TensorRT-LLM: all counted from arrival": (
        span(
            "llm_request",
            "trt.llm",
            gen_ai__request__id="7",
            **latencies(time_in_queue=0.25, time_to_first_token=1.0, e2e=5.0),
        ),
        {},
        Reading("trtllm", ServerTimings(queue=0.25, prefill=0.75, decode=4.0, ttft=1.0, e2e=5.0), "7"),
    ),
    "TGI prints Rust durations": (
        span(
            "generate_stream",
            queue_time="1.5ms",
            inference_time="2.25s",
            total_time="2.3s",
            validation_time="430µs",
        ),
        {},
        Reading("tgi", ServerTimings(queue=0.0015, e2e=2.3)),
    ),
    "TGI's microseconds": (
        span("generate", queue_time="430µs", inference_time="1s", total_time="1s"),
        {},
        Reading("tgi", ServerTimings(queue=430e-6, e2e=1.0)),
    ),
    "Dynamo prints milliseconds": (
        span("http-request", ttft_ms="125.5", x_request_id="x"),
        {},
        Reading("dynamo", ServerTimings(ttft=0.1255), "x"),
    ),
    "a router's request that ended without a token": (span("http-request", x_request_id="x"), {}, None),
    "vLLM's start is no request": (span("Load model", "vllm.model_executor"), {}, None),
    "a number that is no duration": (
        span(
            "llm_request",
            "vllm",
            **latencies(
                time_in_queue=-1.0,
                e2e=float("nan"),
                time_in_model_prefill=1e12,
                time_in_model_decode=float("inf"),
            ),
        ),
        {},
        Reading("vllm", ServerTimings()),
    ),
    "a prefill shorter than the queue in it": (
        span(" Req x", rid="r", **latencies(time_in_model_prefill=0.1, e2e=3.0)),
        STAGES,
        Reading("sglang", ServerTimings(queue=0.25, e2e=3.0), "r"),
    ),
    "text where a number is due": (
        span("llm_request", "vllm", gen_ai__latency__e2e="soon", gen_ai__request__id=5),
        {},
        Reading("vllm", ServerTimings()),
    ),
}


@pytest.mark.parametrize(("of", "stages", "expected"), CASES.values(), ids=CASES.keys())
def test_a_span(of: EngineSpan, stages: dict[str, float], expected: Reading | None) -> None:
    assert read(of, stages.get) == expected


def test_a_recorded_span_of_vllm() -> None:
    """Trace ...1001 of the recording, its numbers copied by hand."""
    (of,) = [s for s in engine_spans("plain_and_load") if s.trace_id == "4bf92f3577b34da6a3ce929d0e0e1001"]
    assert (of.name, of.scope, of.parent_id) == ("llm_request", "vllm.tracing.otel", "00f067aa0ba90001")
    assert of.seconds == pytest.approx(0.082404092)
    assert read(of, {}.get) == Reading(
        "vllm",
        ServerTimings(
            queue=2.782100000331411e-05,
            prefill=0.010847836999801075,
            decode=0.06788233700035562,
            ttft=0.01624751091003418,
            e2e=0.08199071884155273,
        ),
        "chatcmpl-b920ab7f69805d62",
    )


@pytest.mark.parametrize(("name", "requests"), [("plain_and_load", 42), ("flags", 6)])
def test_every_recorded_request_span_is_complete_and_no_other_is_one(name: str, requests: int) -> None:
    readings = [reading for of in engine_spans(name) if (reading := read(of, {}.get)) is not None]
    assert len(readings) == requests
    assert all(reading.timings.complete for reading in readings)
    spans = [
        s for r in recorded(name) for rs in r["resourceSpans"] for ss in rs["scopeSpans"] for s in ss["spans"]
    ]
    assert sum(s["name"] == "llm_request" for s in spans) == requests
