"""vLLM's recorded streams with its recorded spans, joined by the trace that was sent: where the residuals lie.

The recordings were read by hand before (reference: 31 streams joined): the first text on the wire comes 1 to 5 ms
(the way to the engine's arrival) and 0.3 to 1.4 ms (2 to 3 with ten streams at once) after what the span says.
A text that is held back for a stop string adds 6 ms, the Responses API 20, `--stream-interval 8` with an opening
`<think>` the time of the tokens until there is text (it shows as a stretch below zero).
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from sidecar.core.join import PhaseBreakdown, join
from sidecar.core.span_match import EngineSpan
from sidecar.engines.spans import read
from tests.core.test_recordings import replayed
from tests.replay import recording, recording_names

SPANS = Path(__file__).parents[1] / "data" / "spans" / "vllm"
LATEST = {
    "chat_stream_stop": 0.015,
    "responses_stream": 0.030,
    "chat_stream_slow_reader": 0.040,
    "x_chat_stream_reasoning": 0.045,
    "x_chat_stream_usage": 0.012,
}
USUAL = 0.0095


def spans_by_trace() -> dict[str, list[EngineSpan]]:
    found = defaultdict(list)
    for path in SPANS.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        found[span["traceId"]].append(_span(span, scope["scope"]["name"]))
    return found


def _span(span: dict, scope: str) -> EngineSpan:
    def plain(value: dict) -> str | float:
        [(kind, said)] = value.items()
        return said if kind == "stringValue" else float(said)

    return EngineSpan(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId"),
        name=span["name"],
        scope=scope,
        seconds=(int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9,
        attributes={
            each["key"]: plain(each["value"]) for each in span.get("attributes", ()) if each["value"]
        },
    )


BY_TRACE = spans_by_trace()


def _requests_with_one_span() -> list[str]:
    names = []
    for name in recording_names():
        head = {key.lower(): value for key, value in recording(name).headers}
        trace = head.get(b"traceparent", b"").decode().split("-")
        if name.startswith("vllm/") and len(trace) == 4:
            about = [span for span in BY_TRACE.get(trace[1], ()) if span.name == "llm_request"]
            if len(about) == 1:
                names.append(name)
    return names


NAMES = _requests_with_one_span()


def joined(name: str) -> tuple[bool, PhaseBreakdown, float]:
    record, replay = replayed(name)
    head = {key.lower(): value for key, value in replay.source.headers}
    [span] = [s for s in BY_TRACE[head[b"traceparent"].decode().split("-")[1]] if s.name == "llm_request"]
    reading = read(span, lambda _: None)
    assert reading is not None
    phases = join(record, reading.timings, "span")
    assert phases is not None
    return bool(record.streaming), phases, reading.timings.ttft or 0.0


def test_enough_recordings_have_a_span_of_their_own() -> None:
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_what_no_phase_explains_is_a_few_milliseconds(name: str) -> None:
    streamed, phases, span_ttft = joined(name)
    assert phases.status == "ok"
    if streamed:
        assert 0.0005 < phases.ttft - span_ttft < LATEST.get(name.rpartition("/")[2], USUAL), phases
        # The rest of it is the engine's own front end: templating and tokenisation, before its queue.
        assert (phases.unattributed or 0.0) >= phases.ttft - span_ttft - 0.0005
        assert abs(phases.stretch or 0.0) < 0.040, phases


def test_a_recorded_queue_is_seen_as_queue() -> None:
    """Ten requests with room for few: the span says 1,835 ms in the queue, the wire a TTFT of 1,875 ms."""
    longest = max((joined(name)[1] for name in NAMES), key=lambda phases: phases.queue or 0.0)
    assert longest.queue == pytest.approx(1.835, abs=0.001)
    assert longest.ttft == pytest.approx(1.875, abs=0.001)
