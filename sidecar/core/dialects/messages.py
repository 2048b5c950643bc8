"""Anthropic's Messages API: blocks of text, thinking and tool use, each in deltas.

Source: Anthropic's API reference, "Streaming messages". `message_start` opens the stream, on some engines
before any inference; `ping` proves life; `message_delta` has the stop reason and the counts so far;
`message_stop` is the end. A tool's name comes with `content_block_start` and is generated material, as in
chat. `input_tokens` leaves out what the cache held: the prompt is the sum of the three counts.
"""

from collections.abc import Iterator

import msgspec

from sidecar.core.dialects.json_reader import (
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
from sidecar.core.timeline import Timeline

_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_TEXTS = {"text": OUTPUT, "thinking": REASONING, "partial_json": TOOL_CALL, "name": TOOL_CALL}


class _Delta(msgspec.Struct, gc=False):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: _Delta | None = None


_decode = msgspec.json.Decoder(_Event).decode


class MessagesReader(JsonReader):
    """Reads one response of /v1/messages."""

    __slots__ = ("_counts",)

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self._counts: dict[str, int] = {}  # the latest of each

    def payload(self, data: bytes, now: float) -> None:
        """Hot: one event."""
        try:
            event = _decode(data)
        except NOT_DECODABLE:
            self.tolerant(data, now)
            return
        delta = event.delta
        if event.type != "content_block_delta" or delta is None:
            self.tolerant(data, now)
            return
        self.recognised = True
        if delta.text:
            self._tokens_received(0, OUTPUT, None, now)
        elif delta.thinking:
            self._tokens_received(0, REASONING, None, now)
        elif delta.partial_json:
            self._tokens_received(0, TOOL_CALL, None, now)

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one event says."""
        kind = document.get("type")
        yield from general_events(document, extras=extras)
        if kind == "message_start":
            message = member(document, "message")
            yield from model_named(message.get("model"))
            # Its output count is a placeholder, the first real one comes with `message_delta`.
            yield from self._counted({**member(message, "usage"), "output_tokens": None})
        elif kind in ("content_block_start", "content_block_delta"):
            part = member(document, "content_block" if kind == "content_block_start" else "delta")
            material = _material(part)
            yield TokensReceived(0, material) if material else ChoiceSeen(0)
        elif kind == "message_delta":
            yield from self._counted(member(document, "usage"))
            reason = member(document, "delta").get("stop_reason")
            if filled(reason):
                yield ChoiceFinished(0, reason_of(reason))
        elif kind == "message_stop":
            yield StreamDone()
        elif kind == "error" and not document.get("error"):
            yield ErrorReported()

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What a message object says."""
        yield from general_events(document, extras=extras)
        yield from self._counted(member(document, "usage"))
        if document.get("type") == "message":
            yield ChoiceFinished(0, reason_of(document.get("stop_reason")))

    def _counted(self, usage: Document) -> Iterator[Event]:
        said = {name: count_of(usage.get(name)) for name in _COUNTS}
        counts = self._counts
        counts.update({name: count for name, count in said.items() if count is not None})
        fresh, read, created, output = (counts.get(name) for name in _COUNTS)
        if counts:
            prompt = None if fresh is None else fresh + (read or 0) + (created or 0)
            yield UsageReported(None, Usage(input=prompt, output=output, cached_input=read))


def _material(part: Document) -> int:
    material = 0
    for name, kind in _TEXTS.items():
        if filled(part.get(name)):
            material |= kind
    return material
