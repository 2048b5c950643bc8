"""What one reading of an engine's metrics page says, by canonical signal: the same words for every engine.

A signal that the page does not hold is missing here, never 0. `engines.reader` makes these values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """Which number: its signal, its `model` label, and what tells it from others of that signal."""

    signal: str
    model: str
    value: str = ""  # the reason of `requests_finished`, the kind of `spec_tokens`


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of seconds. `counts` are those of each bucket, `+Inf` last: one more than `bounds`."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    count: float
    sum: float


class EngineSignals(NamedTuple):
    """One page. `started` tells two runs of the engine apart and means nothing else: no clock of ours."""

    engine: str
    started: float | None
    gauges: Mapping[Key, float]
    counters: Mapping[Key, float]
    distributions: Mapping[Key, Distribution]

    def available(self) -> frozenset[str]:
        """The signals that the page has."""
        return frozenset(key.signal for part in self[2:] for key in part)


class Reading(NamedTuple):
    """A page, and when the engine made it: seconds of the sidecar's own clock."""

    at: float
    signals: EngineSignals
