"""Windows in the running sidecar: what is counted once, what is shown, and when nothing is."""

from typing import Any

import pytest

from sidecar.config import MetricsConfig
from sidecar.core.record import RequestRecord
from sidecar.core.signals import Distribution, EngineSignals, Key, Reading
from sidecar.metrics import Metrics
from sidecar.windows import Windows


def store() -> Metrics:
    metrics = Metrics(MetricsConfig())
    metrics.learn_models(["m"])
    return metrics


def record(ended: float, **fields: Any) -> RequestRecord:
    """First token after 1 s, last after 3 s, over after 4 s."""
    t0 = ended - 4.0
    stamps = {"t_up": t0, "t_conn": t0, "f1": t0 + 1.0, "f_last": t0 + 3.0, "e": ended}
    given = {"operation": "chat", "streaming": True, "outcome": "completed", "choices": 1, "model": "m"}
    given |= {**stamps, **fields}
    return RequestRecord(
        id="r", trace_id="", method="POST", status=200, wall=0.0, t0=t0, ended=ended, **given
    )


def reading(at: float, count: float, started: float = 1.0) -> Reading:
    """`count` requests so far: 0.5 s of prefill and 1.5 s of decode each."""
    spreads = {
        Key(name, "m"): Distribution((1.0,), (count, 0.0), count, count * mean)
        for name, mean in (("ttft", 0.6), ("prefill", 0.5), ("decode", 1.5))
    }
    return Reading(at, EngineSignals("vllm", started, {}, {}, spreads))


def counts(metrics: Metrics) -> dict[tuple[str, ...], float]:
    series = metrics._tables["llm_join_window_requests_total"].series
    return {labels[1:]: counter.value for labels, counter in series.items()}


def phases(metrics: Metrics) -> dict[str, float]:
    return {
        labels[1]: gauge.value for labels, gauge in metrics._tables["llm_window_phase_seconds"].series.items()
    }


def test_each_reading_is_counted_once_and_the_window_is_shown() -> None:
    metrics = store()
    windows = Windows(metrics)
    for number in range(40):
        windows.ended(record(101.0 + number))
    readings = [reading(100.0, 0), reading(130.0, 30), reading(170.0, 40)]
    windows.update({"e:1": readings[:2]})
    assert phases(metrics) == {}, "half a minute is no window"
    windows.update({"e:1": readings})
    windows.update({"e:1": readings})
    assert counts(metrics) == {
        ("finished", "engine"): 40, ("finished", "sidecar"): 40,
        ("first_token", "engine"): 40, ("first_token", "sidecar"): 37,
    }  # fmt: skip
    assert phases(metrics) == pytest.approx(
        {"prefill": 0.5, "decode": 1.5, "upload": 0, "connect": 0, "ttft": 1.0, "generation": 2.0,
         "unattributed": 0.5, "stretch": 0.5}
    )  # fmt: skip
    [shown] = windows.as_json(200.0)
    assert (shown["from_seconds_ago"], shown["to_seconds_ago"]) == (100.0, 30.0)
    assert (shown["status"], shown["coverage"], shown["requests"]) == ("ok", 1.0, 40)


NOTHING: dict[str, dict[str, list[Reading]]] = {
    "no page": {},
    "a page that was never read": {"e:1": []},
    "several engines": {
        "e:1": [reading(100, 0), reading(170, 40)],
        "e:2": [reading(100, 0), reading(170, 40)],
    },
    "an engine that began anew": {"e:1": [reading(100, 0), reading(170, 40, started=2.0)]},
}


@pytest.mark.parametrize("readings", NOTHING.values(), ids=NOTHING.keys())
def test_there_is_no_window(readings: dict[str, list[Reading]]) -> None:
    metrics = store()
    windows = Windows(metrics)
    for number in range(40):
        windows.ended(record(101.0 + number))
    windows.update(readings)
    assert (windows.latest, phases(metrics), counts(metrics)) == ([], {}, {})


def test_an_adapters_requests_are_its_models() -> None:
    """The engine counts them as the base model's."""
    metrics = store()
    windows = Windows(metrics)
    windows.base_of = {"lora": "m"}.get  # type: ignore[assignment]
    for number in range(40):
        windows.ended(record(101.0 + number, model="lora"))
    windows.update({"e:1": [reading(100, 0), reading(170, 40)]})
    [window] = windows.latest
    assert (window.model, window.status, window.coverage) == ("m", "ok", 1.0)


def test_a_window_that_is_over_disappears() -> None:
    metrics = store()
    windows = Windows(metrics)
    for number in range(40):
        windows.ended(record(101.0 + number))
    windows.update({"e:1": [reading(100, 0), reading(170, 40)]})
    assert phases(metrics)
    windows.update({})
    assert (windows.latest, phases(metrics)) == ([], {})
