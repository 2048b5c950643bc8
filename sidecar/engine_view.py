"""The engine view on the metrics page: the engine's own current values, under the sidecar's names.

They are no counts of ours. Each reading of the engine's page replaces them, a signal that the page has not
has no series, and a histogram keeps the engine's buckets.
"""

from collections.abc import Iterator

from sidecar import catalogue
from sidecar.catalogue import Family
from sidecar.core.signals import Distribution, EngineSignals, Key
from sidecar.exposition import Counter, Gauge, Histogram, Series

_FAMILIES = {
    "requests_running": catalogue.ENGINE_RUNNING,
    "requests_waiting": catalogue.ENGINE_WAITING,
    "kv_cache_usage_ratio": catalogue.ENGINE_KV_USAGE,
    "preemptions": catalogue.ENGINE_PREEMPTIONS,
    "prefix_cache_queries": catalogue.ENGINE_PREFIX_QUERIES,
    "prefix_cache_hits": catalogue.ENGINE_PREFIX_HITS,
    "input_tokens": catalogue.ENGINE_INPUT_TOKENS,
    "output_tokens": catalogue.ENGINE_OUTPUT_TOKENS,
    "requests_finished": catalogue.ENGINE_FINISHED,
    "spec_tokens": catalogue.ENGINE_SPEC_TOKENS,
}


def series_of(signals: EngineSignals, instance: str) -> Iterator[tuple[Family, Series]]:
    """What one engine says, each series with its family."""
    for values, kind in ((signals.gauges, Gauge), (signals.counters, Counter)):
        for key, value in values.items():
            family = _FAMILIES[key.signal]
            series = kind(family, (instance, *_labels(family, key)))
            series.value = _whole(value)
            yield family, series
    for key, distribution in signals.distributions.items():
        yield catalogue.ENGINE_PHASE, _histogram(instance, key, distribution)
    available = signals.available()
    for signal in catalogue.SIGNALS:
        gauge = Gauge(catalogue.ENGINE_SIGNAL, (instance, signal))
        gauge.set(int(signal in available))
        yield catalogue.ENGINE_SIGNAL, gauge


def _labels(family: Family, key: Key) -> tuple[str, ...]:
    return (key.model, key.value) if len(family.labels) == 3 else (key.model,)


def _histogram(instance: str, key: Key, distribution: Distribution) -> Histogram:
    family = catalogue.ENGINE_PHASE._replace(buckets=distribution.bounds)
    histogram = Histogram(family, (instance, key.model, key.signal))
    histogram.counts = [round(count) for count in distribution.counts]
    histogram.sum = distribution.sum
    return histogram


def _whole(value: float) -> float:
    """Engines write counts as floats; as an integer one is shorter, and exact."""
    return int(value) if value.is_integer() else value
