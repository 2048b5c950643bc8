"""What chat and text completions have in common: usage, errors, end markers, and both ways of reading."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.dialects.openai import OpenAIReader
from sidecar.core.dialects.openai_chat import ChatReader
from sidecar.core.dialects.openai_completions import CompletionsReader
from sidecar.core.events import (
    OUTPUT,
    ChoiceFinished,
    ChoiceSeen,
    EngineExtra,
    ErrorReported,
    Event,
    ModelNamed,
    TokensReceived,
    Usage,
    UsageReported,
)
from sidecar.core.timeline import Timeline

TEXT = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}
FULL_USAGE = {
    "prompt_tokens": 17,
    "completion_tokens": 9,
    "total_tokens": 26,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 5},
}

CHUNKS: dict[str, tuple[dict[str, Any], list[Event]]] = {
    "a token": ({"choices": [TEXT]}, [TokensReceived(0, OUTPUT)]),
    "the model is named": ({"model": "m", "choices": [TEXT]}, [ModelNamed("m"), TokensReceived(0, OUTPUT)]),
    "the role alone is structural": (
        {"choices": [{"index": 1, "delta": {"role": "assistant", "content": ""}}]},
        [ChoiceSeen(1)],
    ),
    "several choices in one chunk, as LMDeploy sends them": (
        {"choices": [TEXT, {**TEXT, "index": 1}]},
        [TokensReceived(0, OUTPUT), TokensReceived(1, OUTPUT)],
    ),
    "the last token and the finish reason in one chunk": (
        {"choices": [{**TEXT, "finish_reason": "length"}]},
        [TokensReceived(0, OUTPUT), ChoiceFinished(0, "length")],
    ),
    "an empty finish reason is none": (
        {"choices": [{**TEXT, "finish_reason": ""}]},
        [TokensReceived(0, OUTPUT)],
    ),
    "usage alone is a total": (
        {"choices": [], "usage": FULL_USAGE},
        [UsageReported(None, Usage(17, 9, 16, 5))],
    ),
    "usage beside a choice counts that choice so far": (
        {"choices": [TEXT], "usage": {"prompt_tokens": 17, "completion_tokens": 3}},
        [UsageReported(0, Usage(17, 3)), TokensReceived(0, OUTPUT, 3)],
    ),
    "usage beside several choices is not told apart": (
        {"choices": [TEXT, {**TEXT, "index": 1}], "usage": {"completion_tokens": 3}},
        [TokensReceived(0, OUTPUT), TokensReceived(1, OUTPUT), UsageReported(None, Usage(output=3))],
    ),
    "a count of 0 beside a token is no count": (
        {"choices": [TEXT], "usage": {"prompt_tokens": 17, "completion_tokens": 0}},
        [UsageReported(0, Usage(17, 0)), TokensReceived(0, OUTPUT)],
    ),
    "SGLang's reasoning tokens stand at the top of usage": (
        {"choices": [], "usage": {"completion_tokens": 9, "reasoning_tokens": 4}},
        [UsageReported(None, Usage(output=9, reasoning=4))],
    ),
    "usage null is none": ({"choices": [TEXT], "usage": None}, [TokensReceived(0, OUTPUT)]),
    "counts that are no counts are none": (
        {"choices": [], "usage": {"prompt_tokens": True, "completion_tokens": -1, "x": 1}},
        [],
    ),
    "details of another type are ignored": (
        {
            "choices": [],
            "usage": {"completion_tokens": 9, "completion_tokens_details": [1], "prompt_tokens": "3"},
        },
        [UsageReported(None, Usage(output=9))],
    ),
    "an error object": ({"error": {"message": "EngineCore", "code": 500}}, [ErrorReported()]),
    "an error of one string, as TGI sends it": (
        {"error": "overloaded", "error_type": "x"},
        [ErrorReported()],
    ),
    "the error object of older vLLM": ({"object": "error", "message": "x", "code": 400}, [ErrorReported()]),
    "an error null is none": ({"error": None, "choices": [TEXT]}, [TokensReceived(0, OUTPUT)]),
    "llama.cpp's progress is structural": (
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "prompt_progress": {"processed": 64}},
        [ChoiceSeen(0)],
    ),
    "llama.cpp's timings are kept raw and count nothing": (
        {"choices": [], "timings": {"predicted_n": 7}},
        [EngineExtra("timings", {"predicted_n": 7})],
    ),
    "vLLM's metrics are kept raw": (
        {"choices": [], "metrics": {"queue_time_ms": 0.04}},
        [EngineExtra("metrics", {"queue_time_ms": 0.04})],
    ),
    "choices of another type are none": ({"choices": {"index": 0}}, []),
    "a choice of another type is none": ({"choices": [None, 3, TEXT]}, [TokensReceived(0, OUTPUT)]),
    "an index of another type is 0": ({"choices": [{**TEXT, "index": "1"}]}, [TokensReceived(0, OUTPUT)]),
    "nothing": ({}, []),
}


@pytest.mark.parametrize(("document", "events"), CHUNKS.values(), ids=CHUNKS.keys())
def test_what_a_chunk_says(document: dict[str, Any], events: list[Event]) -> None:
    assert list(ChatReader(Timeline()).chunk_events(document)) == events


MESSAGE = {"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}
BODIES: dict[str, tuple[dict[str, Any], list[Event]]] = {
    "counts and finish reasons": (
        {"choices": [MESSAGE, {**MESSAGE, "index": 1}], "usage": FULL_USAGE},
        [ChoiceFinished(0, "stop"), ChoiceFinished(1, "stop"), UsageReported(None, Usage(17, 9, 16, 5))],
    ),
    "a choice without a finish reason was seen": ({"choices": [{"index": 0}]}, [ChoiceSeen(0)]),
    "an error under a 200": ({"error": {"message": "x"}}, [ErrorReported()]),
    "llama.cpp counts one of several choices: the output's total is not known": (
        {"choices": [MESSAGE, {**MESSAGE, "index": 1}], "usage": FULL_USAGE, "timings": {"n": 1}},
        [
            EngineExtra("timings", {"n": 1}),
            ChoiceFinished(0, "stop"),
            ChoiceFinished(1, "stop"),
            UsageReported(None, Usage(input=17, cached_input=16)),
        ],
    ),
}


@pytest.mark.parametrize(("document", "events"), BODIES.values(), ids=BODIES.keys())
def test_what_a_body_that_is_not_streamed_says(document: dict[str, Any], events: list[Event]) -> None:
    assert list(ChatReader(Timeline()).body_events(document)) == events


def seen(timeline: Timeline) -> dict[str, Any]:
    """Everything that both ways must agree on; model and engine extras are only read on the tolerant way."""
    return {
        **timeline.summary(),
        "engine": None,
        "terminal": timeline.terminal,
        "error": timeline.error_reported,
    }


def read(
    reader: type[OpenAIReader], payloads: list[bytes], *, tolerant: bool
) -> tuple[dict[str, Any], list[Any]]:
    gaps: list[Any] = []
    timeline = Timeline(lambda gap, tokens: gaps.append((gap, tokens)))
    one = reader(timeline)
    for at, payload in enumerate(payloads):
        (one.tolerant if tolerant else one.payload)(payload, float(at))  # type: ignore[attr-defined]
    return seen(timeline), gaps


WORDS = st.sampled_from(["", "a", "é"])
MATERIAL = st.one_of(st.none(), WORDS, st.just([{"type": "text", "text": "a"}]), st.just(3))
CALLS = st.lists(
    st.one_of(
        st.just({"function": {"name": "f"}}),
        st.just({"function": {"arguments": ""}}),
        st.just({"function": {"arguments": "{"}}),
        st.just({"custom": {"input": "x"}}),
        st.just({"function": None}),
        st.just(None),
        st.just({"function": {"arguments": {"a": 1}}}),
    ),
    max_size=2,
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant"),
        "content": MATERIAL,
        "reasoning": MATERIAL,
        "reasoning_content": MATERIAL,
        "refusal": MATERIAL,
        "tool_calls": st.one_of(st.none(), CALLS),
        "function_call": st.sampled_from([None, {}, {"name": "f"}]),
        "audio": st.sampled_from([None, {}, {"id": "1"}, {"data": "x"}, {"transcript": "x"}]),
    },
)
CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([0, 1, 2, "1", None, -1]),
        "delta": st.one_of(st.none(), DELTA),
        "text": MATERIAL,
        "reasoning": MATERIAL,
        "finish_reason": st.sampled_from([None, "", "stop", "abort", 1]),
    },
)
COUNT = st.sampled_from([None, 0, 1, 2, 5, 9, -1, "3", 2.5, 3.0, True])
USAGE = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "reasoning_tokens": COUNT,
            "completion_tokens_details": st.one_of(
                st.none(), st.fixed_dictionaries({"reasoning_tokens": COUNT})
            ),
            "prompt_tokens_details": st.one_of(st.none(), st.fixed_dictionaries({"cached_tokens": COUNT})),
        },
    ),
)
CHUNK = st.fixed_dictionaries(
    {"choices": st.lists(st.one_of(CHOICE, CHOICE, st.none()), max_size=2)},
    optional={
        "usage": USAGE,
        "error": st.sampled_from([None, {}, "", "x", {"code": 500}]),
        "model": st.sampled_from(["m", "", None, 3]),
        "object": st.sampled_from(["chat.completion.chunk", "error"]),
    },
)


@pytest.mark.parametrize("reader", [ChatReader, CompletionsReader])
@given(chunks=st.lists(CHUNK, max_size=6))
def test_the_fast_way_sees_what_the_tolerant_way_sees(reader: type[OpenAIReader], chunks: list[Any]) -> None:
    payloads = [json.dumps(chunk).encode() for chunk in chunks]
    assert read(reader, payloads, tolerant=False) == read(reader, payloads, tolerant=True)


ODD = {
    "nothing": (b"", 0),
    "blank": (b"  ", 0),
    "null, as llama.cpp begins two prompts": (b"null", 0),
    "a number": (b"3", 0),
    "a list": (b"[1]", 0),
    "not JSON": (b"ping", 1),
    "JSON and more": (b'{"choices":[]} x', 1),
    "half of a document": (b'{"choices":[', 1),
    "deeper than a decoder goes": (b"[" * 100_000, 1),
    "a number with more digits than Python reads": (b"1" * 10_000, 1),
    "bytes that are no text": (b"\xff\xfe\x00", 1),
}


@pytest.mark.parametrize("reader", [ChatReader, CompletionsReader])
@pytest.mark.parametrize(("payload", "faults"), ODD.values(), ids=ODD.keys())
def test_a_payload_that_is_no_chunk_is_counted_if_it_is_not_json(
    reader: type[Any], payload: bytes, faults: int
) -> None:
    for feed in ("payload", "body"):
        timeline = Timeline()
        one = reader(timeline)
        getattr(one, feed)(payload, 1.0)
        assert one.faults == faults
        assert not timeline.chunks
        assert not one.recognised


@pytest.mark.parametrize("reader", [ChatReader, CompletionsReader])
@given(payload=st.binary(max_size=40))
def test_no_bytes_raise(reader: type[Any], payload: bytes) -> None:
    one = reader(Timeline())
    for data in (payload, b'{"choices":[' + payload + b"]}", b'{"choices":[{"text":"' + payload + b'"}]}'):
        one.payload(data, 1.0)
        one.body(data, 1.0)


ODD_TEXT = {
    "a lone surrogate, half of an emoji": b'"\\ud83d"',
    "bytes that are no UTF-8": b'"\xf0\x9f"',
}


@pytest.mark.parametrize("text", ODD_TEXT.values(), ids=ODD_TEXT.keys())
def test_a_chunk_with_odd_text_is_still_a_token(text: bytes) -> None:
    timeline = Timeline()
    chat, completions = ChatReader(timeline), CompletionsReader(timeline)
    for at in (1.0, 2.0):
        chat.payload(b'{"choices":[{"delta":{"content":' + text + b"}}]}", at)
        completions.payload(b'{"model":' + text + b',"choices":[{"text":' + text + b"}]}", at)
    assert (timeline.chunks, chat.faults, completions.faults) == (4, 0, 0)
    assert timeline.model is not None
    assert timeline.model.encode()


def test_the_model_is_named_by_the_first_chunk_with_choices() -> None:
    """Azure's first chunk holds filter results, no choices and an empty model."""
    timeline = Timeline()
    reader = ChatReader(timeline)
    for model, choices in (("", []), ("m", [TEXT]), ("other", [TEXT])):
        reader.payload(json.dumps({"model": model, "choices": choices}).encode(), 1.0)
    assert timeline.model == "m"


