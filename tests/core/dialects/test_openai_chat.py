"""Chat completions: what in a delta is generated material."""

import json
from typing import Any

import pytest

from sidecar.core.dialects.openai_chat import ChatReader
from sidecar.core.events import OUTPUT, REASONING, TOOL_CALL
from sidecar.core.timeline import Timeline

DELTAS: dict[str, tuple[Any, int]] = {
    "content": ({"content": "Hi"}, OUTPUT),
    "white space is content": ({"content": " "}, OUTPUT),
    "empty content": ({"content": ""}, 0),
    "null content": ({"role": "assistant", "content": None}, 0),
    "an empty delta": ({}, 0),
    "no delta": (None, 0),
    "reasoning, as vLLM spells it": ({"reasoning": "Hm"}, REASONING),
    "reasoning_content, as the others do": ({"reasoning_content": "Hm"}, REASONING),
    "reasoning_content null beside content, as SGLang sends it": (
        {"content": "Hi", "reasoning_content": None},
        OUTPUT,
    ),
    "the end of the reasoning and the first output": (
        {"reasoning": "Hm", "content": "Hi"},
        REASONING | OUTPUT,
    ),
    "a refusal": ({"refusal": "No"}, OUTPUT),
    "an empty refusal": ({"refusal": ""}, 0),
    "audio data": ({"audio": {"id": "1", "data": "UklG"}}, OUTPUT),
    "a transcript of audio": ({"audio": {"transcript": "Hi"}}, OUTPUT),
    "the id of audio alone": ({"audio": {"id": "1", "expires_at": 3}}, 0),
    "a tool's name": ({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}, TOOL_CALL),
    "a tool's arguments": ({"tool_calls": [{"index": 0, "function": {"arguments": '{"'}}]}, TOOL_CALL),
    "arguments of the second call": (
        {"tool_calls": [{"function": {"arguments": ""}}, {"function": {"arguments": "{"}}]},
        TOOL_CALL,
    ),
    "arguments as an object": ({"tool_calls": [{"function": {"arguments": {"a": 1}}}]}, TOOL_CALL),
    "a tool call with empty arguments": ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, 0),
    "a tool call's id alone": ({"tool_calls": [{"index": 0, "id": "a", "type": "function"}]}, 0),
    "no tool calls": ({"tool_calls": []}, 0),
    "a free-form tool's input": ({"tool_calls": [{"custom": {"input": "x"}}]}, TOOL_CALL),
    "the older function call": ({"function_call": {"arguments": "{"}}, TOOL_CALL),
    "an empty function call": ({"function_call": {}}, 0),
    "content and a tool call": (
        {"content": "Hi", "tool_calls": [{"function": {"name": "f"}}]},
        OUTPUT | TOOL_CALL,
    ),
    "content in parts, as Mistral sends it": ({"content": [{"type": "text", "text": "Hi"}]}, OUTPUT),
    "thinking in parts": (
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]},
        REASONING,
    ),
    "both in parts": ({"content": [{"thinking": "Hm"}, {"text": "Hi"}]}, REASONING | OUTPUT),
    "empty parts": ({"content": [{"type": "text", "text": ""}, {}, None, 3, ""]}, 0),
    "content of another type": ({"content": 3}, 0),
    "a delta of another type": ([1], 0),
}


@pytest.mark.parametrize(("delta", "material"), DELTAS.values(), ids=DELTAS.keys())
def test_what_a_delta_carries(delta: Any, material: int) -> None:
    assert ChatReader.material({"delta": delta}) == material


@pytest.mark.parametrize(("delta", "material"), DELTAS.values(), ids=DELTAS.keys())
def test_the_hot_way_agrees(delta: Any, material: int) -> None:
    timeline = Timeline()
    reader = ChatReader(timeline)
    reader.payload(b'{"choices":[{"index":0}]}', 0.0)  # the first chunk goes the tolerant way
    reader.payload(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode(), 1.0)
    assert timeline.chunks == (1 if material else 0)
    assert timeline.k1 == (1.0 if material & REASONING else None)
    assert timeline.o1 == (1.0 if material & (OUTPUT | TOOL_CALL) else None)
    assert reader.faults == 0
