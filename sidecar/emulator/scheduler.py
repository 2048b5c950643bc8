"""An engine's scheduler, step by step. Pure: no clock, no I/O; a simulation driven from outside.

The caller submits sequences, calls `advance(now)` whenever `next_at()` is due, and gets the steps that
ended, each with the tokens that it gave. Late calls change nothing: a step begins at the planned end of
the one before, so there is no drift.

One step, as vLLM's (`vllm/v1/core/sched/scheduler.py`): a budget of tokens is spent first on the running
sequences in order of admission (a decode takes one token, a prompt that is not finished a chunk), then on
the waiting ones, first come first served, while there are sequence slots and KV blocks; what is in the
prefix cache costs nothing. When a running sequence finds no block, the one admitted last is preempted: it
loses its blocks, goes to the head of the queue and is recomputed later; nothing is admitted in that step.
A sequence whose tokens are all computed gets one more token when the step ends.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass, field

from sidecar.emulator.costs import StepCosts, StepLoad
from sidecar.emulator.kv_cache import KvCache
from sidecar.emulator.sequence import Sequence, Token, Work

NOTHING = StepLoad(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Limits:
    """What fits into a step and into the KV cache."""

    max_sequences: int = 64
    max_step_tokens: int = 2048
    kv_blocks: int = 4096
    block_size: int = 16
    prefix_caching: bool = True
    chunked_prefill: bool = True
    """Without it a prompt waits until a step has room for all of it."""

    @property
    def longest_sequence(self) -> int:
        """The most tokens that can ever be computed of one sequence."""
        kv_tokens = self.kv_blocks * self.block_size
        return kv_tokens if self.chunked_prefill else min(kv_tokens, self.max_step_tokens)


@dataclass(slots=True)
class Step:
    """One step. Scheduled when it begins; its tokens are there when it has ended."""

    started: float
    ended: float = 0.0
    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    """Sequences and how many of their tokens it computes."""
    tokens: list[Token] = field(default_factory=list)
    load: StepLoad = NOTHING
    queried: int = 0
    """Tokens looked up in the prefix cache, of sequences admitted for the first time."""
    hit: int = 0
    preempted: int = 0


class Scheduler:
    """The engine's queue, batch and KV cache. `origin` is the instant of the engine's start."""

    def __init__(self, limits: Limits, costs: StepCosts, seed: int = 0, origin: float = 0.0) -> None:
        self.limits, self.costs = limits, costs
        self.cache = KvCache(limits.kv_blocks, limits.block_size, limits.prefix_caching)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self._arriving: list[tuple[float, int, Sequence]] = []
        self._step: Step | None = None
        self._origin, self._idle_since, self._submitted = origin, origin, 0
        self._random = random.Random(f"{seed}/steps")  # noqa: S311 (no secret, a repeatable run)

    def submit(self, work: Work, now: float, frontend: float = 0.0) -> Sequence:
        """A sequence arrives; `frontend` seconds later it is queued. `now` never goes back.

        Raises ValueError when it can never fit.
        """
        # The last token is given, never computed.
        needed = work.prompt_tokens + work.output_tokens - 1
        room = self.limits.longest_sequence
        if needed > room or min(work.prompt_tokens, work.output_tokens) < 1:
            raise ValueError(
                f"{work.prompt_tokens} and {work.output_tokens} tokens do not fit into {room}, or are none"
            )
        sequence = Sequence(self._submitted, work, now, now + frontend)
        self._submitted += 1
        heapq.heappush(self._arriving, (sequence.queued, sequence.number, sequence))
        return sequence

    def leave(self, sequence: Sequence) -> None:
        """Its client went away: no more tokens, its blocks are free. Harmless when it had finished."""
        if sequence.left or sequence.finished:
            return
        sequence.left = True
        if sequence in self.running:
            self.running.remove(sequence)
            self.cache.release(sequence.blocks)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def queued(self) -> int:
        """Sequences that wait, those still on their way through the front end included."""
        return len(self.waiting) + sum(not sequence.left for _, _, sequence in self._arriving)

    def next_at(self) -> float | None:
        """When `advance` has something to do next; `None`: not before a `submit`."""
        if self._step is not None:
            return self._step.ended
        if self.running or self.waiting:
            return self._idle_since
        while self._arriving and self._arriving[0][2].left:
            heapq.heappop(self._arriving)
        return max(self._idle_since, self._arriving[0][0]) if self._arriving else None

    def advance(self, now: float) -> Step | None:
        """The next step that ended up to `now`, `None` when there is none; call it until then."""
        while True:
            at = self.next_at()
            if at is None or at > now:
                self._accept(now)
                return None
            if self._step is not None:
                return self._end(self._step)
            self._begin(at)

    def _accept(self, at: float) -> None:
        while self._arriving and self._arriving[0][0] <= at:
            sequence = heapq.heappop(self._arriving)[2]
            if not sequence.left:
                self.waiting.append(sequence)

    def _begin(self, at: float) -> None:
        self._accept(at)
        step = Step(at)
        budget = self._continue(step, self.limits.max_step_tokens)
        if not step.preempted:
            self._admit(step, budget)
        step.load = _load(step.scheduled)
        draw = self._random.uniform(-1, 1) if self.costs.jitter else 0.0
        step.ended = self._origin + self.costs.end(at - self._origin, step.load, draw)
        self._step = step

    def _continue(self, step: Step, budget: int) -> int:
        """Schedule the running sequences; returns what is left of the budget."""
        grow, reached = self.cache.grow, 0
        while budget and reached < len(self.running):
            sequence = self.running[reached]
            count = min(sequence.length - sequence.computed, budget)
            after = sequence.computed + count
            while not grow(sequence.blocks, sequence.computed, after, sequence.work.hashes):
                self._preempt(self.running.pop())
                step.preempted += 1
                if reached == len(self.running):
                    return budget
            step.scheduled.append((sequence, count))
            budget -= count
            reached += 1
        return budget

    def _preempt(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks)
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _admit(self, step: Step, budget: int) -> None:
        while budget and self.waiting and len(self.running) < self.limits.max_sequences:
            sequence = self.waiting[0]
            # The last token is always computed: its result is the next token.
            found = self.cache.find(sequence.work.hashes, sequence.length - 1)
            cached = len(found) * self.limits.block_size
            wanted = sequence.length - cached
            if wanted > budget and not self.limits.chunked_prefill:
                return
            count = min(wanted, budget)
            if not self.cache.fits(found, cached + count):
                return
            self.running.append(self.waiting.popleft())
            self.cache.share(found)
            sequence.blocks.extend(found)
            self.cache.grow(sequence.blocks, cached, cached + count, sequence.work.hashes)
            self._start(sequence, cached, step)
            step.scheduled.append((sequence, count))
            budget -= count

    def _start(self, sequence: Sequence, cached: int, step: Step) -> None:
        sequence.computed, sequence.prefill_until = cached, sequence.length
        if sequence.started is None:
            sequence.started, sequence.cached_tokens = step.started, cached
            step.queried += sequence.length
            step.hit += cached

    def _end(self, step: Step) -> Step:
        for sequence, count in step.scheduled:
            if sequence.left:
                continue
            sequence.computed += count
            if sequence.computed == sequence.length:
                step.tokens.append(self._give(sequence, step.ended))
        self._step, self._idle_since = None, step.ended
        return step

    def _give(self, sequence: Sequence, at: float) -> Token:
        gap = None if sequence.last is None else at - sequence.last
        if gap is None:
            sequence.first = at
        elif gap > sequence.longest_gap:
            sequence.longest_gap = gap
        sequence.last = at
        sequence.tokens += 1
        ends = sequence.finished
        if ends:
            self.running.remove(sequence)
            self.cache.release(sequence.blocks)
        return Token(sequence, sequence.tokens - 1, gap, ends)


def _load(scheduled: list[tuple[Sequence, int]]) -> StepLoad:
    prefill = sum(count for sequence, count in scheduled if sequence.computed < sequence.prefill_until)
    context = sum(sequence.computed + count for sequence, count in scheduled)
    return StepLoad(prefill, len(scheduled), context)
