"""What OpenAI's chat and text completions have in common, and with them ten engines' answers.

A payload is a JSON object with `choices`, each with an `index`, perhaps a `finish_reason`; beside them
perhaps `usage`, `error`, and members that only one engine has. Sources: OpenAI's API reference
("chat.completion.chunk"), reference/engines.md 1.5 and the wires of real-engines.md 2.2 and 3.2.

Two ways lead to the timeline. The fast path (`payload` of each dialect) decodes a chunk once into a
struct of just the members that matter and reports the usual case, one choice with new material, by a
direct call. Everything else, and every chunk whose types are not the usual ones, goes the tolerant way:
plain objects, `isinstance`, events. Neither raises on any bytes.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Protocol

import msgspec

from sidecar.core.events import (
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
from sidecar.core.request import clean_text
from sidecar.core.timeline import Timeline

DONE = b"[DONE]"
MAX_EXTRA_PAYLOAD = 16384  # engine extras of a longer payload are not kept

# Members that one engine adds: llama.cpp, vLLM, Dynamo, Groq, SGLang (engines.md 1.4). Raw, for the
# engine view; token counts are never taken from them.
ENGINE_EXTRAS = ("timings", "metrics", "nvext", "x_groq", "meta_info")

NO_USAGE = Usage()
NOT_DECODABLE = (ValueError, RecursionError)  # msgspec's errors are ValueErrors


class PayloadReader(Protocol):
    """Reads the payloads of one response into a timeline. No method raises on any bytes."""

    faults: int  # payloads that were not understood
    recognised: bool  # at least one payload was of this dialect

    def __init__(self, timeline: Timeline) -> None: ...

    def payload(self, data: bytes, now: float) -> None:
        """One payload of a stream."""

    def named_payload(self, event_type: bytes, data: bytes, now: float) -> None:
        """One payload of a stream whose event has a type."""

    def body(self, data: bytes, now: float) -> None:
        """The whole body of a response that is not streamed."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class CompletionTokensDetails(msgspec.Struct, gc=False):
    """Only the member that matters."""

    reasoning_tokens: _Count | None = None


class PromptTokensDetails(msgspec.Struct, gc=False):
    """Only the member that matters."""

    cached_tokens: _Count | None = None


class UsageMember(msgspec.Struct, gc=False):
    """`usage`; SGLang has `reasoning_tokens` at its top level."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    reasoning_tokens: _Count | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None

    def usage(self) -> Usage:
        """In our words."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        reasoning = self.reasoning_tokens
        if completion is not None and completion.reasoning_tokens is not None:
            reasoning = completion.reasoning_tokens
        cached = None if prompt is None else prompt.cached_tokens
        return Usage(self.prompt_tokens, self.completion_tokens, cached, reasoning)