def test_done_ends_the_stream_once() -> None:
    timeline = Timeline()
    reader = ChatReader(timeline)
    reader.payload(b"[DONE]", 1.0)
    reader.payload(b" [DONE] ", 2.0)
    assert (timeline.terminal, timeline.z, reader.recognised, reader.faults) == (True, 1.0, True, 0)


def test_an_error_event_is_an_error_whatever_its_data_are() -> None:
    timeline = Timeline()
    reader = ChatReader(timeline)
    reader.named_payload(b"error", b"engine gone", 1.0)
    assert timeline.error_reported
    assert reader.faults == 0


def test_an_event_of_another_type_is_read_like_any() -> None:
    timeline = Timeline()
    reader = ChatReader(timeline)
    reader.named_payload(b"chunk", json.dumps({"choices": [TEXT]}).encode(), 1.0)
    reader.named_payload(b"trtllm.perf_metrics", b'{"server_ttft": 3}', 2.0)
    assert (timeline.chunks, timeline.error_reported) == (1, False)


def test_engine_extras_of_a_huge_payload_are_not_kept() -> None:
    timeline = Timeline()
    payload = json.dumps({"choices": [], "timings": {"n": 1}, "x": "y" * 20_000}).encode()
    ChatReader(timeline).payload(payload, 1.0)
    assert timeline.extras == {}
