"""The shell around the scheduler: one timer, set to the planned end of the running step.

When it fires, every token of the step is handed to its request, and each request writes once. Deadlines
are absolute, so a late wake-up delays one step's bytes and nothing after it. Times are `time.monotonic`'s,
not the event loop's, which uvloop has in milliseconds only.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from sidecar.core.tracecontext import TraceContext
from sidecar.emulator.answers import Answer, answer
from sidecar.emulator.asked import Asked
from sidecar.emulator.kv_cache import block_hashes
from sidecar.emulator.options import Options
from sidecar.emulator.scheduler import Scheduler, Step
from sidecar.emulator.sequence import Sequence, Token, Work


@dataclass(eq=False, slots=True)
class Run:
    """One request in the engine: its sequences (prompts x n) with their answers, a choice each.

    `deliver` is called after a step that gave tokens, with the choice of each token. `done` is set when
    all sequences have ended, or `limit` tokens were delivered: no token comes after that.
    """

    name: str
    """The bare request id."""
    response_id: str
    asked: Asked
    trace: TraceContext | None
    answers: tuple[Answer, ...]
    sequences: tuple[Sequence, ...]
    done: "asyncio.Future[None]"
    deliver: Callable[[list[int]], None]
    limit: int | None = None
    given: int = 0
    open: int = 0
    """Sequences that have not ended."""
    text_from: tuple[int | None, ...] = ()
    text_at: dict[int, float] = field(default_factory=dict)
    """Choice -> instant of its first visible token."""
    undelivered: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended. `finish_reason` is what the response says, `abort` when its client left."""

    run: Run
    choice: int
    finish_reason: str

    @property
    def sequence(self) -> Sequence:
        """The sequence of that choice."""
        return self.run.sequences[self.choice]


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who is told: of every step, and of every sequence that ended."""

    on_step: Callable[[Step], None]
    on_end: Callable[[Ended], None]


class Engine:
    """Runs a scheduler in real time. Build it inside a running event loop."""

    def __init__(self, options: Options, watchers: Watchers) -> None:
        self._loop = asyncio.get_running_loop()
        self.started = monotonic()
        self.scheduler = Scheduler(options.limits, options.costs, options.seed, self.started)
        self._options, self._watchers = options, watchers
        self._numbers = itertools.count()
        self._places: dict[Sequence, tuple[Run, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def answers(self, asked: Asked) -> tuple[Answer, ...]:
        """What the model will say, a choice each."""
        return tuple(self._answer(asked) for _ in range(len(asked.prompts) * asked.n))

    def submit(
        self,
        asked: Asked,
        answers: tuple[Answer, ...],
        name: str,
        response_id: str,
        trace: TraceContext | None,
        deliver: Callable[[list[int]], None],
        limit: int | None = None,
    ) -> Run:
        """A request arrives now; the arguments are those of a Run."""
        now = monotonic()
        prompts = [prompt for prompt in asked.prompts for _ in range(asked.n)]
        sequences = tuple(
            self._queue(prompt, said, now) for prompt, said in zip(prompts, answers, strict=True)
        )
        done = self._loop.create_future()
        run = Run(name, response_id, asked, trace, answers, sequences, done, deliver, limit)
        run.open = len(sequences)
        run.text_from = tuple(said.first_text for said in answers)
        if limit == 0:
            done.set_result(None)
        self._places.update((sequence, (run, choice)) for choice, sequence in enumerate(sequences))
        self.turn()
        return run

    def leave(self, run: Run, finish_reason: str = "abort") -> None:
        """Its response has ended, or its client went away: what had not finished is free now."""
        if not run.open:
            return
        self.turn()
        for choice, sequence in enumerate(run.sequences):
            if not sequence.finished:
                self.scheduler.leave(sequence)
                del self._places[sequence]
                self._watchers.on_end(Ended(run, choice, finish_reason))
        run.open = 0
        self.turn()

    def close(self) -> None:
        """No more turns."""
        if self._timer is not None:
            self._timer.cancel()

    def turn(self) -> None:
        """Hand out every token of the steps that have ended by now, and sleep until the next."""
        now = monotonic()
        touched: dict[Run, None] = {}
        while (step := self.scheduler.advance(now)) is not None:
            self._watchers.on_step(step)
            for token in step.tokens:
                run = self._give(token, step.ended)
                if run.undelivered:
                    touched[run] = None
        for run in touched:
            choices, run.undelivered = run.undelivered, []
            run.deliver(choices)
        self._sleep()

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self.scheduler.next_at()
        self._timer = (
            None if at is None else self._loop.call_later(_milliseconds(at - monotonic()), self.turn)
        )

    def _give(self, token: Token, at: float) -> Run:
        run, choice = self._places[token.sequence]
        if token.number == run.text_from[choice]:
            run.text_at[choice] = at
        if run.limit is None or run.given < run.limit:
            run.given += 1
            run.undelivered.append(choice)
        if token.ends:
            run.open -= 1
            del self._places[token.sequence]
            self._watchers.on_end(Ended(run, choice, run.answers[choice].finish_reason))
        if (not run.open or run.given == run.limit) and not run.done.done():
            run.done.set_result(None)
        return run

    def _answer(self, asked: Asked) -> Answer:
        words = random.Random(f"{self._options.seed}/words/{next(self._numbers)}")  # noqa: S311 (repeatable)
        return answer(asked, self._options.natural_tokens, words)

    def _queue(self, prompt: tuple[str | int, ...], said: Answer, now: float) -> Sequence:
        hashes = block_hashes(prompt, self._options.limits.block_size)
        frontend = self._options.frontend_time + self._options.frontend_per_token * len(prompt)
        return self.scheduler.submit(Work(len(prompt), len(said.pieces), hashes), now, frontend)


def _milliseconds(delay: float) -> float:
    """Rounded up, as both event loops can do no better, and one would wake up before the time."""
    return max(0, math.ceil(delay * 1000)) / 1000
