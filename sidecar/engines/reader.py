"""A page read by an engine's table: samples go in, the engine's signals come out.

What the same signal has several series for is put together: engine processes and labels that the table
does not name are added up (of a share, the largest is taken), copies are read once. Nothing is guessed: a
signal of which a part is missing, or is not a number, is missing.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import pairwise
from math import isfinite

from sidecar.catalogue import FINISH_REASONS, OTHER
from sidecar.core.signals import Distribution, EngineSignals, Key
from sidecar.engines.page import Sample
from sidecar.engines.table import Engine, Signal

START = "process_start_time_seconds"
MAX_BOUNDS = 200  # of one histogram

ModelLabel = Callable[[str | None], str]
Labels = tuple[tuple[str, str], ...]
Value = tuple[tuple[str, ...], float]
Series = dict[str, dict[Labels, Value]]
"""Sample name -> its labels -> which copy it is of, and its value."""

_NAMELESS = ("", "undefined")  # the latter on the first releases of TensorRT-LLM
_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


def wanted(engine: Engine) -> frozenset[str]:
    """The sample names that the table reads."""
    names = {
        part + suffix
        for row in engine.signals
        for name in row.names
        for part in _parts(name)
        for suffix in _SUFFIXES.get(row.kind, ("",))
    }
    return frozenset(names | {START})


def gather(samples: Iterable[Sample], engine: Engine, into: Series) -> None:
    """Put samples together by name and labels. Of copies one is kept, of duplicates the first."""
    copies, totals = engine.copies, engine.totals
    for sample in samples:
        labels = sample.labels
        if not isfinite(sample.value) or any(labels.get(label) for label in totals):
            continue
        copy = tuple([labels.pop(label, "") for label in copies])
        own = tuple(sorted(labels.items()))
        series = into.setdefault(sample.name, {})
        kept = series.get(own)
        if kept is None or copy < kept[0]:
            series[own] = (copy, sample.value)


def read(
    series: Series, engine: Engine, model_label: ModelLabel, started: float | None = None
) -> EngineSignals:
    """What the page says. `model_label` makes a `model` label of the name on the page, None for none;
    `started` is what the engine told of its start beside the page."""
    steps = in_steps(series, engine, model_label, started)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            signals: EngineSignals = done.value
            return signals


def in_steps(
    series: Series, engine: Engine, model_label: ModelLabel, started: float | None = None
) -> Generator[None, None, EngineSignals]:
    """`read`, which stops after each row of the table: many processes and models make a long page."""
    numbers: dict[str, dict[Key, float]] = {"gauge": {}, "counter": {}}
    distributions: dict[Key, Distribution] = {}
    for row in engine.signals:
        name = next((name for name in row.names if _has(series, name, row)), None)
        if isinstance(name, str) and row.kind == "histogram":
            distributions.update(_distributions(series, engine, row, name, model_label))
        elif name is not None:
            for part in _parts(name):
                _add(numbers[row.kind], series[part], engine, row, model_label)
        yield
    if started is None:
        started = next((value for _, value in series.get(START, {}).values()), None)
    return EngineSignals(engine.name, started, numbers["gauge"], numbers["counter"], distributions)


def _parts(name: str | tuple[str, ...]) -> tuple[str, ...]:
    return (name,) if isinstance(name, str) else name


def _has(series: Series, name: str | tuple[str, ...], row: Signal) -> bool:
    suffix = "_count" if row.kind == "histogram" else ""
    return all(part + suffix in series for part in _parts(name))


def _counted(series: Mapping[Labels, Value], row: Signal) -> Iterator[tuple[Labels, float]]:
    """The series that count for the row."""
    for labels, (_, value) in series.items():
        if not row.where or _is_wanted(dict(labels), row):
            yield labels, value


def _is_wanted(labels: Mapping[str, str], row: Signal) -> bool:
    return all(labels.get(label, "") in values for label, values in row.where.items())


def _key(labels: Labels, engine: Engine, row: Signal, model_label: ModelLabel) -> Key:
    given = dict(labels)
    model = next((given[label] for label in engine.model if given.get(label, "") not in _NAMELESS), None)
    return Key(row.signal, model_label(model), _reason(given[row.by]) if row.by in given else row.value)


def _reason(said: str) -> str:
    """Some engines print the name of an enum: `FinishReason.LENGTH`."""
    reason = said.rsplit(".", 1)[-1].lower()
    return reason if reason in FINISH_REASONS else OTHER


# --- numbers and distributions


def _add(
    into: dict[Key, float],
    series: Mapping[Labels, Value],
    engine: Engine,
    row: Signal,
    model_label: ModelLabel,
) -> None:
    for labels, value in _counted(series, row):
        key = _key(labels, engine, row, model_label)
        before, scaled = into.get(key), value * row.factor
        if before is None:
            into[key] = scaled
        else:
            into[key] = max(before, scaled) if row.largest else before + scaled


def _distributions(
    series: Series, engine: Engine, row: Signal, name: str, model_label: ModelLabel
) -> dict[Key, Distribution]:
    """The histograms of a row by model."""
    sums = dict(_counted(series.get(f"{name}_sum", {}), row))
    buckets: dict[Labels, dict[float, float]] = {}
    for labels, value in _counted(series.get(f"{name}_bucket", {}), row):
        bound = _bound(dict(labels).get("le", ""))
        if bound is not None:
            buckets.setdefault(tuple(item for item in labels if item[0] != "le"), {})[bound] = value
    members: dict[Key, list[tuple[dict[float, float], float, float]]] = {}
    for labels, count in _counted(series[f"{name}_count"], row):
        if labels in sums:
            member = buckets.get(labels, {}), count, sums[labels]
            members.setdefault(_key(labels, engine, row, model_label), []).append(member)
    return {key: _together(found, row.factor) for key, found in members.items()}


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if isfinite(bound) else None


def _together(members: list[tuple[dict[float, float], float, float]], factor: float) -> Distribution:
    """Histograms added up, over the bounds that all of them have."""
    common = set.intersection(*(set(buckets) for buckets, _, _ in members))
    bounds = sorted(common)[:MAX_BOUNDS]
    count = sum(count for _, count, _ in members)
    running = [0.0, *(sum(buckets[bound] for buckets, _, _ in members) for bound in bounds), count]
    counts = tuple(max(0.0, later - earlier) for earlier, later in pairwise(running))
    total = sum(total for _, _, total in members)
    return Distribution(tuple(bound * factor for bound in bounds), counts, float(count), total * factor)
