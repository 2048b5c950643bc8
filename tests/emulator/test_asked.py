"""What a request body asks for, and what is refused."""

import json

import pytest

from sidecar.emulator.asked import AskedError, read_chat, read_completion

MODELS = ("big", "small")
HELLO = [{"role": "user", "content": "two words"}]
TOOL = {"type": "function", "function": {"name": "get_weather"}}

# body; what is expected of the fields
CHATS = {
    "a word is a token, a message has four more": (
        {},
        {"prompts": (("<|start|>", "user", "two", "words", "<|end|>", "\n"),), "model": "big", "n": 1},
    ),
    "without a limit the context is the limit": ({}, {"limit": None, "max_tokens": 994}),
    "a limit": ({"max_tokens": 5}, {"limit": 5, "max_tokens": 5}),
    "what is sampled with, and the defaults": (
        {"temperature": 0},
        {"temperature": 0.0, "top_p": 1.0},
    ),
    "parts of text count, others do not": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a b c"}, {"type": "image_url"}]}
            ]
        },
        {"prompts": (("<|start|>", "user", "a", "b", "c", "<|end|>", "\n"),)},
    ),
    "the newer limit wins": ({"max_tokens": 5, "max_completion_tokens": 7}, {"limit": 7}),
    "usage options": (
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stream": True, "include_usage": True, "continuous_usage": True},
    ),
    "a named model": ({"model": "small"}, {"model": "small"}),
    "thinks when the template is told to": (
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"thinks": True},
    ),
    "thinks when the prompt says so": (
        {"messages": [{"role": "user", "content": "Think!"}]},
        {"thinks": True},
    ),
    "does not think when told not to": (
        {
            "messages": [{"role": "user", "content": "Think!"}],
            "chat_template_kwargs": {"enable_thinking": False},
        },
        {"thinks": False},
    ),
    "thinks by effort": ({"reasoning_effort": "low"}, {"thinks": True}),
    "calls the first tool": ({"tools": [TOOL]}, {"tool": "get_weather", "thinks": False}),
    "calls the chosen tool": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool": "other"},
    ),
    "calls none when told not to": ({"tools": [TOOL], "tool_choice": "none"}, {"tool": None}),
}


@pytest.mark.parametrize(("extra", "expected"), CHATS.values(), ids=CHATS)
def test_chat_requests(extra, expected) -> None:
    asked = read_chat(json.dumps({"messages": HELLO} | extra).encode(), MODELS, 1000)
    assert {name: getattr(asked, name) for name in expected} == expected


PROMPTS = {
    "a text": ("a b c", (("a", "b", "c"),)),
    "an empty text is one token": ("", (("<|bos|>",),)),
    "texts": (["a b", "c"], (("a", "b"), ("c",))),
    "token ids": ([1, 2, 3, 4], ((1, 2, 3, 4),)),
    "lists of token ids": ([[1, 2], [3]], ((1, 2), (3,))),
}


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS.values(), ids=PROMPTS)
def test_prompts_of_completions(prompt, expected) -> None:
    assert read_completion(json.dumps({"prompt": prompt}).encode(), MODELS, 1000).prompts == expected


# body; status, type, param
REFUSED = {
    "no JSON": (b"{", (400, "Bad Request", "body")),
    "no object": (b"[1]", (400, "Bad Request", "body")),
    "no messages": ({"messages": []}, (400, "BadRequestError", "messages")),
    "an unknown model": ({"model": "absent"}, (404, "NotFoundError", "model")),
    "a negative temperature": ({"temperature": -3}, (400, "BadRequestError", "temperature")),
    "a top_p that is none": ({"top_p": "much"}, (400, "BadRequestError", "top_p")),
    "no tokens": ({"max_tokens": 0}, (400, "BadRequestError", "max_tokens")),
    "no choices": ({"n": 0}, (400, "BadRequestError", "n")),
    "more than the context holds": ({"max_tokens": 995}, (400, "BadRequestError", "input_tokens")),
}


@pytest.mark.parametrize(("body", "expected"), REFUSED.values(), ids=REFUSED)
def test_refusals(body, expected) -> None:
    data = body if isinstance(body, bytes) else json.dumps({"messages": HELLO} | body).encode()
    with pytest.raises(AskedError) as refused:
        read_chat(data, MODELS, 1000)
    assert (refused.value.status, refused.value.kind, refused.value.param) == expected
