"""What the composition root makes of an observation."""

import json
from typing import Any

import pytest

from sidecar.app import Sinks
from sidecar.core import observation
from sidecar.core.record import RequestRecord
from sidecar.core.tracecontext import TraceContext
from sidecar.proxy import RequestStart
from sidecar.proxy.observer import StreamObserver
from sidecar.request_labels import RequestLabels

TRACE_ID, SPAN_ID = "a" * 32, "c" * 16
ANSWER = b'{"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}'


class Noted:
    """Stands in for metrics, history and tracing."""

    def __init__(self, exports: bool = False, fails: bool = False) -> None:
        self.exports, self.fails = exports, fails
        self.calls: list[tuple[Any, ...]] = []

    def started(self, trace: TraceContext, request_id: str) -> None:
        self.calls.append(("started", trace.span_id, request_id))

    def finished(self, record: RequestRecord, trace: TraceContext, several: bool) -> bool:
        self.calls.append(("finished", trace.span_id, record.id, several))
        if self.fails:
            raise ValueError("a fault")
        return self.exports

    def child(self, name: str, *labels: str) -> "Noted":
        self.calls.append((name, *labels))
        return self

    def inc(self, count: int = 1) -> None:
        if count != 1:
            self.calls.append(("inc", count))

    def record(self, record: RequestRecord, exported_trace: str | None, labels: Any) -> None:
        self.calls.append(("record", exported_trace))

    def add(self, record: RequestRecord) -> None: ...


class Metrics(Noted):
    """Metrics, history and joins: only what goes to the metrics is noted."""

    def finished(self, _kept: Any) -> None: ...  # type: ignore[override]

    def model_label(self, _raw: str | None) -> str:
        return "m"


def observe(body: dict[str, Any], path: str, sampled: bool | None, tracing: Noted | None) -> Noted:
    """One request through the sinks; returns what the metrics were told."""
    metrics: Any = Metrics()
    sinks = Sinks(metrics, metrics, RequestLabels({}), metrics, tracing)  # type: ignore[arg-type]
    trace = TraceContext(TRACE_ID, None, SPAN_ID, sampled)
    observer = StreamObserver(RequestStart("POST", path.encode(), (), 1.0, "r", trace), sinks, 1.0)
    observer.request_data(json.dumps(body).encode(), 1.0)
    observer.request_end(1.0)
    observer.response_head(200, ((b"Content-Type", b"application/json"),), 2.0)
    observer.observe(ANSWER, 2.0)
    observer.finish("clean", 2.0, None)
    assert sinks.open == set()
    return metrics


REQUESTS = [
    ("one prompt, one choice", {}, "/v1/chat/completions", False),
    ("two choices", {"n": 2}, "/v1/chat/completions", True),
    ("two prompts", {"prompt": ["a", "b"]}, "/v1/completions", True),
]


@pytest.mark.parametrize(
    ("body", "path", "several"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS]
)
def test_tracing_is_told_when_the_engine_makes_several_requests_of_one(
    body: dict[str, Any], path: str, several: bool
) -> None:
    tracing = Noted()
    observe({"model": "m", **body}, path, None, tracing)
    assert tracing.calls == [("started", SPAN_ID, "r"), ("finished", SPAN_ID, "r", several)]


EXEMPLARS = [
    ("the caller exports it", True, None, TRACE_ID),
    ("the caller exports it, although it is not exported here", True, False, TRACE_ID),
    ("it is exported here", False, True, TRACE_ID),
    ("nobody exports it", None, False, None),
    ("nobody exports it, tracing is off", None, None, None),
]


@pytest.mark.parametrize(
    ("sampled", "exports", "expected"), [row[1:] for row in EXEMPLARS], ids=[row[0] for row in EXEMPLARS]
)
def test_an_exemplar_is_a_trace_that_somebody_exports(
    sampled: bool | None, exports: bool | None, expected: str | None
) -> None:
    tracing = None if exports is None else Noted(exports)
    metrics = observe({"model": "m"}, "/v1/chat/completions", sampled, tracing)
    assert metrics.calls == [("record", expected)]


def test_a_fault_in_tracing_is_counted_and_costs_no_metric() -> None:
    metrics = observe({"model": "m"}, "/v1/chat/completions", True, Noted(fails=True))
    assert metrics.calls == [("llm_sidecar_observer_errors_total", "tracing"), ("record", TRACE_ID)]


def test_what_was_not_looked_at_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "DECODED_PER_READ", 100)
    metrics: Any = Metrics()
    sinks = Sinks(metrics, metrics, RequestLabels({}), metrics, None)
    observer = StreamObserver(
        RequestStart(
            "POST", b"/v1/chat/completions", (), 1.0, "r", TraceContext(TRACE_ID, None, SPAN_ID, None)
        ),
        sinks,
        1.0,
    )
    observer.response_head(200, ((b"Content-Type", b"text/event-stream"),), 2.0)
    observer.observe(b'data: {"choices": []}\n\n' * 10, 2.0)
    observer.finish("clean", 2.0, None)
    missed = 10 - 100 // len(b'{"choices": []}')
    assert [call for call in metrics.calls if call[0] != "record"] == [
        ("llm_sidecar_observer_errors_total", "missed"), ("inc", missed),
    ]  # fmt: skip
