"""One sequence in the engine: what it has to do, what became of it, where its time went.

`arrived` is when the front end has the request, `queued` when the scheduler does, `started` the beginning
of the step that admits it first, `first` and `last` the ends of the steps that give those tokens.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from sidecar.emulator.kv_cache import BlockHash


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence to generate: at least one prompt token and one output token."""

    prompt_tokens: int
    output_tokens: int
    hashes: tuple[BlockHash, ...] = ()
    """Of the prompt's full blocks."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence and what became of it so far. Instants are planned ones, `None` until they came."""

    number: int
    work: Work
    arrived: float
    queued: float
    started: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    """Output tokens so far."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had when it was admitted first."""
    preemptions: int = 0
    longest_gap: float = 0.0
    left: bool = False
    computed: int = 0
    """Tokens, of prompt and output, that are in the KV cache."""
    prefill_until: int = 0
    """Tokens that it had when it was admitted: what is computed below this is prefill."""
    blocks: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Prompt and output tokens so far."""
        return self.work.prompt_tokens + self.tokens

    @property
    def finished(self) -> bool:
        """All its tokens were given."""
        return self.tokens >= self.work.output_tokens

    @property
    def phases(self) -> "Phases | None":
        """What its time went into; `None` until it has finished."""
        if self.started is None or self.first is None or self.last is None or not self.finished:
            return None
        queue, prefill, decode = self.started - self.queued, self.first - self.started, self.last - self.first
        return Phases(self.first, self.last, queue, prefill, decode)


class Phases(NamedTuple):
    """Seconds: queued to admitted, to the first token, to the last; and the instants of those two.

    The wait after a preemption is part of prefill or decode, as with vLLM.
    """

    first: float
    last: float
    queue: float
    prefill: float
    decode: float


class Token(NamedTuple):
    """A sequence was given its `number`-th token (from 0); `gap`: seconds since the one before, if any."""

    sequence: Sequence
    number: int
    gap: float | None
    ends: bool
