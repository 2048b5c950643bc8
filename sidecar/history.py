"""The latest requests, bounded: what `/api/requests` shows.

Three views: the newest of all, the slowest of the last hour, the newest of those that failed. They hold
records (counts and times), never anything that a request or a response said.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappush, heappushpop, nlargest
from typing import NamedTuple

from sidecar.core.join import PhaseBreakdown
from sidecar.core.record import RequestRecord

HOUR = 3600.0
STEP = 300.0  # the hour passes in such steps, so that the slowest of what is left are still known

# Not failures: what ended well, and what the client itself got wrong (4xx but 429).
NOT_FAILED = frozenset({"completed", "client_error"})


class Kept:
    """A request of the history; its phases are filled in when they are known."""

    __slots__ = ("phases", "record")

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self.phases: PhaseBreakdown | None = None

    def as_json(self) -> dict[str, object]:
        """The row of `/api/requests`."""
        phases = self.phases
        joined = None if phases is None else {"status": phases.status, "source": phases.source}
        return {
            **self.record.as_json(),
            "join": joined,
            "phases": None if phases is None else phases.parts(),
        }


class _Slow(NamedTuple):
    """Orders requests by how long was waited; the serial number keeps them from being compared."""

    seconds: float
    serial: int
    kept: Kept


class History:
    """The newest, the slowest and the failed requests."""

    def __init__(self, recent: int = 200, slowest: int = 50, failed: int = 100) -> None:
        self._recent: deque[Kept] = deque(maxlen=recent)
        self._failed: deque[Kept] = deque(maxlen=failed)
        self._slowest = slowest
        self._steps: dict[int, list[_Slow]] = {}  # by step of the clock, each a heap of its slowest
        self._serial = 0
        self._newest = 0.0

    def add(self, record: RequestRecord) -> Kept:
        """A request has ended."""
        kept = Kept(record)
        self._recent.append(kept)
        if record.outcome not in NOT_FAILED:
            self._failed.append(kept)
        self._newest = max(self._newest, record.ended)
        seconds = waited(record)
        if seconds is not None and self._slowest:
            self._serial += 1
            self._add_slow(_Slow(seconds, self._serial, kept))
        return kept

    def _add_slow(self, slow: _Slow) -> None:
        step = int(slow.kept.record.ended // STEP)
        heap = self._steps.get(step)
        if heap is None:
            self._forget(self._newest)
            heap = self._steps[step] = []
        if len(heap) < self._slowest:
            heappush(heap, slow)
        else:
            heappushpop(heap, slow)

    def _forget(self, now: float) -> None:
        first = (now - HOUR) // STEP
        for step in [step for step in self._steps if step < first]:
            del self._steps[step]

    def rows(self, now: float | None = None) -> Iterator[tuple[str, Kept]]:
        """(view, request), newest or slowest first; `now` ends the hour, else the newest record does."""
        self._forget(self._newest if now is None else now)
        slow = nlargest(self._slowest, (slow for heap in self._steps.values() for slow in heap))
        views = {
            "recent": list(reversed(self._recent)),
            "slowest": [each.kept for each in slow],
            "failed": list(reversed(self._failed)),
        }
        for view, requests in views.items():
            for kept in requests:
                yield view, kept

    def as_json(self, now: float | None = None) -> dict[str, list[dict[str, object]]]:
        """The three views, with the rows of `Kept.as_json`."""
        views: dict[str, list[dict[str, object]]] = {"recent": [], "slowest": [], "failed": []}
        for view, kept in self.rows(now):
            views[view].append(kept.as_json())
        return views


def waited(record: RequestRecord) -> float | None:
    """What a request is slow by: TTFT, or the wait for a token that never came; else its duration."""
    for seconds in (record.ttft, record.waited, record.e2e):
        if seconds is not None:
            return seconds
    return None
