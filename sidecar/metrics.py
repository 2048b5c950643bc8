"""The store behind `/metrics`: what a finished request, a gap and a sweep become.

One thread, no I/O, no clock, no lock. `prometheus_client` would need 57 ms to render 200 histograms and
six times as long to observe one (docs/performance.md), and the page is rendered on the loop that stamps
the tokens.

A label never holds what a client typed: `model` is a name that the engine says it serves, or `other`.
Series are made when they are first needed, and their number is bounded: `max_models` names at most, and
near `max_series` samples further series of named models go to `other`, for which room is kept.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import prod
from operator import attrgetter
from typing import Any, TypeVar

from sidecar import __version__, catalogue
from sidecar.catalogue import LABELS, OTHER, STORED, Family
from sidecar.config import MetricsConfig
from sidecar.core.events import GapSink
from sidecar.core.record import RequestRecord
from sidecar.exposition import Counter, Gauge, Histogram, Series, slices
from sidecar.model_names import ModelNames
from sidecar.request_labels import RequestLabels

MAX_TOKENS = 10**9  # a count beyond it, or below zero, is an engine's mistake and would spoil a counter
OPEN_LABEL_VALUES = 16  # assumed for a label whose values the catalogue does not list (`stage`, `reason`)

_KINDS: dict[str, type[Series]] = {"counter": Counter, "gauge": Gauge, "info": Gauge, "histogram": Histogram}

_NO_LABELS = RequestLabels({})

S = TypeVar("S", Counter, Gauge, Histogram)
Getter = Callable[[RequestRecord], float | None]
Count = Callable[[RequestRecord], int | None]
Rendered = Iterable[tuple[Family, Iterable[Series]]]

# One value of a record each, where it was observed; exemplars go with these.
_DURATIONS: tuple[tuple[Family, Getter], ...] = (
    (catalogue.REQUEST_DURATION, attrgetter("e2e")),
    (catalogue.HEADERS_TIME, attrgetter("headers_time")),
    (catalogue.TTFB, attrgetter("ttfb")),
    (catalogue.TTFT, attrgetter("ttft")),
    (catalogue.TTFO, attrgetter("ttfo")),
    (catalogue.REASONING, attrgetter("reasoning")),
    (catalogue.UPLOAD, attrgetter("upload")),
    (catalogue.WRITE_WAIT, lambda record: None if record.b1 is None else record.client_write_wait),
)
# Counts from usage: the counter that adds them up, the histogram of their distribution.
_TOKENS: tuple[tuple[Family, Family | None, Count], ...] = (
    (catalogue.INPUT_TOKENS, catalogue.INPUT_LENGTH, attrgetter("input_tokens")),
    (catalogue.CACHED_INPUT_TOKENS, None, attrgetter("cached_input_tokens")),
    (catalogue.OUTPUT_TOKENS, catalogue.OUTPUT_LENGTH, attrgetter("output_tokens")),
    (catalogue.REASONING_TOKENS, None, attrgetter("reasoning_tokens")),
)
# How much each finished request adds; no series where it is nothing.
_COUNTS: tuple[tuple[Family, Count], ...] = (
    (catalogue.STALLED_REQUESTS, lambda record: int(bool(record.stalls))),
    (catalogue.WITHOUT_USAGE, lambda record: int(_without_usage(record))),
    (catalogue.STREAM_CHUNKS, lambda record: record.chunks if record.streaming else None),
    (catalogue.STREAM_READS, lambda record: record.reads if record.streaming else None),
    (catalogue.BUFFERED, lambda record: int(record.buffered)),
)


class _Table:
    """The series of one family."""

    __slots__ = ("cost", "family", "make", "model_at", "own", "series")

    def __init__(self, family: Family, further: tuple[str, ...] = ()) -> None:
        self.own = len(family.labels)
        if family.kind == "counter" and "model" in family.labels:
            family = family._replace(labels=family.labels + further)
        self.family = family
        self.make = _KINDS[family.kind]
        self.model_at = family.labels.index("model") if "model" in family.labels else None
        self.cost = len(family.buckets) + 3 if family.kind == "histogram" else 1  # +Inf, count, sum
        self.series: dict[tuple[str, ...], Series] = {}

    def reserve(self) -> int:
        """Samples that this family may come to without a named model."""
        labels = self.family.labels
        sizes = [
            1 if name == "model" else len(LABELS[name]) or OPEN_LABEL_VALUES for name in labels[: self.own]
        ]
        sizes += [2] * (len(labels) - self.own)  # empty or `other`
        return self.cost * prod(sizes)

    def fallback(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The labels of the series that takes what there is no room for."""
        own, further = list(values[: self.own]), values[self.own :]
        if self.model_at is not None:
            own[self.model_at] = OTHER
        return (*own, *(OTHER if value else "" for value in further))


