"""llama.cpp's own API, `/completion` and `/infill`: `content` a chunk, with the count so far.

Source: llama.cpp's tools/server/README.md and captures/llama.cpp/*/native_completion_*. The last chunk of a
prompt has `stop: true`, its `stop_type`, both counts and `timings`; there is no `[DONE]`. `index` is the
prompt's. A `prompt_progress` chunk comes before the first token and is none. `tokens_evaluated` is the whole
prompt; what the cache held of it is `timings.cache_n`.
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
    index_of,
    member,
    reason_of,
)
from sidecar.core.events import (
    OUTPUT,
    ChoiceFinished,
    ChoiceSeen,
    Event,
    TokensReceived,
    Usage,
    UsageReported,
)

_REASONS = {"eos": "stop", "word": "stop", "limit": "length", "none": "stop"}
_OLD_REASONS = {"stopped_eos": "stop", "stopped_word": "stop", "stopped_limit": "length"}  # before 2025


class _Chunk(msgspec.Struct, gc=False):
    index: int = 0
    content: str | None = None
    stop: bool = False
    tokens_predicted: int | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class LlamaCppReader(JsonReader):
    """Reads one response of /completion or /infill."""

    __slots__ = ()

    def payload(self, data: bytes, now: float) -> None:
        """Hot: one chunk."""
        try:
            chunk = _decode(data)
        except NOT_DECODABLE:
            self.tolerant(data, now)
            return
        if chunk.stop or chunk.error is not None or not chunk.content:
            self.tolerant(data, now)
            return
        self.recognised = True
        self._tokens_received(chunk.index, OUTPUT, chunk.tokens_predicted or None, now)

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one chunk says."""
        yield from general_events(document, extras=extras)
        index = index_of(document)
        if filled(document.get("content")):
            yield TokensReceived(index, OUTPUT, count_of(document.get("tokens_predicted")) or None)
        elif "content" in document:
            yield ChoiceSeen(index)
        if document.get("stop") is True:
            yield from _ended(document)

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What an answer in one piece says."""
        yield from general_events(document, extras=extras)
        if document.get("stop") is True:
            yield from _ended(document)


def _ended(document: Document) -> Iterator[Event]:
    index = index_of(document)
    usage = Usage(
        input=count_of(document.get("tokens_evaluated")),
        output=count_of(document.get("tokens_predicted")),
        cached_input=count_of(member(document, "timings").get("cache_n")),
    )
    yield UsageReported(index, usage)
    reason = reason_of(document.get("stop_type"), "")
    old = next((said for name, said in _OLD_REASONS.items() if document.get(name) is True), "stop")
    yield ChoiceFinished(index, _REASONS.get(reason, old))
