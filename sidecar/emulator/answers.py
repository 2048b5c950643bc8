"""What the emulated model says: one piece a token.

The model talks until the limit that the request sets (finish reason `length`), or, without one, for its
natural length and an end token (`stop`). Tags of parsers are tokens that give no text (`held`), as with
vLLM's: `<think>` and `</think>` around the reasoning, `<tool_call>` and the head of the JSON before a
call's name. vLLM 0.32 with its hermes parser: 7 deltas for 22 tokens.
"""

import random
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sidecar.emulator.asked import Asked

Kind = Literal["content", "reasoning", "tool_name", "tool_arguments", "held", "end"]


class Piece(NamedTuple):
    """What one token adds to the answer."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The pieces of one sequence, one a token, and why it ends."""

    pieces: tuple[Piece, ...]
    finish_reason: str

    def text(self, kind: Kind) -> str:
        """All pieces of one kind, put together."""
        return "".join(piece.text for piece in self.pieces if piece.kind == kind)

    @property
    def first_text(self) -> int | None:
        """Index of the first token that a client can see."""
        return next((index for index, piece in enumerate(self.pieces) if piece.text), None)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens between the thinking tags."""
        return sum(piece.kind == "reasoning" for piece in self.pieces)


# fmt: off
WORDS = (
    "bridge", "cold", "day", "early", "field", "garden", "harbor", "island", "journey", "kind",
    "lantern", "market", "narrow", "ocean", "paints", "quiet", "river", "summer", "the", "under",
    "valley", "winter", "young", "bright", "crosses", "distant", "engine", "first",
)
# fmt: on
HELD = Piece("held", "")
END = Piece("end", "")
CALL_HEAD = (HELD,) * 12
CALL_TAIL = (HELD, HELD)
ARGUMENTS = ('{"', "city", '":', ' "', "Dakar", '"}')


def answer(asked: Asked, natural: int, draws: random.Random) -> Answer:
    """The answer to one sequence of a request; `natural` is the length without a limit, in tokens."""
    if asked.tool is not None:
        ending = "stop" if asked.tool_is_named else "tool_calls"
        return _cut(_call(asked.tool), asked.max_tokens, ending)
    length = asked.limit or natural
    spoken = _think(length, asked.shows_reasoning, draws) if asked.thinks else _talk(length, draws)
    if asked.limit is None:
        return _cut((*spoken, END), asked.max_tokens, "stop")
    return Answer(spoken, "length")


def _talk(length: int, draws: random.Random) -> tuple[Piece, ...]:
    return tuple(Piece("content", f" {draws.choice(WORDS)}") for _ in range(length))


def _think(length: int, shown: bool, draws: random.Random) -> tuple[Piece, ...]:
    """Half of it thinking."""
    kind: Kind = "reasoning"
    thought = tuple(Piece(kind, f" {draws.choice(WORDS)}" if shown else "") for _ in range(length // 2))
    whole = (HELD, *thought, HELD, *_talk(length, draws))
    return whole[:length]


def _call(name: str) -> tuple[Piece, ...]:
    arguments = (Piece("tool_arguments", text) for text in ARGUMENTS)
    return (*CALL_HEAD, Piece("tool_name", name), *arguments, *CALL_TAIL, END)


def _cut(pieces: tuple[Piece, ...], limit: int, finish_reason: str) -> Answer:
    if limit < len(pieces):
        return Answer(pieces[:limit], "length")
    return Answer(pieces, finish_reason)