class _Cohort:
    """The series of one model, operation and streaming (and labels of the operator's own), so that a request
    finds each by one look-up."""

    __slots__ = ("_kept", "_labels", "_metrics")

    def __init__(self, metrics: "Metrics", labels: dict[str, str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self._kept: dict[tuple[str, str], Any] = {}

    def series(self, family: Family, further: str = "") -> Any:
        """The family's series; `further` is the value of the one label that is none of the three."""
        key = family.name, further
        series = self._kept.get(key)
        if series is None:
            values = [self._labels.get(name, further) for name in self._metrics.labels_of(family)]
            series = self._kept[key] = self._metrics.child(family.name, *values)
        return series


def reserved_samples(further: tuple[str, ...] = ()) -> int:
    """What the page may come to when every request goes to `other`; kept free below `max_series`."""
    return sum(_Table(family, further).reserve() for family in STORED)


class Metrics:
    """All families of the catalogue, and how a request changes them."""

    def __init__(self, config: MetricsConfig, labels: RequestLabels = _NO_LABELS) -> None:
        self.models = ModelNames(config.max_models)
        self.refresh: Callable[[], None] = lambda: None  # called before a page is rendered
        self.foreign: Callable[[], Rendered] = tuple  # what others measured, shown as it is now
        shown = ("basic", config.detail)
        self._labels = labels
        self._tables = {family.name: _Table(family, labels.names) for family in STORED}
        self._shown = [table for table in self._tables.values() if table.family.detail in shown]
        self._durations = [row for row in _DURATIONS if row[0].detail in shown]
        self._room = config.max_series - reserved_samples(labels.names)  # for named models
        self._sinks: dict[tuple[str, str], GapSink] = {}
        self._cohorts: dict[tuple[str, ...], _Cohort] = {}
        self._followed: list[tuple[str, Mapping[str, int]]] = []
        self._overflow = self.counter(catalogue.LABEL_OVERFLOW.name, "model")
        self.gauge(catalogue.BUILD_INFO.name, __version__).set(1)
        self.set_silence(())

    # --- series

    def child(self, name: str, *values: str) -> Any:
        """The series of family `name` with these label values, made at first use. Keep it where it is hot.

        A further series of a named model goes to `other` when the room is used up; that is counted.
        Raises KeyError for a family that is not in the catalogue, ValueError for too few or many labels.
        """
        table = self._tables[name]
        series = table.series.get(values)
        return self._new(table, values) if series is None else series

    def counter(self, name: str, *values: str) -> Counter:
        """`child` of a counter."""
        return _of(Counter, self.child(name, *values))

    def gauge(self, name: str, *values: str) -> Gauge:
        """`child` of a gauge."""
        return _of(Gauge, self.child(name, *values))

    def histogram(self, name: str, *values: str) -> Histogram:
        """`child` of a histogram."""
        return _of(Histogram, self.child(name, *values))

    def _new(self, table: _Table, values: tuple[str, ...]) -> Any:
        if len(values) == table.own:
            values += ("",) * (len(table.family.labels) - table.own)  # labels of the operator's own
        series = table.make(table.family, values)
        fallback = table.fallback(values)
        if values != fallback:
            if table.cost > self._room:
                self._overflow.inc()
                return self.child(table.family.name, *fallback)
            self._room -= table.cost
        table.series[values] = series
        return series

    def forget(self, name: str) -> None:
        """Family `name` has no series any more: what it said is not true now."""
        table = self._tables[name]
        self._room += table.cost * sum(values != table.fallback(values) for values in table.series)
        table.series.clear()

    def labels_of(self, family: Family) -> tuple[str, ...]:
        """Its labels, those of the operator's own among them."""
        return self._tables[family.name].family.labels

    # --- models

    def learn_models(self, names: Iterable[str]) -> None:
        """The engine serves these."""
        self.models.learn(names)
        for name in self.models.served:
            for operation in ("chat", "text_completion"):
                self.child(catalogue.IN_FLIGHT.name, self.model_label(name), operation)

    def model_label(self, raw: str | None) -> str:
        """The value of `model` for what a request named, None when it named nothing that could be read."""
        return self.models.label(raw)

    # --- requests

    def gap_sink(self, model: str, operation: str) -> GapSink:
        """Where the gaps of such streams go, live; `model` is a label. A gap costs one search, two cells."""
        key = model, operation
        sink = self._sinks.get(key)
        if sink is None:
            icl = self.histogram(catalogue.ICL.name, model, operation)
            sink = self._sinks[key] = _gap_sink(
                icl, lambda basis: self.histogram(catalogue.ITL.name, model, operation, basis)
            )
        return sink

    def record(
        self, record: RequestRecord, exported_trace: str | None = None, labels: tuple[str, ...] = ()
    ) -> None:
        """A request has ended. `exported_trace`: its trace id, when that trace is known to be exported;
        `labels`: the values of the operator's own labels."""
        model = self.models.label(record.model)
        if model == OTHER and self.models.overflows(record.model):
            self._overflow.inc()
        key = (model, record.operation, "true" if record.streaming else "false", *labels)
        cohort = self._cohorts.get(key)
        if cohort is None:
            names = ("model", "operation", "streaming", *self._labels.names)
            cohort = self._cohorts[key] = _Cohort(self, dict(zip(names, key, strict=True)))
        series = cohort.series
        series(catalogue.REQUESTS, record.outcome).inc()
        at = record.wall + record.ended - record.t0
        for family, duration in self._durations:
            seconds = duration(record)
            if seconds is not None:
                series(family).observe(seconds, exported_trace, at)
        tpot = record.tpot
        if tpot is not None:
            series(catalogue.TPOT, str(record.tpot_basis)).observe(tpot, exported_trace, at)
        for family, added in _COUNTS:
            count = added(record)
            if count:
                series(family).inc(count)
        for total, length, read in _TOKENS:
            tokens = read(record)
            if tokens is not None and 0 <= tokens <= MAX_TOKENS:
                series(total).inc(tokens)
                if length is not None:
                    series(length).observe(tokens)
        for stall in record.stalls:
            series(catalogue.STALL).observe(stall.duration)
            series(catalogue.STALLS, stall.during).inc()

    # --- what is true at the moment, and what others count

    def set_silence(self, ages: Iterable[float]) -> None:
        """Seconds since the last token, or since the request, of every open stream."""
        found = sorted(ages)
        for limit in catalogue.SILENCES:
            silent = len(found) - bisect_left(found, limit)
            self.gauge(catalogue.SILENT_STREAMS.name, str(limit)).set(silent)
        self.gauge(catalogue.OLDEST_SILENCE.name).set(found[-1] if found else 0)

    def set_in_flight(self, requests: Iterable[tuple[str | None, str]]) -> None:
        """What each open request named as its model, and its operation."""
        for series in self._tables[catalogue.IN_FLIGHT.name].series.values():
            _of(Gauge, series).set(0)
        for labels, count in Tally((self.model_label(raw), operation) for raw, operation in requests).items():
            self.gauge(catalogue.IN_FLIGHT.name, *labels).inc(count)

    def follow(self, name: str, counts: Mapping[str, int]) -> None:
        """Counter family `name`, of one label, shows what somebody else counts in `counts`."""
        self._followed.append((name, counts))

    def take_counters(
        self,
        rejected: Mapping[str, int],
        retries: Mapping[str, int],
        faults: Mapping[str, int],
        edits: Mapping[str, int],
    ) -> None:
        """Show what the proxy counts."""
        self.follow(catalogue.REJECTED.name, rejected)
        self.follow(catalogue.RETRIES.name, retries)
        self.follow(catalogue.OBSERVER_ERRORS.name, faults)
        self.follow(catalogue.EDITS.name, edits)

    # --- the page

    def render_slices(self, openmetrics: bool) -> Iterator[bytes]:
        """The page in small pieces, without OpenMetrics' end mark (`exposition.END`)."""
        self.refresh()
        for name, counts in self._followed:
            for value, count in list(counts.items()):
                self.counter(name, value).value = count
        own = ((table.family, table.series.values()) for table in self._shown)
        return slices(chain(own, self.foreign()), openmetrics)


def _gap_sink(icl: Histogram, itl: Callable[[str], Histogram]) -> GapSink:
    """ICL and ITL have the same bounds, so a gap without a token count is one search for both."""
    bounds, icl_counts = icl.bounds, icl.counts
    by_usage: Histogram | None = None
    by_chunks: Histogram | None = None

    def sink(gap: float, tokens: int | None) -> None:
        nonlocal by_usage, by_chunks
        bucket = bisect_left(bounds, gap)
        icl_counts[bucket] += 1
        icl.sum += gap
        if tokens is None:
            if by_chunks is None:
                by_chunks = itl("chunks")
            by_chunks.counts[bucket] += 1
            by_chunks.sum += gap
        elif 0 < tokens <= MAX_TOKENS:
            if by_usage is None:
                by_usage = itl("per_chunk_usage")
            by_usage.observe_n(gap / tokens, tokens)

    return sink


def _without_usage(record: RequestRecord) -> bool:
    said_nothing = record.input_tokens is None and record.output_tokens is None
    return said_nothing and record.observed and not record.missed and record.outcome == "completed"


def _of(kind: type[S], series: object) -> S:
    assert isinstance(series, kind), f"not a {kind.__name__}"
    return series
