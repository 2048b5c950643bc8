"""What an engine counted between two readings of its page.

Counters only grow in one run of an engine. When one is lower than before, or the page names another
start, the engine began anew and what it counted in between can't be known: there is no window then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sidecar.core.signals import EngineSignals, Key, Reading


@dataclass(frozen=True, slots=True)
class Increase:
    """By how much a distribution grew: so many values, so many seconds in all."""

    count: float
    sum: float


class EngineWindow(NamedTuple):
    """From `start` to `end`, seconds of the sidecar's clock. What either reading lacks is left out."""

    start: float
    end: float
    counters: Mapping[Key, float]
    phases: Mapping[Key, Increase]


def between(earlier: Reading, later: Reading) -> EngineWindow | None:
    """What was counted from `earlier` to `later`; None when the engine began anew meanwhile."""
    if began_anew(earlier.signals, later.signals):
        return None
    before, after = earlier.signals, later.signals
    counters = {
        key: value - before.counters[key] for key, value in after.counters.items() if key in before.counters
    }
    phases = {}
    for key, now in after.distributions.items():
        then = before.distributions.get(key)
        # An engine that takes its times from the wall clock can add a negative one; then there is no mean.
        if then is not None and now.sum >= then.sum:
            phases[key] = Increase(now.count - then.count, now.sum - then.sum)
    return EngineWindow(earlier.at, later.at, counters, phases)


def began_anew(before: EngineSignals, after: EngineSignals) -> bool:
    """Is `after` of another run of the engine than `before`?"""
    if before.engine != after.engine:
        return True
    if before.started is not None and after.started is not None and before.started != after.started:
        return True
    return any(after.counters.get(key, value) < value for key, value in before.counters.items()) or any(
        after.distributions[key].count < then.count
        for key, then in before.distributions.items()
        if key in after.distributions
    )
