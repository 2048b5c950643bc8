"""`sidecar serve` whose metrics page already has N histograms more, each with a value in every bucket.

    python serve_with_series.py 1000 --upstream http://127.0.0.1:8000 [the options of `sidecar serve`]

For the `scrape` scenario.  A real sidecar gets there with some 60 served models; this saves the requests.
"""

import argparse
import itertools
import sys

from sidecar import app
from sidecar.catalogue import LABELS, STORED, Family
from sidecar.commands import serve
from sidecar.config import MetricsConfig
from sidecar.metrics import Metrics
from sidecar.request_labels import RequestLabels


def label_values(family: Family, model: str) -> list[str]:
    """Labels of one series: the model, and of every other label the first value."""
    return [model if name == "model" else (LABELS[name] or ("bench",))[0] for name in family.labels]


def fill(metrics: Metrics, histograms: int, detail: str) -> None:
    shown = ("basic", detail)
    families = [f for f in STORED if f.kind == "histogram" and "model" in f.labels and f.detail in shown]
    series = ((family, f"bench-model-{n}") for n in itertools.count() for family in families)
    for family, model in itertools.islice(series, histograms):
        histogram = metrics.histogram(family.name, *label_values(family, model))
        for bound in (*family.buckets, family.buckets[-1] * 2):
            histogram.observe(bound)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histograms", type=int)
    serve.add_arguments(parser)
    args = parser.parse_args()

    class FilledMetrics(Metrics):
        def __init__(self, config: MetricsConfig, labels: RequestLabels) -> None:
            super().__init__(config, labels)
            fill(self, args.histograms, config.detail)

    app.Metrics = FilledMetrics
    return serve.run(args)


if __name__ == "__main__":
    sys.exit(main())
