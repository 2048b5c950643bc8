"""How long one step of the engine takes. Pure; all times in seconds.

    step = slow_decode  x (fixed + per_sequence x sequences + per_context_token x context tokens)
         + slow_prefill x per_prefill_token x prefill tokens

spread evenly by ± `jitter`, and stretched by what falls into it of the pauses. One step serves all its
sequences, so a long prefill delays every decode beside it, and a slow decode delays every prefill, as in
an engine with chunked prefill.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class StepLoad(NamedTuple):
    """The work of one step. Context tokens are those in the KV cache of its sequences when it ends."""

    prefill_tokens: int
    sequences: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Makes a part of a step `factor` times as long in steps that start from `since` to `until`."""

    factor: float
    since: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Pause:
    """The engine stands still for `seconds` from `at` on."""

    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The parameters of the formula above."""

    fixed: float = 0.010
    per_prefill_token: float = 0.0001
    per_sequence: float = 0.0002
    per_context_token: float = 0.0
    jitter: float = 0.0
    """A ratio: a step is drawn evenly from its formula's value x (1 ± jitter)."""
    slow_prefill: tuple[Slowdown, ...] = ()
    slow_decode: tuple[Slowdown, ...] = ()
    pauses: tuple[Pause, ...] = ()

    def end(self, start: float, load: StepLoad, draw: float = 0.0) -> float:
        """When a step that starts at `start` ends; both since the engine's start. `draw` is from -1 to 1."""
        batch = self.fixed + self.per_sequence * load.sequences + self.per_context_token * load.context_tokens
        prefill = self.per_prefill_token * load.prefill_tokens
        work = _factor(self.slow_decode, start) * batch + _factor(self.slow_prefill, start) * prefill
        return self._paused(start, start + work * (1 + self.jitter * draw))

    def _paused(self, start: float, end: float) -> float:
        for pause in sorted(self.pauses, key=lambda pause: pause.at):
            over = pause.at + pause.seconds
            if pause.at < end and over > start:
                end += over - max(start, pause.at)
        return end


def _factor(slowdowns: Iterable[Slowdown], at: float) -> float:
    return math.prod(slow.factor for slow in slowdowns if slow.since <= at < slow.until)
