"""The dialects that are not OpenAI's completions: what each document says, in the one vocabulary.

Documents are shortened from recordings (data/streams) or, where an engine can't run here (Ollama, TGI,
SGLang), written after its documentation.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.dialects.json_reader import JsonReader, PayloadReader
from sidecar.core.dialects.llama_cpp import LlamaCppReader
from sidecar.core.dialects.messages import MessagesReader
from sidecar.core.dialects.native import NativeReader
from sidecar.core.dialects.ollama import OllamaReader
from sidecar.core.dialects.responses import ResponsesReader
from sidecar.core.dialects.sglang import SGLangReader
from sidecar.core.dialects.tgi import TGIReader
from sidecar.core.events import (
    OUTPUT,
    REASONING,
    TOOL_CALL,
    ChoiceFinished,
    ChoiceSeen,
    EngineExtra,
    ErrorReported,
    Event,
    ModelNamed,
    StreamDone,
    TokensReceived,
    Usage,
    UsageReported,
)
from sidecar.core.timeline import Timeline

Document = dict[str, Any]
READERS: tuple[type[JsonReader], ...] = (
    ResponsesReader, MessagesReader, OllamaReader, LlamaCppReader, TGIReader, SGLangReader,
)  # fmt: skip


def typed(kind: str, **members: Any) -> Document:
    return {"type": kind, **members}


RESPONSE_USAGE = {
    "input_tokens": 169,
    "output_tokens": 22,
    "input_tokens_details": {"cached_tokens": 168},
    "output_tokens_details": {"reasoning_tokens": 5},
}
START_USAGE = {"cache_read_input_tokens": 168, "input_tokens": 1, "output_tokens": 0}
OLLAMA_END = {
    "model": "m", "done": True, "done_reason": "length", "total_duration": 9, "load_duration": 1,
    "prompt_eval_count": 26, "prompt_eval_duration": 2, "eval_count": 7, "eval_duration": 3,
}  # fmt: skip
TOKEN = {"id": 1, "text": " a", "special": False}

STREAMS: dict[str, tuple[type[JsonReader], list[Document], list[Event]]] = {
    "responses: created and in_progress name the model, and are no tokens": (
        ResponsesReader,
        [typed("response.created", response={"model": "m"}), typed("response.in_progress", response={})],
        [ModelNamed("m")],
    ),
    "responses: a text item and its part are structural": (
        ResponsesReader,
        [
            typed("response.output_item.added", item={"type": "message", "content": []}),
            typed("response.content_part.added", part={"type": "output_text", "text": ""}),
        ],
        [ChoiceSeen(0)],
    ),
    "responses: text, refusal and audio are output": (
        ResponsesReader,
        [
            typed("response.output_text.delta", delta="Hi"),
            typed("response.refusal.delta", delta="No"),
            typed("response.audio.transcript.delta", delta="Hi"),
        ],
        [TokensReceived(0, OUTPUT)] * 3,
    ),
    "responses: reasoning text and its summary are reasoning": (
        ResponsesReader,
        [
            typed("response.reasoning_text.delta", delta="Hm"),
            typed("response.reasoning_summary_text.delta", delta="Hm"),
        ],
        [TokensReceived(0, REASONING)] * 2,
    ),
    "responses: a function's name, then its arguments": (
        ResponsesReader,
        [
            typed("response.output_item.added", item={"type": "function_call", "name": "f", "arguments": ""}),
            typed("response.function_call_arguments.delta", delta="{"),
            typed("response.function_call_arguments.done", arguments="{}"),
        ],
        [TokensReceived(0, TOOL_CALL)] * 2,
    ),
    "responses: an empty delta is no token, and `done` repeats the text": (
        ResponsesReader,
        [
            typed("response.output_text.delta", delta=""),
            typed("response.output_text.done", text="Hi"),
            typed("response.output_item.done", item={"type": "message", "content": [{"text": "Hi"}]}),
        ],
        [],
    ),
    "responses: completed has the counts and is the end": (
        ResponsesReader,
        [typed("response.completed", response={"usage": RESPONSE_USAGE}, timings={"prompt_n": 1})],
        [
            EngineExtra("timings", {"prompt_n": 1}),
            UsageReported(None, Usage(169, 22, 168, 5)),
            ChoiceFinished(0, "stop"),
            StreamDone(),
        ],
    ),
    "responses: incomplete says why": (
        ResponsesReader,
        [typed("response.incomplete", response={"incomplete_details": {"reason": "max_output_tokens"}})],
        [ChoiceFinished(0, "length"), StreamDone()],
    ),
    "responses: failed is an error": (
        ResponsesReader,
        [typed("response.failed", response={"error": {"code": "server_error"}})],
        [ErrorReported(), ChoiceFinished(0, "stop"), StreamDone()],
    ),
    "responses: an error event": (ResponsesReader, [typed("error", message="x")], [ErrorReported()]),
    "messages: the start names the model and counts the prompt with what the cache held": (
        MessagesReader,
        [typed("message_start", message={"model": "m", "usage": START_USAGE})],
        [ModelNamed("m"), UsageReported(None, Usage(169, None, 168, None))],
    ),
    "messages: a tool's name, then its input": (
        MessagesReader,
        [
            typed("content_block_start", content_block={"type": "tool_use", "name": "f", "input": {}}),
            typed("content_block_delta", delta={"type": "input_json_delta", "partial_json": ""}),
            typed("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}),
        ],
        [TokensReceived(0, TOOL_CALL), ChoiceSeen(0), TokensReceived(0, TOOL_CALL)],
    ),
    "messages: thinking, its signature, text": (
        MessagesReader,
        [
            typed("content_block_start", content_block={"type": "thinking", "thinking": ""}),
            typed("content_block_delta", delta={"type": "thinking_delta", "thinking": "Hm"}),
            typed("content_block_delta", delta={"type": "signature_delta", "signature": "EqQ"}),
            typed("content_block_stop", index=0),
            typed("content_block_delta", delta={"type": "text_delta", "text": "Hi"}),
        ],
        [ChoiceSeen(0), TokensReceived(0, REASONING), ChoiceSeen(0), TokensReceived(0, OUTPUT)],
    ),
    "messages: a ping proves life and is nothing else": (MessagesReader, [typed("ping")], []),
    "messages: the counts add up over the events, the latest of each wins": (
        MessagesReader,
        [
            typed("message_start", message={"usage": START_USAGE}),
            typed("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 9}),
            typed("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 22}),
            typed("message_stop"),
        ],
        [
            UsageReported(None, Usage(169, None, 168, None)),
            UsageReported(None, Usage(169, 9, 168, None)),
            UsageReported(None, Usage(169, 22, 168, None)),
            ChoiceFinished(0, "tool_use"),
            StreamDone(),
        ],
    ),
    "messages: an error event": (
        MessagesReader,
        [typed("error", error={"type": "overloaded_error"}), typed("error")],
        [ErrorReported(), ErrorReported()],
    ),
    "ollama: chat with thinking, text and a whole tool call": (
        OllamaReader,
        [
            {"model": "m", "message": {"role": "assistant", "content": "", "thinking": "Hm"}, "done": False},
            {"message": {"content": "Hi"}, "done": False},
            {"message": {"content": "", "tool_calls": [{"function": {"name": "f"}}]}, "done": False},
        ],
        [
            ModelNamed("m"),
            TokensReceived(0, REASONING),
            TokensReceived(0, OUTPUT),
            TokensReceived(0, TOOL_CALL),
        ],
    ),
    "ollama: generate": (
        OllamaReader,
        [{"response": "", "thinking": "Hm", "done": False}, {"response": "Hi", "done": False}],
        [TokensReceived(0, REASONING), TokensReceived(0, OUTPUT)],
    ),
    "ollama: the last line counts, has durations and is the end": (
        OllamaReader,
        [{"message": {"content": ""}, **OLLAMA_END}],
        [
            ModelNamed("m"),
            ChoiceSeen(0),
            UsageReported(None, Usage(26, 7)),
            EngineExtra(
                "ollama",
                {"total_duration": 9, "load_duration": 1, "prompt_eval_duration": 2, "eval_duration": 3},
            ),
            ChoiceFinished(0, "length"),
            StreamDone(),
        ],
    ),
    "ollama: an error line": (OllamaReader, [{"error": "model runner stopped"}], [ErrorReported()]),
    "llama.cpp: the count so far comes with each chunk": (
        LlamaCppReader,
        [
            {"index": 0, "content": "", "prompt_progress": {"total": 9, "processed": 4}, "stop": False},
            {"index": 0, "content": " is", "stop": False, "tokens_predicted": 1, "tokens_evaluated": 3},
            {"index": 1, "content": " a", "stop": False, "tokens_predicted": 2, "tokens_evaluated": 3},
        ],
        [ChoiceSeen(0), TokensReceived(0, OUTPUT, 1), TokensReceived(1, OUTPUT, 2)],
    ),
    "llama.cpp: the last chunk of a prompt": (
        LlamaCppReader,
        [{"index": 0, "content": "", "stop": True, "model": "m", "stop_type": "limit",
          "tokens_predicted": 24, "tokens_evaluated": 3, "timings": {"cache_n": 1}}],
        [
            ModelNamed("m"),
            EngineExtra("timings", {"cache_n": 1}),
            ChoiceSeen(0),
            UsageReported(0, Usage(3, 24, 1)),
            ChoiceFinished(0, "length"),
        ],
    ),
    "tgi: a token, a special token, the end": (
        TGIReader,
        [
            {"index": 1, "token": TOKEN, "generated_text": None, "details": None},
            {"index": 2, "token": {"id": 2, "text": "</s>", "special": True}, "generated_text": " a",
             "details": {"finish_reason": "eos_token", "generated_tokens": 2, "input_length": 5}},
        ],
        [
            TokensReceived(0, OUTPUT),
            ChoiceSeen(0),
            UsageReported(None, Usage(5, 2)),
            ChoiceFinished(0, "eos_token"),
            StreamDone(),
        ],
    ),
    "tgi: an error under status 200": (
        TGIReader, [{"error": "overloaded", "error_type": "overloaded"}], [ErrorReported()],
    ),
    "sglang: only the growth of the text is a token": (
        SGLangReader,
        [
            {"text": "The", "meta_info": {"completion_tokens": 1}},
            {"text": "The", "meta_info": {"completion_tokens": 2}},
            {"text": "The cat", "meta_info": {"completion_tokens": 3}},
        ],
        [
            EngineExtra("meta_info", {"completion_tokens": 1}),
            TokensReceived(0, OUTPUT, 1),
            EngineExtra("meta_info", {"completion_tokens": 2}),
            ChoiceSeen(0),
            EngineExtra("meta_info", {"completion_tokens": 3}),
            TokensReceived(0, OUTPUT, 3),
        ],
    ),
    "sglang: text in pieces, each is one": (
        SGLangReader,
        [{"text": "The"}, {"text": " cat"}, {"text": " cat"}, {"text": "."}],
        [TokensReceived(0, OUTPUT)] * 4,
    ),
    "sglang: a batch has an index a prompt": (
        SGLangReader,
        [{"text": "A", "index": 0}, {"text": "B", "index": 1}, {"text": "A", "index": 0}],
        [TokensReceived(0, OUTPUT), TokensReceived(1, OUTPUT), ChoiceSeen(0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reader", "documents", "events"), STREAMS.values(), ids=STREAMS.keys())
def test_what_a_stream_says(reader: type[JsonReader], documents: list[Document], events: list[Event]) -> None:
    one = reader(Timeline())
    assert [event for document in documents for event in one.chunk_events(document)] == events


def test_sglang_ends_a_choice_with_its_counts() -> None:
    meta = {
        "finish_reason": {"type": "length", "length": 8}, "prompt_tokens": 4, "completion_tokens": 8,
        "cached_tokens": 2, "reasoning_tokens": 0,
    }  # fmt: skip
    assert list(SGLangReader(Timeline()).chunk_events({"text": "x", "meta_info": meta}))[1:] == [
        TokensReceived(0, OUTPUT, 8),
        UsageReported(0, Usage(4, 8, 2, None)),
        ChoiceFinished(0, "length"),
    ]


BODIES: dict[str, tuple[type[PayloadReader], Any, Usage, tuple[str, ...]]] = {
    "a response object": (
        ResponsesReader,
        {"object": "response", "model": "m", "status": "incomplete", "usage": RESPONSE_USAGE,
         "incomplete_details": {"reason": "max_output_tokens"}},
        Usage(169, 22, 168, 5), ("length",),
    ),
    "a message object": (
        MessagesReader,
        {"type": "message", "model": "m", "stop_reason": "max_tokens",
         "usage": {"input_tokens": 17, "output_tokens": 32}},
        Usage(17, 32), ("max_tokens",),
    ),
    "Ollama": (NativeReader, {"response": "Hi", **OLLAMA_END}, Usage(26, 7), ("length",)),
    "llama.cpp, two prompts": (
        NativeReader,
        [{"index": i, "content": "x", "stop": True, "tokens_predicted": 8, "tokens_evaluated": 3,
          "stop_type": "limit"} for i in (0, 1)],
        Usage(6, 16), ("length", "length"),
    ),
    "TGI, details asked for": (
        NativeReader,
        {"generated_text": "x", "details": {"finish_reason": "length", "generated_tokens": 4,
                                            "prefill": [{"id": 1}, {"id": 2}]}},
        Usage(2, 4), ("length",),
    ),
    "SGLang": (
        NativeReader,
        {"text": "x", "meta_info": {"finish_reason": {"type": "stop"}, "prompt_tokens": 4,
                                    "completion_tokens": 8, "cached_tokens": 0}},
        Usage(4, 8, 0), ("stop",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reader", "body", "usage", "reasons"), BODIES.values(), ids=BODIES.keys())
def test_what_an_answer_in_one_piece_says(
    reader: type[PayloadReader], body: Any, usage: Usage, reasons: tuple[str, ...]
) -> None:
    timeline = Timeline()
    timeline.per_prompt = 1
    one = reader(timeline)
    one.body(json.dumps(body).encode(), 1.0)
    summary = timeline.summary()
    counted = [summary[f"{name}_tokens"] for name in ("input", "output", "cached_input", "reasoning")]
    assert counted == [usage.input, usage.output, usage.cached_input, usage.reasoning]
    assert summary["finish_reasons"] == reasons
    assert one.recognised
    assert not one.foreign


def replayed(reader: PayloadReader, documents: list[Any]) -> None:
    for now, document in enumerate(documents):
        reader.payload(json.dumps(document).encode(), float(now))


@pytest.mark.parametrize(("reader", "documents", "events"), STREAMS.values(), ids=STREAMS.keys())
def test_the_fast_way_sees_what_the_tolerant_way_sees(
    reader: type[JsonReader], documents: list[Document], events: list[Event]
) -> None:
    fast, slow = Timeline(), Timeline()
    replayed(reader(fast), documents)
    tolerant = reader(slow)
    for now, document in enumerate(documents):
        tolerant.tolerant(json.dumps(document).encode(), float(now))
    assert {**fast.summary(), "choices": 0} == {**slow.summary(), "choices": 0}
    assert (fast.terminal, fast.error_reported, fast.chunks) == (
        slow.terminal,
        slow.error_reported,
        sum(isinstance(event, TokensReceived) for event in events),
    )


NATIVE = {
    "SGLang": [{"text": "a", "meta_info": {}}, {"text": "ab", "meta_info": {}}],
    "TGI": [{"token": TOKEN}, {"token": TOKEN}],
    "llama.cpp": [{"content": "a", "tokens_predicted": 1}, {"content": "b", "tokens_predicted": 2}],
    "Ollama chat": [
        {"message": {"content": "a"}, "done": False}, {"message": {"content": "b"}, "done": False},
    ],
    "Ollama generate": [{"response": "a", "done": False}, {"response": "b", "done": False}],
}  # fmt: skip


@pytest.mark.parametrize("documents", NATIVE.values(), ids=NATIVE.keys())
def test_a_native_route_is_read_by_the_shape_of_its_answer(documents: list[Any]) -> None:
    timeline = Timeline()
    reader = NativeReader(timeline)
    replayed(reader, documents)
    assert timeline.chunks == 2
    assert reader.recognised
    assert not reader.foreign


def test_a_native_route_with_an_unknown_shape_tells_nothing() -> None:
    timeline = Timeline()
    reader = NativeReader(timeline)
    replayed(reader, [{"outputs": [1]}, ["x"], 3])
    assert (reader.recognised, reader.foreign, timeline.chunks) == (False, True, 0)


def test_a_native_route_that_only_reports_an_error() -> None:
    timeline = Timeline()
    replayed(NativeReader(timeline), [{"error": "queue full"}])
    assert timeline.error_reported


def test_what_trtllm_sends_after_done_is_kept_and_changes_nothing() -> None:
    from sidecar.core.dialects.openai_chat import ChatReader

    timeline = Timeline()
    reader = ChatReader(timeline)
    reader.payload(b"[DONE]", 1.0)
    reader.named_payload(b"trtllm.perf_metrics", b'{"server_ttft": 12.5}', 2.0)
    assert timeline.terminal
    assert timeline.z == 1.0
    assert timeline.extras == {"trtllm.perf_metrics": {"server_ttft": 12.5}}


TYPES = [
    "message_start",
    "content_block_delta",
    "message_delta",
    "response.completed",
    "response.output_text.delta",
]
MEMBERS = st.sampled_from(
    ["type", "delta", "message", "response", "usage", "index", "content", "text", "token", "meta_info",
     "stop", "done", "item", "content_block", "generated_text", "details", "error", "tokens_predicted",
     "timings"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", *TYPES]) | st.floats()
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(MEMBERS, inner, max_size=3)
)


@given(st.lists(st.dictionaries(MEMBERS, VALUES, max_size=5), max_size=4), st.binary(max_size=40))
def test_no_document_raises(documents: list[Document], junk: bytes) -> None:
    for reader in (*READERS, NativeReader):
        timeline = Timeline()
        one = reader(timeline)
        replayed(one, documents)
        one.payload(junk, 9.0)
        one.named_payload(b"x", junk, 9.0)
        one.body(json.dumps(documents).encode(), 9.0)
        assert timeline.summary()["chunks"] >= 0
