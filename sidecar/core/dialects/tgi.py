"""Text Generation Inference's own API, `/generate` and `/generate_stream`: one event a token.

Source: TGI's OpenAPI description (StreamResponse, GenerateResponse) and engines.md 2.4.4. The last event
has `generated_text` and `details`; there is no `[DONE]`. An error comes as `{"error", "error_type"}` under
status 200. A special token (an end mark) is generated but shows nothing. An answer in one piece counts
its tokens in `details` if they were asked for; the same counts are in the headers always.
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
    ChoiceFinished,
    ChoiceSeen,
    Event,
    StreamDone,
    TokensReceived,
    Usage,
    UsageReported,
)


class _Token(msgspec.Struct, gc=False):
    text: str | None = None
    special: bool = False


class _Event(msgspec.Struct, gc=False):
    token: _Token | None = None
    generated_text: str | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Event).decode


class TGIReader(JsonReader):
    """Reads one response of /generate or /generate_stream."""

    __slots__ = ()

    def payload(self, data: bytes, now: float) -> None:
        """Hot: one event."""
        try:
            event = _decode(data)
        except NOT_DECODABLE:
            self.tolerant(data, now)
            return
        token = event.token
        if token is None or event.generated_text is not None or event.error is not None:
            self.tolerant(data, now)
            return
        self.recognised = True
        if token.text and not token.special:
            self._tokens_received(0, OUTPUT, None, now)

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one event says."""
        yield from general_events(document, extras=extras)
        token = member(document, "token")
        if filled(token.get("text")) and token.get("special") is not True:
            yield TokensReceived(0, OUTPUT)
        elif token:
            yield ChoiceSeen(0)
        if isinstance(document.get("generated_text"), str):
            yield from _ended(document)
            yield StreamDone()

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What an answer in one piece says."""
        yield from general_events(document, extras=extras)
        if isinstance(document.get("generated_text"), str):
            yield from _ended(document)


def _ended(document: Document) -> Iterator[Event]:
    details = member(document, "details")
    prefill = details.get("prefill")
    asked_for = len(prefill) if isinstance(prefill, list) and prefill else None
    usage = Usage(
        input=asked_for if asked_for is not None else count_of(details.get("input_length")),
        output=count_of(details.get("generated_tokens")),
    )
    if usage != NO_USAGE:
        yield UsageReported(None, usage)
    yield ChoiceFinished(0, reason_of(details.get("finish_reason")))
