"""Ollama's own API, `/api/chat` and `/api/generate`: one JSON object a line, the last with `done: true`.

Source: Ollama's docs/api.md and engines.md 2.5. Content and thinking are in `message` (chat), or beside
`done` as `response` and `thinking` (generate); an error after the first object is a line `{"error": ...}`.
The last object carries counts and durations in nanoseconds, left out where they are 0.
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
    reason_of,
)
from sidecar.core.events import (
    OUTPUT,
    REASONING,
    TOOL_CALL,
    ChoiceFinished,
    ChoiceSeen,
    EngineExtra,
    Event,
    StreamDone,
    TokensReceived,
    Usage,
    UsageReported,
)

EXTRA = "ollama"
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct, gc=False):
    message: _Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    error: object = None


_decode = msgspec.json.Decoder(_Line).decode


class OllamaReader(JsonReader):
    """Reads one response of /api/chat or /api/generate."""

    __slots__ = ()

    def payload(self, data: bytes, now: float) -> None:
        """Hot: one line."""
        try:
            line = _decode(data)
        except NOT_DECODABLE:
            self.tolerant(data, now)
            return
        if line.done or line.error is not None or not self.recognised:
            self.tolerant(data, now)
            return
        material = OUTPUT if line.response else 0
        if line.thinking:
            material |= REASONING
        message = line.message
        if message is not None:
            if message.content:
                material |= OUTPUT
            if message.thinking:
                material |= REASONING
            if message.tool_calls:
                material |= TOOL_CALL
        if material:
            self._tokens_received(0, material, None, now)

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one line says; an answer in one piece is a single such object."""
        yield from general_events(document, extras=extras)
        material = _material(document) | _material(member(document, "message"))
        if material:
            yield TokensReceived(0, material)
        elif "done" in document:
            yield ChoiceSeen(0)
        if document.get("done") is True:
            yield from _ended(document)
            yield StreamDone()

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What an answer in one piece says."""
        yield from general_events(document, extras=extras)
        if document.get("done") is True:
            yield from _ended(document)


def _material(part: Document) -> int:
    material = OUTPUT if filled(part.get("content")) or filled(part.get("response")) else 0
    if filled(part.get("thinking")):
        material |= REASONING
    calls = part.get("tool_calls")
    return material | TOOL_CALL if isinstance(calls, list) and calls else material


def _ended(document: Document) -> Iterator[Event]:
    usage = Usage(
        input=count_of(document.get("prompt_eval_count")), output=count_of(document.get("eval_count"))
    )
    if usage != NO_USAGE:
        yield UsageReported(None, usage)
    durations = {name: document[name] for name in DURATIONS if count_of(document.get(name)) is not None}
    if durations:
        yield EngineExtra(EXTRA, durations)
    yield ChoiceFinished(0, reason_of(document.get("done_reason")))
