"""When a request is joined, and what is counted of it."""

from typing import Any

import msgspec
import pytest

from sidecar.config import MetricsConfig
from sidecar.core.record import RequestRecord
from sidecar.core.server_timings import ServerTimings
from sidecar.history import Kept
from sidecar.joins import DEADLINE, Joins
from sidecar.metrics import Metrics

IN_BAND = {"metrics": {"queue_time_ms": 200.0, "time_to_first_token_ms": 600.0, "generation_time_ms": 2300.0}}
SPAN = ServerTimings(queue=0.1, prefill=0.7, decode=1.9)


def request(name: str = "r", **fields: Any) -> Kept:
    """TTFT 1 s, of which 0.1 s are upload; generation 2 s; over at 4."""
    stamps = {"t0": 0.0, "t_up": 0.1, "t_conn": 0.1, "f1": 1.0, "f_last": 3.0, "e": 3.5, "ended": 4.0}
    tokens = {"input_tokens": 1500, "cached_input_tokens": 500}
    given = {"operation": "chat", "streaming": True, "outcome": "completed", **stamps, **tokens, **fields}
    return Kept(
        RequestRecord(
            id=name, trace_id="", method="POST", model="m", status=200, wall=0.0, choices=1, **given
        )
    )


def store() -> Metrics:
    metrics = Metrics(MetricsConfig())
    metrics.learn_models(["m"])
    return metrics


def joins(metrics: Metrics) -> dict[tuple[str, ...], float]:
    series = metrics._tables["llm_join_requests_total"].series
    return {labels[1:]: counter.value for labels, counter in series.items() if counter.value}


def test_a_sound_join_enters_the_histograms_and_the_parts_add_up_to_the_totals() -> None:
    metrics, kept = store(), request(engine=IN_BAND)
    Joins(metrics).finished(kept)
    sums = {name: metrics.histogram("llm_phase_seconds", "m", name).sum for name in (
        "upload", "connect", "queue", "prefill", "unattributed", "ttft", "decode", "stretch", "generation",
    )}  # fmt: skip
    below = metrics.counter("llm_phase_negative_seconds_total", "m", "stretch").value
    assert sums == pytest.approx(
        {"upload": 0.1, "connect": 0, "queue": 0.2, "prefill": 0.6, "unattributed": 0.1, "ttft": 1.0,
         "decode": 2.3, "stretch": 0, "generation": 2.0}
    )  # fmt: skip
    assert below == pytest.approx(0.3)
    assert joins(metrics) == {("ok", "in_band"): 1}
    assert kept.as_json()["join"] == {"status": "ok", "source": "in_band"}


def test_the_sums_of_the_prefill_fit_are_of_uncached_kilotokens() -> None:
    metrics = store()
    one = Joins(metrics)
    one.finished(request(engine=IN_BAND))
    one.finished(request(engine=IN_BAND, input_tokens=700))
    one.finished(request(engine=IN_BAND, cached_input_tokens=None))  # not known how many were computed
    fit = {
        size: [
            metrics.counter("llm_prefill_fit_total", "m", size, term).value
            for term in ("n", "x", "y", "xx", "xy")
        ]
        for size in ("256", "1k")
    }
    assert fit["1k"] == pytest.approx([1, 1.0, 0.6, 1.0, 0.6])
    assert fit["256"] == pytest.approx([1, 0.2, 0.6, 0.04, 0.12])


UNSOUND: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "without timings": ({}, ("missing", "none")),
    "a remainder below zero": (
        {"engine": {"metrics": {"queue_time_ms": 900.0, "time_to_first_token_ms": 600.0}}}, ("negative", "in_band"),
    ),
    "two choices": ({"engine": IN_BAND, "choices_": 2}, ("ambiguous", "none")),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "counted"), UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_join_is_counted_and_nothing_else(
    fields: dict[str, Any], counted: tuple[str, str]
) -> None:
    fields = dict(fields)
    choices = fields.pop("choices_", 1)
    metrics, kept = store(), request(**fields)
    kept.record = msgspec.structs.replace(kept.record, choices=choices)
    Joins(metrics).finished(kept)
    assert joins(metrics) == {counted: 1}
    assert not metrics._tables["llm_phase_seconds"].series


def test_what_never_came_to_a_first_token_is_not_counted() -> None:
    metrics, kept = store(), request(f1=None, outcome="timeout")
    Joins(metrics, spans=True).finished(kept)
    assert joins(metrics) == {}
    assert (kept.as_json()["join"], kept.as_json()["phases"]) == (None, None)


def test_with_spans_a_request_waits_for_its_own_and_in_band_timings_need_no_wait() -> None:
    metrics = store()
    one, late = Joins(metrics, spans=True), request("late")
    one.finished(late)
    one.finished(request("quick", engine=IN_BAND))
    assert joins(metrics) == {("ok", "in_band"): 1}
    one.span(request("somebody else").record, SPAN)
    one.span(late.record, SPAN)
    one.span(late.record, SPAN)  # once only
    assert joins(metrics) == {("ok", "in_band"): 1, ("ok", "span"): 1}
    assert late.phases is not None
    assert late.phases.queue == 0.1


def test_a_span_that_does_not_come_is_missing_after_the_deadline() -> None:
    metrics = store()
    one, later = Joins(metrics, spans=True), request("later", ended=6.0)
    one.finished(request("early", ended=4.0))
    one.finished(later)
    one.expire(3.9 + DEADLINE)
    assert joins(metrics) == {}
    one.expire(4.5 + DEADLINE)
    assert joins(metrics) == {("missing", "none"): 1}
    one.span(later.record, SPAN)
    assert joins(metrics) == {("missing", "none"): 1, ("ok", "span"): 1}


def test_timings_without_a_prefill_wait_for_a_span_and_are_shown_if_none_comes() -> None:
    metrics, kept = store(), request(engine={"meta_info": {"queue_time": 0.2}})
    one = Joins(metrics, spans=True)
    one.finished(kept)
    one.expire(kept.record.ended + DEADLINE)
    assert joins(metrics) == {("missing", "in_band"): 1}
    assert kept.as_json()["phases"] == pytest.approx(
        {"upload": 0.1, "connect": 0.0, "queue": 0.2, "ttft": 1.0, "generation": 2.0}
    )


def test_a_span_that_may_be_anothers_is_ambiguous() -> None:
    metrics, kept = store(), request()
    one = Joins(metrics, spans=True)
    one.finished(kept)
    one.span(kept.record, "ambiguous")
    assert joins(metrics) == {("ambiguous", "none"): 1}


def test_a_requests_span_tells_its_phases_and_how_they_were_joined() -> None:
    one, kept = Joins(store()), request(engine=IN_BAND)
    one.finished(kept)
    told = one.attributes(kept.record)
    assert told["llm.join"] == "ok"
    assert told["llm.phase.queue"] == pytest.approx(0.2)
    assert one.attributes(request("another").record) == {}
