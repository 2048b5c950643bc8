"""The join over windows: what the engine's page counted, beside the requests that passed here meanwhile.

With several engines in view nothing tells which of them a request went to, so there is no join then.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from sidecar import catalogue
from sidecar.core.engine_window import EngineWindow, between
from sidecar.core.record import RequestRecord
from sidecar.core.signals import Reading
from sidecar.core.window_join import (
    COHORTS,
    Requests,
    WindowBreakdown,
    engine_count,
    join_window,
    latest_window,
    models_of,
    sequences,
)
from sidecar.metrics import Metrics


class Windows:
    """Keeps the latest window of each model."""

    def __init__(self, metrics: Metrics) -> None:
        self.latest: list[WindowBreakdown] = []
        self.base_of: Callable[[str], str] = str  # the model as which the engine counts an adapter's requests
        self._metrics = metrics
        self._requests = Requests()
        self._counted_to = float("-inf")

    def ended(self, record: RequestRecord) -> None:
        """A request has ended."""
        named = None if record.model is None else self.base_of(record.model)
        self._requests.add(record, self._metrics.model_label(named))

    def update(self, readings: Mapping[str, Sequence[Reading]]) -> None:
        """Take what has been read since the last time; `readings` by engine instance."""
        run = next(iter(readings.values())) if len(readings) == 1 else ()
        for earlier, later in pairwise(run):
            if later.at > self._counted_to:
                self._counted_to = later.at
                self._count(between(earlier, later))
        window = latest_window(run)
        self.latest = [] if window is None else join_window(window, self._requests)
        self._metrics.forget(catalogue.WINDOW_PHASE.name)
        for each in self.latest:
            for phase, seconds in each.phases.items():
                self._metrics.gauge(catalogue.WINDOW_PHASE.name, each.model, phase).set(seconds)

    def _count(self, window: EngineWindow | None) -> None:
        if window is None:
            return
        for cohort in COHORTS:
            requests = self._requests.within(cohort, window.start, window.end)
            for model in models_of(window):
                theirs = engine_count(window, cohort, model)
                if theirs is not None:
                    series = catalogue.JOIN_WINDOW.name, model, cohort
                    self._metrics.counter(*series, "engine").inc(theirs)
                    self._metrics.counter(*series, "sidecar").inc(sequences(requests, model))

    def as_json(self, now: float) -> list[dict[str, object]]:
        """`GET /api/window`: seconds; the window as ages before `now`."""
        return [
            {
                "model": each.model,
                "from_seconds_ago": now - each.start,
                "to_seconds_ago": now - each.end,
                "status": each.status,
                "coverage": each.coverage,
                "requests": each.requests,
                "phases": each.phases,
            }
            for each in self.latest
        ]
