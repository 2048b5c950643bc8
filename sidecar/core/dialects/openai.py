"""What OpenAI's chat and text completions have in common, and with them ten engines' answers.

A payload is a JSON object with `choices`, each with an `index`, perhaps a `finish_reason`; beside them
perhaps `usage`, `error`, and members that only one engine has. Sources: OpenAI's API reference
("chat.completion.chunk"), reference/engines.md 1.5 and the wires of real-engines.md 2.2 and 3.2.

Two ways lead to the timeline. The fast path (`payload` of each dialect) decodes a chunk once into a
struct of just the members that matter and reports the usual case, one choice with new material, by a
direct call. Everything else, and every chunk whose types are not the usual ones, goes the tolerant way:
plain objects, `isinstance`, events. Neither raises on any bytes.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec

from sidecar.core.dialects.json_reader import (
    NO_USAGE,
    Document,
    JsonReader,
    count_of,
    general_events,
    index_of,
)
from sidecar.core.events import (
    ChoiceFinished,
    ChoiceSeen,
    ErrorReported,
    Event,
    TokensReceived,
    Usage,
    UsageReported,
)
from sidecar.core.timeline import Timeline

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


class OpenAIReader(JsonReader):
    """The tolerant way, shared by both dialects; `payload` is theirs."""

    __slots__ = ("_fresh",)

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self._fresh = True  # up to the first chunk with choices, the tolerant way: it names the model

    def _counted(self, index: int, member: UsageMember, now: float) -> int | None:
        """Usage beside a choice's chunk: that choice's tokens so far. An engine that has not counted
        yet says 0, which no token-bearing chunk can have."""
        usage = member.usage()
        if usage == NO_USAGE:
            return None
        self._timeline.usage_reported(index, usage, now)
        return usage.output or None

    @staticmethod
    def material(choice: Document) -> int:
        """What generated material a choice of a stream's chunk carries."""
        raise NotImplementedError

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one chunk of a stream says."""
        self._fresh = self._fresh and not document.get("choices")
        yield from _general_events(document, extras=extras)
        choices = _choices(document)
        usage = _usage_of(document.get("usage"))
        beside = index_of(choices[0]) if len(choices) == 1 else None
        if usage is not None and beside is not None:
            yield UsageReported(beside, usage)
        for choice in choices:
            index = index_of(choice)
            material = self.material(choice)
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

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What a response that is not streamed says."""
        yield from _general_events(document, extras=extras)
        choices = _choices(document)
        for choice in choices:
            reason = choice.get("finish_reason")
            if isinstance(reason, str) and reason:
                yield ChoiceFinished(index_of(choice), reason)
            else:
                yield ChoiceSeen(index_of(choice))
        usage = _usage_of(document.get("usage"))
        if usage is not None:
            # llama.cpp (known by its `timings`) counts one choice of several here: captures/llama.cpp,
            # chat_nostream_n2 says 16 tokens for two answers of 16. Then the total is not known.
            one_of_several = len(choices) > 1 and "timings" in document
            yield UsageReported(
                None, Usage(usage.input, None, usage.cached_input) if one_of_several else usage
            )


def _general_events(document: Document, *, extras: bool) -> Iterator[Event]:
    yield from general_events(document, extras=extras)
    if document.get("object") == "error" and not document.get("choices") and not document.get("error"):
        yield ErrorReported()


def _choices(document: Document) -> list[Document]:
    choices = document.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _usage_of(member: object) -> Usage | None:
    if not isinstance(member, dict):
        return None
    reasoning = _detail(member, "completion_tokens_details", "reasoning_tokens")
    usage = Usage(
        input=count_of(member.get("prompt_tokens")),
        output=count_of(member.get("completion_tokens")),
        cached_input=_detail(member, "prompt_tokens_details", "cached_tokens"),
        reasoning=count_of(member.get("reasoning_tokens")) if reasoning is None else reasoning,
    )
    return None if usage == NO_USAGE else usage


def _detail(member: Document, details: str, name: str) -> int | None:
    inner = member.get(details)
    return count_of(inner.get(name)) if isinstance(inner, dict) else None
