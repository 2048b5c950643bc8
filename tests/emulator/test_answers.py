"""How long an answer is and why it ends."""

import json
import random

import pytest

from sidecar.emulator.answers import answer
from sidecar.emulator.asked import read_chat

CONTEXT = 40
TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
THINK = {"chat_template_kwargs": {"enable_thinking": True}}

# request, whose prompt is 6 tokens; natural length; tokens, why it ends, the first visible token
ANSWERS = {
    "its natural length and an end token": ({}, 9, (10, "stop", 0)),
    "the limit": ({"max_tokens": 4}, 9, (4, "length", 0)),
    "the limit, also when it is more than natural": ({"max_tokens": 12}, 9, (12, "length", 0)),
    "no more than the context has room for": ({}, 100, (34, "length", 0)),
    "a call": (TOOLS, 9, (22, "tool_calls", 12)),
    "a call that the limit cuts before its name": (TOOLS | {"max_tokens": 5}, 9, (5, "length", None)),
    "thinking begins after its tag": (THINK, 9, (10, "stop", 1)),
    "thinking that is not shown": (THINK | {"include_reasoning": False}, 9, (10, "stop", 6)),
}


@pytest.mark.parametrize(("extra", "natural", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_answers(extra, natural, expected) -> None:
    body = {"messages": [{"role": "user", "content": "Say hello."}]} | extra
    asked = read_chat(json.dumps(body).encode(), ("m",), CONTEXT)
    said = answer(asked, natural, random.Random(0))
    assert (len(said.pieces), said.finish_reason, said.first_text) == expected
