"""What can be seen on the wire of one response: the vocabulary between dialects and timeline.

A dialect turns a payload into these events, the timeline gives them a time (`Timeline.apply`).
Names say what happened. Nothing here knows an API, a clock or a byte.

The commonest event by far, one choice receiving generated material, does not have to be an object:
a dialect's fast path calls the method that `TokensReceived` would be applied with
(`Timeline.tokens_received`), with the same arguments. There is no second vocabulary.

*Material* is what kind of generated content a chunk carries, as bits, since one chunk may carry the last
of the reasoning and the first of the output. Structural chunks (a role, an empty delta, usage, progress)
carry none and are never token-bearing (DESIGN section 2).
"""

from collections.abc import Callable
from typing import Final

import msgspec

REASONING: Final = 1
OUTPUT: Final = 2  # content, refusal, audio
TOOL_CALL: Final = 4  # a tool's name or arguments; output too

# What a stream was doing after a chunk of this material: the label `during` of a stall.
DURING: Final = ("", "reasoning", "output", "output", "tool_call", "tool_call", "tool_call", "tool_call")

GapSink = Callable[[float, int | None], None]
"""Takes a gap (seconds) and the tokens of the chunk that ended it, None when the chunk carried no count."""


class Event(msgspec.Struct, frozen=True):
    """Anything that a payload said."""


class Usage(Event, frozen=True):
    """Token counts as the engine gave them; None where it gave none.

    `output` includes reasoning tokens, `input` includes cached ones, as in OpenAI's `usage`.
    """

    input: int | None = None
    output: int | None = None
    cached_input: int | None = None
    reasoning: int | None = None


class ChoiceSeen(Event, frozen=True):
    """A structural chunk of a choice: nothing generated in it."""

    choice: int


class TokensReceived(Event, frozen=True):
    """A choice received generated material.

    `tokens_so_far`: output tokens of this choice up to and with this chunk, when the chunk said so.
    """

    choice: int
    material: int
    tokens_so_far: int | None = None


class UsageReported(Event, frozen=True):
    """Counts so far (beside a choice's chunk) or in total (`choice` None)."""

    choice: int | None
    usage: Usage


class ChoiceFinished(Event, frozen=True):
    """A choice got its finish reason."""

    choice: int
    reason: str


class StreamDone(Event, frozen=True):
    """The dialect's own end marker, `[DONE]`."""


class ErrorReported(Event, frozen=True):
    """The engine said, inside a response that began well, that it failed."""


class ModelNamed(Event, frozen=True):
    """The response says which model answered."""

    model: str


class EngineExtra(Event, frozen=True):
    """Something only this engine says (`timings`, `metrics`): kept raw for the engine view."""

    name: str
    value: object
