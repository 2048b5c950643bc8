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


METRICS = {"time_to_first_token_ms": 1.0, "generation_time_ms": 1.0, "queue_time_ms": 1.0}
METRICS |= {"mean_itl_ms": 1.0, "tokens_per_second": 1.0}


def test_the_last_events_with_all_flags_have_the_recorded_shape() -> None:
    """Eight tokens an event, usage in each, cached tokens and metrics in the last."""
    name = "vllm/flags/x_chat_stream_usage"
    changes = THINK | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    reply, _ = reply_to(name, changes)
    writer = wire.chat_events(reply)
    events = [*writer.tokens(0), *(event for _ in range(3) for event in writer.tokens(0, 8))]
    events += [*writer.tokens(0, 7), *writer.end(0, METRICS)]

    def of_any_text(stream: bytes) -> list[str]:
        return shapes_of_events(stream.replace(b'"delta":{"reasoning":', b'"delta":{"content":'))

    theirs = of_any_text(body_of(recording(name).reads))
    # One of our events has content and reasoning, where the thinking ends.
    ours = [each for each in of_any_text(b"".join(events)) if '"reasoning": "str"' not in each]
    assert [each for each, _ in itertools.groupby(ours)] == theirs


def test_an_event_of_several_tokens_has_content_before_reasoning_as_recorded() -> None:
    """Of eight tokens where the thinking ends; recorded: vllm/flags/x_chat_stream_reasoning."""
    reply, _ = reply_to("vllm/flags/x_chat_stream_reasoning", THINK | {"max_tokens": 16})
    writer = wire.chat_events(reply)
    (*_, event) = [event for count in (4, 12) for event in writer.tokens(0, count)]
    theirs = [
        e for e in payloads(body_of(recording("vllm/flags/x_chat_stream_reasoning").reads)) if e["choices"]
    ]
    mixed = [e["choices"][0]["delta"] for e in theirs if len(e["choices"][0]["delta"]) == 2][1:]
    (ours,) = payloads(event)
    assert [list(delta) for delta in mixed] == [list(ours["choices"][0]["delta"])]


def test_a_call_s_name_and_arguments_in_one_event() -> None:
    reply, _ = reply_to("vllm/parsers/chat_stream_tools_auto", {})
    writer = wire.chat_events(reply)
    (_role, event) = writer.tokens(0, 15)
    (call,) = payloads(event)[0]["choices"][0]["delta"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city'}
    assert (call["type"], call["index"]) == ("function", 0)


def test_plain_text_is_encoded_as_any_other() -> None:
    """The quick way through a template gives the bytes of the long one."""
    reply, _ = reply_to("vllm/plain/chat_stream_n2", {"max_tokens": 4})
    writer = wire.chat_events(reply)
    for choice in (0, 1):
        quick = [event for _ in range(3) for event in writer.tokens(choice)][-3:]
        pieces = reply.answers[choice].pieces[:3]
        assert quick == [writer._event(choice, (piece,), None) for piece in pieces]


def test_a_body_with_all_flags_has_the_recorded_shape() -> None:
    reply, _ = reply_to("vllm/flags/x_chat_nostream", THINK | {"max_tokens": 9})
    ours, theirs = (
        shape(json.loads(body))
        for body in (
            wire.chat_body(reply, 0, METRICS),
            body_of(recording("vllm/flags/x_chat_nostream").reads),
        )
    )
    for each in (ours, theirs):  # the recorded answer ended by itself, while it thought
        each["choices"][0] |= {"finish_reason": "stop"}
        each["choices"][0]["message"] |= {"content": None}
    assert ours == theirs
    assert list(ours) == list(theirs)


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
