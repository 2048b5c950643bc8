"""When each token falls. Pure: no clock, no I/O; a discrete-event simulation driven from outside.

The caller submits sequences, then calls `advance(now)` whenever `next_at()` is due, and gets the tokens
that fell, each with its planned instant. Late calls change nothing: whatever follows from an event (the
next token, the slot that the next in the queue takes) is planned from the event's own instant, so there
is no drift.

The time model of today: a sequence waits, first come first served, for one of `slots`; its first token
falls `prefill_time + prefill_per_token * prompt_tokens` after it started; each further token falls
`token_time` after the one before. A scheduler with steps and batches keeps this interface (`submit`,
`leave`, `next_at`, `advance`) and replaces what happens at an event.
"""

import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TimeModel:
    """How fast the engine is. Times in seconds.

    `jitter` is a ratio: each gap between tokens is drawn evenly from `token_time * (1 ± jitter)`.
    """

    prefill_time: float = 0.05
    prefill_per_token: float = 0.0
    token_time: float = 0.02
    jitter: float = 0.0
    slots: int = 8

    def prefill(self, prompt_tokens: int) -> float:
        """Seconds from the start of a sequence to its first token."""
        return self.prefill_time + self.prefill_per_token * prompt_tokens


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence to generate; at least one output token."""

    prompt_tokens: int
    output_tokens: int


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence and what became of it so far. Instants are those of the plan, `None` until they came."""

    number: int
    work: Work
    arrived: float
    random: random.Random
    started: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    left: bool = False

    @property
    def finished(self) -> bool:
        """All its tokens fell."""
        return self.tokens >= self.work.output_tokens


@dataclass(frozen=True, slots=True)
class Token:
    """One token fell: the `index`-th of its sequence (from 0), at the planned instant `at`.

    `gap` is the time since the sequence's token before, `None` for the first; `ends` marks the last.
    """

    sequence: Sequence
    index: int
    at: float
    gap: float | None
    ends: bool


def draws(seed: int, what: str, number: int) -> random.Random:
    """A generator for one thing: what it draws does not depend on how others are interleaved."""
    return random.Random(f"{seed}/{what}/{number}")  # noqa: S311 (no secret, a repeatable run)


@dataclass(slots=True)
class Schedule:
    """The engine's queue and slots."""

    model: TimeModel
    seed: int = 0
    running: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    waiting: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    _events: list[tuple[float, int, Callable[[Sequence, float], Token | None], Sequence]] = field(
        default_factory=list
    )
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def submit(self, work: Work, now: float) -> Sequence:
        """A sequence arrives. `now` must not lie before an earlier call's."""
        number = next(self._numbers)
        sequence = Sequence(number, work, now, draws(self.seed, "gaps", number))
        self._plan(now, self._arrive, sequence)
        return sequence

    def leave(self, sequence: Sequence, now: float) -> None:
        """Its client went away: the slot is free from `now` on. Harmless when it had finished."""
        self._plan(now, self._depart, sequence)

    def next_at(self) -> float | None:
        """When `advance` has something to do next; `None`: not before a `submit`."""
        while self._events and self._events[0][3].left:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def advance(self, now: float) -> list[Token]:
        """All tokens that fell up to `now` and were not returned yet, in the order of their instants."""
        fell = []
        while (at := self.next_at()) is not None and at <= now:
            _, _, happen, sequence = heapq.heappop(self._events)
            token = happen(sequence, at)
            if token is not None:
                fell.append(token)
        return fell

    def tokens_held(self) -> int:
        """Tokens in the KV cache: the prompts and outputs of the running sequences."""
        return sum(sequence.work.prompt_tokens + sequence.tokens for sequence in self.running)

    def _plan(self, at: float, happen: Callable[[Sequence, float], Token | None], sequence: Sequence) -> None:
        heapq.heappush(self._events, (at, next(self._order), happen, sequence))

    def _arrive(self, sequence: Sequence, at: float) -> None:
        self.waiting[sequence] = None
        self._fill_slots(at)

    def _depart(self, sequence: Sequence, at: float) -> None:
        sequence.left = True
        self.waiting.pop(sequence, None)
        self.running.pop(sequence, None)
        self._fill_slots(at)

    def _fill_slots(self, at: float) -> None:
        while self.waiting and len(self.running) < self.model.slots:
            sequence, _ = self.waiting.popitem(last=False)
            self.running[sequence] = None
            sequence.started = at
            self._plan(at + self.model.prefill(sequence.work.prompt_tokens), self._fall, sequence)

    def _fall(self, sequence: Sequence, at: float) -> Token:
        gap = None if sequence.last is None else at - sequence.last
        index = sequence.tokens
        sequence.tokens += 1
        sequence.last = at
        if sequence.first is None:
            sequence.first = at
        if sequence.finished:
            self.running.pop(sequence)
            self._fill_slots(at)
        else:
            self._plan(at + self._gap(sequence), self._fall, sequence)
        return Token(sequence, index, at, gap, ends=sequence.finished)

    def _gap(self, sequence: Sequence) -> float:
        if not self.model.jitter:
            return self.model.token_time
        return self.model.token_time * (1 + self.model.jitter * sequence.random.uniform(-1, 1))
