"""One choice of a response, as far as it has come, and what its record needs of it."""

from collections.abc import Sequence

from sidecar.core.counting import first_tokens, hidden_tokens
from sidecar.core.events import Usage
from sidecar.core.record import ChoiceRecord


class Choice:
    """What the timeline knows of one choice. Times are seconds of the one monotonic clock."""

    __slots__ = (
        "chunks", "finished", "first", "first_reasoning", "first_tokens", "index", "last", "material",
        "tokens", "usage", "wait_first", "wait_last",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.chunks = 0  # token-bearing ones
        self.first = self.last = 0.0  # their times, once there is one
        self.material = 0  # of the latest
        self.tokens: int | None = None  # so far, if the latest said so
        self.first_tokens: int | None = None  # so far, if the first said so, and of these
        self.first_reasoning: int | None = None  # reasoning
        self.usage: Usage | None = None
        self.finished: float | None = None
        self.wait_first = self.wait_last = 0.0  # write wait of the request up to `first`, up to `last`


def wait_inside(choices: Sequence[Choice]) -> float:
    """Write wait between the first token-bearing chunk and the last, of whichever choice."""
    if not choices:
        return 0.0
    return max(choice.wait_last for choice in choices) - min(choice.wait_first for choice in choices)


def first_chunk_tokens(choice: Choice | None, hidden: int) -> int | None:
    """n1: visible tokens of the first token-bearing chunk, where `hidden` came before it."""
    return None if choice is None else first_tokens(choice.first_tokens, choice.first_reasoning, hidden)


def choice_records(choices: Sequence[Choice], reasoning_seen: bool) -> tuple[ChoiceRecord, ...]:
    """What TPOT needs of each choice that generated something."""
    return tuple(_choice_record(choice, reasoning_seen) for choice in choices)


def _choice_record(choice: Choice, reasoning_seen: bool) -> ChoiceRecord:
    hidden = hidden_tokens(choice.usage, reasoning_seen)
    return ChoiceRecord(
        index=choice.index,
        f1=choice.first,
        f_last=choice.last,
        write_wait=choice.wait_last - choice.wait_first,
        output_tokens=None if choice.usage is None else choice.usage.output,
        hidden_tokens=hidden,
        first_chunk_tokens=first_chunk_tokens(choice, hidden),
    )