class OpenAIReader:
    """The tolerant way, shared by both dialects; `payload` is theirs."""

    __slots__ = ("_fresh", "_timeline", "_tokens_received", "faults", "recognised")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tokens_received = timeline.tokens_received
        self._fresh = True  # up to the first chunk with choices, the tolerant way: it names the model
        self.faults = 0
        self.recognised = False

    def _counted(self, index: int, member: UsageMember, now: float) -> int | None:
        """Usage beside a choice's chunk: that choice's tokens so far. An engine that has not counted
        yet says 0, which no token-bearing chunk can have."""
        usage = member.usage()
        if usage == NO_USAGE:
            return None
        self._timeline.usage_reported(index, usage, now)
        return usage.output or None

    @staticmethod
    def material(choice: dict[str, object]) -> int:
        """What generated material a choice of a stream's chunk carries."""
        raise NotImplementedError

    def named_payload(self, event_type: bytes, data: bytes, now: float) -> None:
        """An event of a type: `error` is an error whatever its data are."""
        if event_type == b"error":
            self.recognised = True
            self._timeline.apply(ErrorReported(), now)
        else:
            self.tolerant(data, now)

    def tolerant(self, data: bytes, now: float) -> None:
        """One payload of a stream, whatever it is."""
        if data.strip() == DONE:
            self.recognised = True
            self._timeline.apply(StreamDone(), now)
            return
        document = self._decoded(data)
        if isinstance(document, dict):
            self.recognised = True
            self._fresh = self._fresh and not document.get("choices")
            extras = len(data) <= MAX_EXTRA_PAYLOAD
            for event in self.chunk_events(document, extras=extras):
                self._timeline.apply(event, now)

    def body(self, data: bytes, now: float) -> None:
        """The whole body: counts and finish reasons; it has no times of tokens."""
        document = self._decoded(data)
        if isinstance(document, dict):
            self.recognised = True
            for event in body_events(document, extras=len(data) <= MAX_EXTRA_PAYLOAD):
                self._timeline.apply(event, now)

    def _decoded(self, data: bytes) -> object:
        """Plain objects; None when the payload is blank or, which is counted, not JSON.

        `json` is asked last: it reads lone surrogates and, after replacement, invalid UTF-8, which
        msgspec refuses.
        """
        if not data.strip():
            return None
        try:
            return msgspec.json.decode(data)
        except NOT_DECODABLE:
            pass
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except NOT_DECODABLE:
            self.faults += 1
            return None

    @classmethod
    def chunk_events(cls, document: dict[str, object], *, extras: bool = True) -> Iterator[Event]:
        """What one chunk of a stream says, in the order in which the timeline wants it."""
        yield from _general_events(document, extras=extras)
        choices = _choices(document)
        usage = _usage_of(document.get("usage"))
        beside = _index(choices[0]) if len(choices) == 1 else None
        if usage is not None and beside is not None:
            yield UsageReported(beside, usage)
        for choice in choices:
            index = _index(choice)
            material = cls.material(choice)
            if material:
                tokens = usage.output or None if usage is not None and beside is not None else None
                yield TokensReceived(index, material, tokens)
            else:
                yield ChoiceSeen(index)
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                yield ChoiceFinished(index, reason)
        if usage is not None and beside is None:
            yield UsageReported(None, usage)


def body_events(document: dict[str, object], *, extras: bool = True) -> Iterator[Event]:
    """What a response that is not streamed says."""
    yield from _general_events(document, extras=extras)
    choices = _choices(document)
    for choice in choices:
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            yield ChoiceFinished(_index(choice), reason)
        else:
            yield ChoiceSeen(_index(choice))
    usage = _usage_of(document.get("usage"))
    if usage is not None:
        # llama.cpp (known by its `timings`) counts one choice of several here: captures/llama.cpp,
        # chat_nostream_n2 says 16 tokens for two answers of 16. Then the total is not known.
        one_of_several = len(choices) > 1 and "timings" in document
        yield UsageReported(None, Usage(usage.input, None, usage.cached_input) if one_of_several else usage)


def _general_events(document: dict[str, object], *, extras: bool) -> Iterator[Event]:
    model = document.get("model")
    if isinstance(model, str) and model:
        yield ModelNamed(clean_text(model))
    if document.get("error") or (document.get("object") == "error" and not document.get("choices")):
        yield ErrorReported()
    if extras:
        for name in ENGINE_EXTRAS:
            value = document.get(name)
            if value:
                yield EngineExtra(name, value)


def _choices(document: dict[str, object]) -> list[dict[str, object]]:
    choices = document.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _index(choice: dict[str, object]) -> int:
    index = choice.get("index")
    return index if type(index) is int else 0


def _usage_of(member: object) -> Usage | None:
    if not isinstance(member, dict):
        return None
    reasoning = _detail(member, "completion_tokens_details", "reasoning_tokens")
    usage = Usage(
        input=_count(member.get("prompt_tokens")),
        output=_count(member.get("completion_tokens")),
        cached_input=_detail(member, "prompt_tokens_details", "cached_tokens"),
        reasoning=_count(member.get("reasoning_tokens")) if reasoning is None else reasoning,
    )
    return None if usage == NO_USAGE else usage


def _detail(member: dict[str, object], details: str, name: str) -> int | None:
    inner = member.get(details)
    return _count(inner.get(name)) if isinstance(inner, dict) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
