"""OpenAI's Responses API: typed events, of which only deltas are tokens.

Source: OpenAI's API reference, "Responses streaming events"; engines differ in what they leave out
(captures/vllm/parsers and llama.cpp/tiny, responses_stream_*). Every event repeats its type inside its data.
`response.created` and other structural events come before any inference on most engines. A `.done` event
repeats what the deltas said. A function call's name comes with `response.output_item.added` and is
generated material, as in chat.
"""

from collections.abc import Iterator

import msgspec

from sidecar.core.dialects.json_reader import (
    NO_USAGE,
    NOT_DECODABLE,
    Document,
    JsonReader,
    count_of,
    filled,
    general_events,
    member,
    model_named,
    reason_of,
)
from sidecar.core.events import (
    OUTPUT,
    REASONING,
    TOOL_CALL,
    ChoiceFinished,
    ChoiceSeen,
    ErrorReported,
    Event,
    StreamDone,
    TokensReceived,
    Usage,
    UsageReported,
)

MATERIAL = {
    "response.output_text.delta": OUTPUT,
    "response.refusal.delta": OUTPUT,
    "response.audio.delta": OUTPUT,
    "response.audio.transcript.delta": OUTPUT,
    "response.reasoning_text.delta": REASONING,
    "response.reasoning_summary_text.delta": REASONING,
    "response.reasoning.delta": REASONING,
    "response.function_call_arguments.delta": TOOL_CALL,
    "response.custom_tool_call_input.delta": TOOL_CALL,
    "response.mcp_call_arguments.delta": TOOL_CALL,
    "response.code_interpreter_call_code.delta": TOOL_CALL,
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_REASONS = {"max_output_tokens": "length"}  # `incomplete_details.reason` in chat's words


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class ResponsesReader(JsonReader):
    """Reads one response of /v1/responses."""

    __slots__ = ()

    def payload(self, data: bytes, now: float) -> None:
        """Hot: one event."""
        try:
            event = _decode(data)
        except NOT_DECODABLE:
            self.tolerant(data, now)
            return
        material = MATERIAL.get(event.type)
        if material is None:
            self.tolerant(data, now)
        elif event.delta:
            self.recognised = True
            self._tokens_received(0, material, None, now)

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one event says."""
        kind = reason_of(document.get("type"), "")
        yield from general_events(document, extras=extras)
        yield from model_named(member(document, "response").get("model"))
        material = MATERIAL.get(kind)
        if material is not None:
            if filled(document.get("delta")):
                yield TokensReceived(0, material)
        elif kind == "response.output_item.added":
            named = filled(member(document, "item").get("name"))
            yield TokensReceived(0, TOOL_CALL) if named else ChoiceSeen(0)
        elif kind == "error":
            yield ErrorReported()
        elif kind in _ENDS:
            yield from _ended(member(document, "response"), failed=kind == "response.failed")
            yield StreamDone()

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What a response object says."""
        yield from general_events(document, extras=extras)
        yield from _ended(document, failed=document.get("status") == "failed" and not document.get("error"))


def _ended(response: Document, *, failed: bool) -> Iterator[Event]:
    if failed:
        yield ErrorReported()
    usage = _usage_of(member(response, "usage"))
    if usage != NO_USAGE:
        yield UsageReported(None, usage)
    reason = reason_of(member(response, "incomplete_details").get("reason"))
    yield ChoiceFinished(0, _REASONS.get(reason, reason))


def _usage_of(usage: Document) -> Usage:
    return Usage(
        input=count_of(usage.get("input_tokens")),
        output=count_of(usage.get("output_tokens")),
        cached_input=count_of(member(usage, "input_tokens_details").get("cached_tokens")),
        reasoning=count_of(member(usage, "output_tokens_details").get("reasoning_tokens")),
    )
