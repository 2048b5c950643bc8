"""The shell around the schedule: one timer, set to the next planned instant; a queue for each request.

Deadlines are absolute, so a late wake-up delays one event and nothing after it. Times are the event
loop's (`time.monotonic`).
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sidecar.emulator.answers import Answer, answer
from sidecar.emulator.asked import Asked
from sidecar.emulator.exposition import Exposition
from sidecar.emulator.schedule import Schedule, Sequence, Token, Work, draws


@dataclass(eq=False, slots=True)
class Run:
    """One request in the engine: its sequences (prompts x n) with their answers, and the tokens that fell."""

    id: str
    sequences: tuple[Sequence, ...]
    answers: tuple[Answer, ...]
    _first_texts: dict[int, float] = field(default_factory=dict)
    _fell: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)

    async def tokens(self) -> AsyncIterator[int]:
        """The index of the choice to which each token belongs, when it falls, until all have fallen."""
        for _ in range(sum(len(said.pieces) for said in self.answers)):
            yield await self._fell.get()

    def fell(self, token: Token) -> None:
        """A token of one of the sequences fell."""
        choice = self.sequences.index(token.sequence)
        if self.answers[choice].pieces[token.index].text:
            self._first_texts.setdefault(choice, token.at - token.sequence.arrived)
        self._fell.put_nowait(choice)

    def truth(self) -> list[dict[str, Any]]:
        """What was planned and fell, a sequence each: seconds, `None` for what did not come.

        `ttft` is the first token, `first_text` the first that a client can see.
        """
        return [
            {"id": self.id, "choice": choice, "first_text": self._first_texts.get(choice)}
            | _truth(sequence, self.answers[choice])
            for choice, sequence in enumerate(self.sequences)
        ]


class Engine:
    """Runs a schedule in real time."""

    def __init__(self, schedule: Schedule, exposition: Exposition, natural_tokens: int) -> None:
        self.schedule, self.exposition = schedule, exposition
        self.truths: deque[dict[str, Any]] = deque(maxlen=10_000)
        self._natural_tokens, self._seed = natural_tokens, schedule.seed
        self._numbers = itertools.count()
        self._runs: dict[Sequence, Run] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, asked: Asked, request_id: str) -> Run:
        """A request arrives now."""
        now = self._loop.time()
        sequences, answers = [], []
        for prompt in (prompt for prompt in asked.prompts for _ in range(asked.n)):
            said = answer(asked, self._natural_tokens, draws(self._seed, "words", next(self._numbers)))
            sequences.append(self.schedule.submit(Work(prompt, len(said.pieces)), now))
            answers.append(said)
        run = Run(request_id, tuple(sequences), tuple(answers))
        self._runs.update(dict.fromkeys(sequences, run))
        self.turn()
        return run

    def leave(self, run: Run) -> None:
        """Its response has ended, or its client went away: what had not finished frees its slot now."""
        now = self._loop.time()
        for sequence in run.sequences:
            if not sequence.finished:
                self.schedule.leave(sequence, now)
        self.turn()
        for sequence in run.sequences:
            self._runs.pop(sequence, None)
        self.truths.extend(run.truth())

    def turn(self) -> None:
        """Hand out every token that has fallen by now, and sleep until the next."""
        for token in self.schedule.advance(self._loop.time()):
            self._deliver(token)
        if self._timer is not None:
            self._timer.cancel()
        at = self.schedule.next_at()
        self._timer = None if at is None else self._loop.call_at(at, self.turn)

    def _deliver(self, token: Token) -> None:
        sequence = token.sequence
        run = self._runs[sequence]
        self.exposition.token(token)
        run.fell(token)
        if token.ends:
            reason = run.answers[run.sequences.index(sequence)].finish_reason
            self.exposition.finished(sequence, reason)


def _truth(sequence: Sequence, said: Answer) -> dict[str, Any]:
    since = sequence.arrived
    stamps = {"queue": sequence.started, "ttft": sequence.first, "e2e": sequence.last}
    spans = {name: None if at is None else at - since for name, at in stamps.items()}
    prefill = None if sequence.first is None else sequence.first - (sequence.started or 0.0)
    decode = None if sequence.last is None else sequence.last - (sequence.first or 0.0)
    tokens = {"prompt_tokens": sequence.work.prompt_tokens, "output_tokens": sequence.tokens}
    reason = said.finish_reason if sequence.finished else "abort"
    return spans | {"prefill": prefill, "decode": decode, "finish_reason": reason} | tokens
