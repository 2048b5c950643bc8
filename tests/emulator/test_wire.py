"""The emulator's bytes have the shape of those that vLLM 0.32 sent for the same request.

The shape of a JSON value is its keys in order, the types of its values, and in full what is a word of the
protocol. Repeated events of one shape count once: how many tokens an answer has is the model's business.
"""

import itertools
import json
import random
from typing import Any

import pytest

from sidecar.emulator import wire
from sidecar.emulator.answers import answer
from sidecar.emulator.asked import read_chat, read_completion
from tests.replay import body_of, recording

PROTOCOL_WORDS = ("object", "finish_reason", "role", "type", "stop_reason")

NO_LIMIT = {"max_tokens": None}
THINK = {"chat_template_kwargs": {"enable_thinking": True}}

# recording; what is changed in its request so that the emulated model ends its answer in the same way
STREAMS = {
    "vllm/plain/chat_stream": NO_LIMIT,
    "vllm/plain/chat_stream_usage": {},
    "vllm/plain/chat_stream_n2": {},
    "vllm/plain/chat_stream_max_tokens_1": {},
    "vllm/plain/completions_stream": NO_LIMIT,
    "vllm/plain/completions_stream_usage": NO_LIMIT,
    "vllm/plain/completions_stream_max_tokens_1": {},
    "vllm/parsers/chat_stream_reasoning": NO_LIMIT,
    "vllm/parsers/chat_stream_tools_auto": {},
    "vllm/parsers/chat_stream_tools_named": {},
    "vllm/parsers/chat_stream_tools_required": {},
}
BODIES = {
    "vllm/plain/chat_nostream": NO_LIMIT,
    "vllm/plain/chat_nostream_n2": {},
    "vllm/plain/completions_nostream": NO_LIMIT,
    "vllm/parsers/chat_nostream_reasoning": NO_LIMIT,
    "vllm/parsers/chat_nostream_tools_auto": {},
}


def shape(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: shape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return value if key in PROTOCOL_WORDS else type(value).__name__


def shapes_of_events(stream: bytes) -> list[str]:
    payloads = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
    shapes = ["[DONE]" if p == b"[DONE]" else json.dumps(shape(json.loads(p))) for p in payloads]
    return [each for each, _ in itertools.groupby(shapes)]


def reply_to(name: str, changes: dict[str, Any]) -> tuple[wire.Reply, bool]:
    recorded = recording(name)
    body = json.dumps({k: v for k, v in (json.loads(recorded.body) | changes).items() if v is not None})
    is_chat = recorded.path == "/v1/chat/completions"
    asked = (read_chat if is_chat else read_completion)(body.encode(), ("tiny-chat",), 4096)
    draws = random.Random(0)
    answers = tuple(answer(asked, 12, draws) for _ in range(asked.n * len(asked.prompts)))
    return wire.Reply(asked, answers, "chatcmpl-1" if is_chat else "cmpl-1", 1_795_974_082), is_chat


def streamed(reply: wire.Reply, is_chat: bool) -> bytes:
    """As if the choices' tokens fell in turn."""
    writer = (wire.chat_events if is_chat else wire.completion_events)(reply)
    tokens = [
        (index, choice) for choice, said in enumerate(reply.answers) for index in range(len(said.pieces))
    ]
    events = [event for _, choice in sorted(tokens) for event in writer.tokens(choice)]
    return b"".join([*events, *writer.end()])


@pytest.mark.parametrize(("name", "changes"), STREAMS.items(), ids=STREAMS)
def test_streams_have_the_recorded_shape(name, changes) -> None:
    ours = shapes_of_events(streamed(*reply_to(name, changes)))
    assert ours == shapes_of_events(body_of(recording(name).reads))


def test_usage_in_each_chunk_has_the_recorded_shape() -> None:
    """The recorded model thought until its limit, ours thinks half of its answer."""
    name = "vllm/parsers/chat_stream_usage_continuous"

    def of_any_text(stream: bytes) -> list[str]:
        return shapes_of_events(stream.replace(b'"delta":{"reasoning":', b'"delta":{"content":'))

    assert of_any_text(streamed(*reply_to(name, THINK))) == of_any_text(body_of(recording(name).reads))


@pytest.mark.parametrize(("name", "changes"), BODIES.items(), ids=BODIES)
def test_bodies_have_the_recorded_shape(name, changes) -> None:
    reply, is_chat = reply_to(name, changes)
    ours = (wire.chat_body if is_chat else wire.completion_body)(reply)
    assert json.dumps(shape(json.loads(ours))) == json.dumps(
        shape(json.loads(body_of(recording(name).reads)))
    )


def payloads(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(e.removeprefix(b"data: ")) for e in stream.split(b"\n\n") if e and b"[DONE]" not in e]


def test_usage_counts_every_token_also_those_that_a_parser_held_back() -> None:
    """22 tokens for a tool call, of which 7 are seen: as the recorded server."""
    ours = payloads(streamed(*reply_to("vllm/parsers/chat_stream_tools_auto", {})))
    theirs = payloads(body_of(recording("vllm/parsers/chat_stream_tools_auto").reads))

    def facts(events: list[dict[str, Any]]) -> tuple[int, int]:
        deltas = sum("tool_calls" in each["choices"][0]["delta"] for each in events if each["choices"])
        return deltas, events[-1]["usage"]["completion_tokens"]

    assert facts(ours) == facts(theirs) == (7, 22)


def test_streamed_text_is_the_text_of_the_body() -> None:
    reply, _ = reply_to("vllm/parsers/chat_stream_reasoning", NO_LIMIT)
    deltas = [event["choices"][0]["delta"] for event in payloads(streamed(reply, True)) if event["choices"]]
    message = json.loads(wire.chat_body(reply))["choices"][0]["message"]
    for kind in ("content", "reasoning"):
        assert "".join(delta.get(kind) or "" for delta in deltas) == message[kind] != ""


def test_choices_of_several_prompts_count_their_own_prompt_and_the_usage_all_prompts() -> None:
    changes = {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": 3,
        "n": 2,
    }
    changes |= {"prompt": ["a b", "c"]}
    events = payloads(streamed(*reply_to("vllm/plain/completions_stream_two_prompts", changes)))
    counted = {e["choices"][0]["index"]: e["usage"] for e in events if e["choices"]}
    assert {i: (u["prompt_tokens"], u["completion_tokens"]) for i, u in counted.items()} == {
        0: (2, 3),
        1: (2, 3),
        2: (1, 3),
        3: (1, 3),
    }
    assert events[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 15, "completion_tokens": 12}
