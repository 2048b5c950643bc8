"""The latest readings of one address: what a window may span, and whether one engine answers there.

Behind a name or a load balancer several engines may answer in turn. Each page is right and no two of them
belong together, so an address like that has no engine view. It shows by a page that goes on where an
earlier one ended, and not where the last one did: by its start, which is certain, or, where the page
tells no start, by its counters, which must do so twice in a short time.
"""

from collections import deque

from sidecar.core.engine_window import EngineWindow, began_anew, between
from sidecar.core.signals import EngineSignals, Reading

KEPT_READINGS = 64
LOOK_BACK = 10  # readings


class EngineHistory:
    """Readings of one address in the order in which they were made."""

    def __init__(self) -> None:
        self.readings: deque[Reading] = deque(maxlen=KEPT_READINGS)  # of this run of the engine only
        self.resets = 0
        self.several = False
        self._earlier: deque[EngineSignals] = deque(maxlen=LOOK_BACK)  # of any run
        self._returns: deque[bool] = deque(maxlen=LOOK_BACK)

    def add(self, reading: Reading) -> None:
        """A page was read. Sets `several` for good when more than one engine answers here."""
        signals, last = reading.signals, self.latest.signals if self.latest else None
        anew = last is not None and began_anew(last, signals)
        if anew:
            self.resets += 1
            self.readings.clear()
        if last is not None and _other_start(last, signals):
            self.several = self.several or any(then.started == signals.started for then in self._earlier)
        else:
            self._returns.append(anew and any(_goes_on(then, signals) for then in self._earlier))
            self.several = self.several or sum(self._returns) > 1
        self._earlier.append(signals)
        self.readings.append(reading)
        if self.several:
            self.readings.clear()

    @property
    def latest(self) -> Reading | None:
        """The last one."""
        return self.readings[-1] if self.readings else None

    @property
    def window(self) -> EngineWindow | None:
        """What was counted between the last two; None when there are no two of one run."""
        return between(self.readings[-2], self.readings[-1]) if len(self.readings) > 1 else None


def _goes_on(earlier: EngineSignals, signals: EngineSignals) -> bool:
    """May `signals` be a later page of the same run, and had that run counted anything?"""
    counted = any(earlier.counters.values()) or any(each.count for each in earlier.distributions.values())
    return counted and not began_anew(earlier, signals)


def _other_start(before: EngineSignals, after: EngineSignals) -> bool:
    return None not in (before.started, after.started) and before.started != after.started
