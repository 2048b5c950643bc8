"""Series and the text that Prometheus reads of them: the plain format 0.0.4 and OpenMetrics 1.0.0.

A series keeps one `%` template with its name, labels and bounds already written, so that rendering it is
one formatting of its numbers. Plain lists and one bisect, no lock: everything happens on one thread.
The two formats differ in the family's head, in exemplars and in the `# EOF` at the end, not in a sample's
name or bounds, so a series keeps its identity whichever format a scraper asks for.

https://github.com/prometheus/docs/blob/main/content/docs/instrumenting/exposition_formats.md
https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import isfinite

from prometheus_client.utils import floatToGoString

from sidecar.catalogue import Family

SLICE_SERIES = 50
SLICE_SAMPLES = 250  # a histogram has 17; this many are rendered and compressed in about 0.3 ms
END = b"# EOF\n"

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Counter:
    """A number that only grows."""

    __slots__ = ("_template", "value")

    samples = 1

    def __init__(self, family: Family, labels: Sequence[str]) -> None:
        self.value: float = 0
        self._template = f"{_template(family.name, _pairs(family, labels))}%s\n"

    def inc(self, amount: float = 1) -> None:
        """Add `amount`, which must not be negative."""
        self.value += amount

    def text(self, _openmetrics: bool) -> str:
        """The line of this series."""
        return self._template % number(self.value)


class Gauge(Counter):
    """A number that goes up and down."""

    __slots__ = ()

    def dec(self, amount: float = 1) -> None:
        """Take `amount` away."""
        self.value -= amount

    def set(self, value: float) -> None:
        """Replace the number."""
        self.value = value


class Histogram:
    """Counts by bucket, their sum, and at most one exemplar a bucket."""

    __slots__ = ("_template", "bounds", "counts", "exemplars", "samples", "sum")

    def __init__(self, family: Family, labels: Sequence[str]) -> None:
        self.bounds = family.buckets
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.exemplars: dict[int, tuple[str, float, float]] = {}
        self.samples = len(self.counts) + 2
        pairs = _pairs(family, labels)
        bounds = [*map(floatToGoString, self.bounds), "+Inf"]
        lines = [_template(f"{family.name}_bucket", [*pairs, ("le", bound)]) for bound in bounds]
        lines += [_template(f"{family.name}_{suffix}", pairs) for suffix in ("count", "sum")]
        self._template = "".join(f"{line}%s\n" for line in lines)

    def observe(self, value: float, trace_id: str | None = None, at: float = 0.0) -> None:
        """Count one value; `trace_id` names an exported trace of it, `at` (Unix seconds) its time."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value
        if trace_id is not None:
            self.exemplars[bucket] = (trace_id, value, at)

    def observe_n(self, value: float, times: int) -> None:
        """Count the same value several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def text(self, openmetrics: bool) -> str:
        """The lines of this series; exemplars exist in OpenMetrics only."""
        running: list[object] = list(accumulate(self.counts))
        total = running[-1]
        if openmetrics and self.exemplars:
            for bucket, (trace_id, value, at) in self.exemplars.items():
                running[bucket] = f'{running[bucket]} # {{trace_id="{trace_id}"}} {number(value)} {at:.3f}'
        return self._template % (*running, total, number(self.sum))


Series = Counter | Gauge | Histogram


def number(value: float) -> str:
    """A sample's value as both formats write it."""
    if isfinite(value):
        return repr(value)
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"


def head(family: Family, openmetrics: bool) -> str:
    """HELP, TYPE and UNIT. OpenMetrics names a counter and an info without their suffix."""
    name, kind = family.name, family.kind
    if openmetrics:
        name = name.removesuffix({"counter": "_total", "info": "_info"}.get(kind, ""))
    elif kind == "info":
        kind = "gauge"
    unit = f"# UNIT {name} {family.unit}\n" if openmetrics and family.unit else ""
    return f"# HELP {name} {family.help}\n# TYPE {name} {kind}\n{unit}"


def slices(families: Iterable[tuple[Family, Iterable[Series]]], openmetrics: bool) -> Iterator[bytes]:
    """The page in pieces that are small enough to be rendered between two socket reads.

    Each series is read when its slice is; a family without series is left out. The end of an OpenMetrics
    page (`END`) is the caller's, who may have more to say before it.
    """
    parts: list[str] = []
    series_left, samples_left = SLICE_SERIES, SLICE_SAMPLES
    for family, members in families:
        heading = head(family, openmetrics)
        for series in list(members):
            if not series_left or samples_left < series.samples:
                yield "".join(parts).encode("utf-8", "replace")
                parts, series_left, samples_left = [], SLICE_SERIES, SLICE_SAMPLES
            parts += (heading, series.text(openmetrics))
            heading = ""
            series_left -= 1
            samples_left -= series.samples
    yield "".join(parts).encode("utf-8", "replace")


def _pairs(family: Family, labels: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(family.labels, labels, strict=True))


def _template(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    inner = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in pairs)
    return (f"{name}{{{inner}}} " if inner else f"{name} ").replace("%", "%%")
