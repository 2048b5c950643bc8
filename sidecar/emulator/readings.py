"""What the demo shows, worked out from the sidecar's own pages. Pure: pages in, numbers out.

TTFT, TTFO, TPOT and E2E are exact: they are taken from the single requests of `/api/requests`. ITL has one
value a token, which nobody keeps, so its percentiles are interpolated in the histogram's buckets, as
Prometheus' `histogram_quantile` does.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

QUANTILES = (0.5, 0.95, 0.99)
WINDOW_SECONDS = 30.0

EXACT = {"TTFT": "ttft", "TTFO": "ttfo", "TPOT": "tpot", "E2E": "e2e"}
"""Row and the key of `/api/requests` that it is made of."""
MEANINGS = {
    "TTFT": "time to first token, reasoning counts",
    "TTFO": "time to first output, reasoning does not",
    "ITL": "inter-token latency, one a token",
    "TPOT": "time per output token, one a request",
    "E2E": "the whole request, of the completed",
}
ITL = "llm_inter_token_latency_seconds"
OUTCOMES = "llm_requests"
IN_FLIGHT = "llm_requests_in_flight"

Buckets = dict[float, float]
"""Upper bound -> cumulative count."""


@dataclass(frozen=True, slots=True)
class Page:
    """The part of one /metrics page that is shown."""

    itl: Buckets
    outcomes: Mapping[str, int]
    in_flight: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: quantiles in seconds, `None` where there is none yet."""

    name: str
    quantiles: tuple[float | None, ...]
    count: int
    source: str


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown at one time. `lag` is how much later than planned the sidecar saw first tokens."""

    rows: tuple[Row, ...]
    outcomes: Mapping[str, int]
    in_flight: int
    lag: Row | None = None


@dataclass(slots=True)
class Readings:
    """Keeps the pages of the last `WINDOW_SECONDS`."""

    _pages: deque[tuple[float, Page]] = field(default_factory=deque)

    def view(self, page: Page, requests: Sequence[Mapping[str, Any]], now: float) -> View:
        """The view of now. `requests` are the `recent` ones of /api/requests."""
        self._pages.append((now, page))
        while self._pages[0][0] < now - WINDOW_SECONDS:
            self._pages.popleft()
        rows = {name: _exact(name, requests, key) for name, key in EXACT.items()}
        rows["ITL"] = self._itl(page, now)
        return View(tuple(rows[name] for name in MEANINGS), page.outcomes, page.in_flight)

    def _itl(self, page: Page, now: float) -> Row:
        since, oldest = self._pages[0]
        first = len(self._pages) == 1 or now - since < WINDOW_SECONDS - 2
        before: Buckets = {} if first else oldest.itl
        counts = {bound: count - before.get(bound, 0) for bound, count in page.itl.items()}
        source = "histogram, whole run" if first else f"histogram, last {now - since:.0f} s"
        quantiles = tuple(bucket_quantile(counts, q) for q in QUANTILES)
        return Row("ITL", quantiles, int(counts.get(math.inf, 0)), source)


def read_page(text: str) -> Page:
    """Parse a /metrics page of the sidecar."""
    itl: Buckets = {}
    outcomes: dict[str, int] = {}
    in_flight = 0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{ITL}_bucket":
                bound = float(sample.labels["le"])
                itl[bound] = itl.get(bound, 0) + sample.value
            elif sample.name == f"{OUTCOMES}_total":
                outcome = sample.labels["outcome"]
                outcomes[outcome] = outcomes.get(outcome, 0) + int(sample.value)
            elif sample.name == IN_FLIGHT:
                in_flight += int(sample.value)
    shown = {name: count for name, count in sorted(outcomes.items(), key=lambda kv: -kv[1]) if count}
    return Page(itl, shown, in_flight)


def lag(requests: Sequence[Mapping[str, Any]], truths: Iterable[Mapping[str, Any]]) -> Row:
    """TTFT as measured less TTFT as the engine planned it, request by request, matched by request id."""
    planned = {truth["id"]: truth["first_text"] for truth in truths}
    late = sorted(
        request["ttft"] - planned[request["id"]]
        for request in requests
        if request["ttft"] is not None and planned.get(request["id"]) is not None
    )
    quantiles = tuple(exact_quantile(late, q) for q in QUANTILES)
    return Row("TTFT", quantiles, len(late), "measured less planned")


def exact_quantile(ordered: Sequence[float], q: float) -> float | None:
    """The smallest value that at least a share `q` of the values do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def bucket_quantile(buckets: Buckets, q: float) -> float | None:
    """As `histogram_quantile`: linear inside the bucket; the last finite bound when it lies beyond."""
    ordered = sorted(buckets.items())
    if not ordered or not ordered[-1][1]:
        return None
    rank = q * ordered[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in ordered:
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return None


def _exact(name: str, requests: Sequence[Mapping[str, Any]], key: str) -> Row:
    ended = [request for request in requests if name != "E2E" or request["outcome"] == "completed"]
    ordered = sorted(request[key] for request in ended if request[key] is not None)
    quantiles = tuple(exact_quantile(ordered, q) for q in QUANTILES)
    return Row(name, quantiles, len(ordered), "exact, latest requests")
