"""What requests, gaps and sweeps become on the page.

The oracle is prometheus_client's own registry: it is told the values that a reader of the story would
write down, and both pages, parsed by its parsers, must say the same.
"""

import os
import shutil
import subprocess
import timeit
from collections.abc import Iterable
from typing import Any

import prometheus_client as oracle
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar import exposition
from sidecar.catalogue import CLIENT_VIEW, OTHER, STORED, Family
from sidecar.config import MetricsConfig
from sidecar.core.record import RequestRecord, Stall
from sidecar.metrics import Metrics, reserved_samples

BY_NAME = {family.name: family for family in STORED}
TRACE = "0af7651916cd43dd8448eb211c80319c"
HOSTILE = ['quo"te', "back\\slash", 'both\\"', "per%cent %s %(x)s", "{brace}", "ünï/코드:1", "a,b=c", "# EOF"]


def request(**fields: Any) -> RequestRecord:
    """A request that began at 100 s and was over at 110."""
    given = {
        "operation": "chat",
        "model": "m",
        "streaming": True,
        "status": 200,
        "outcome": "completed",
        **fields,
    }
    return RequestRecord(id="r", trace_id=TRACE, method="POST", wall=1.7e9, t0=100.0, ended=110.0, **given)


def store(detail: str = "basic", served: Iterable[str] = ("m", "n"), **settings: Any) -> Metrics:
    metrics = Metrics(MetricsConfig(detail=detail, **settings))
    metrics.learn_models(served)
    return metrics


def page(metrics: Metrics, openmetrics: bool = False) -> str:
    text = b"".join(metrics.render_slices(openmetrics)).decode()
    return text + exposition.END.decode() if openmetrics else text


def samples(
    metrics: Metrics, openmetrics: bool = False
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value, of everything on the page."""
    parse = parse_openmetrics if openmetrics else parse_text
    return flat(parse(page(metrics, openmetrics)))


def flat(families: Iterable[Any]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"twice on the page: {key}"
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset(labels.items())))


# --- a story, and what it should say

STORY = [
    # A streamed answer with reasoning, usage and two stalls; the client was slow for 0.25 s.
    request(
        t_up=100.5, h=101.0, b1=101.25, k1=101.5, o1=104.5, f1=101.5, f_last=108.5, z=108.5, e=108.75,
        observed=True, choices=1, chunks=12, reads=8, input_tokens=1000, cached_input_tokens=640,
        output_tokens=15, reasoning_tokens=5, client_write_wait=0.25,
        stalls=(Stall(1.5, "reasoning"), Stall(2.0, "output")),
    ),
    # A streamed answer that a hop had buffered, without usage.
    request(h=100.25, b1=100.25, o1=100.5, f1=100.5, f_last=100.75, z=100.75, e=101.0,
            observed=True, choices=1, chunks=3, reads=1, buffered=True),
    # The same, delivered chunk by chunk: TPOT by chunks.
    request(model="n", h=100.25, b1=100.25, o1=100.5, f1=100.5, f_last=101.0, z=101.0, e=101.0,
            observed=True, choices=1, chunks=5, reads=5),
    # A unary answer with usage.
    request(operation="text_completion", streaming=False, h=103.0, b1=103.0, e=103.5, observed=True,
            input_tokens=7, output_tokens=4),
    # Refused; a model that is not served; a client that left; an engine that is not there.
    request(status=429, outcome="overloaded", streaming=False, h=100.125, b1=100.125, e=100.125),
    request(model="typed", status=404, outcome="client_error", streaming=None, h=100.5, b1=100.5, e=100.5),
    request(outcome="client_disconnected_before_output", h=101.0, observed=True),
    request(operation="embeddings", streaming=False, status=502, outcome="upstream_unreachable"),
]  # fmt: skip

M, N, REST = {"model": "m"}, {"model": "n"}, {"model": OTHER}
CHAT, STREAM, UNARY = {"operation": "chat"}, {"streaming": "true"}, {"streaming": "false"}
TEXT = {"operation": "text_completion"}

# What is written down by hand: histogram values and counter totals of the story.
OBSERVED = {
    "llm_request_duration_seconds": [
        (M | CHAT | STREAM, [8.75, 1.0]), (N | CHAT | STREAM, [1.0]), (M | TEXT | UNARY, [3.5]),
        (M | CHAT | UNARY, [0.125]), (REST | CHAT | UNARY, [0.5]),
    ],
    "llm_time_to_response_headers_seconds": [
        (M | CHAT | STREAM, [1.0, 0.25, 1.0]), (N | CHAT | STREAM, [0.25]), (M | TEXT | UNARY, [3.0]),
        (M | CHAT | UNARY, [0.125]), (REST | CHAT | UNARY, [0.5]),
    ],
    "llm_time_to_first_byte_seconds": [
        (M | CHAT | STREAM, [1.25, 0.25]), (N | CHAT | STREAM, [0.25]), (M | TEXT | UNARY, [3.0]),
        (M | CHAT | UNARY, [0.125]), (REST | CHAT | UNARY, [0.5]),
    ],
    "llm_time_to_first_token_seconds": [(M | CHAT, [1.5, 0.5]), (N | CHAT, [0.5])],
    "llm_time_to_first_output_seconds": [(M | CHAT, [4.5, 0.5]), (N | CHAT, [0.5])],
    "llm_reasoning_seconds": [(M, [3.0])],
    # (8.5 - 1.5) s over 14 later tokens; the buffered one is not observed; 0.5 s over 4 later chunks
    "llm_time_per_output_token_seconds": [
        (M | CHAT | {"basis": "usage"}, [0.5]), (N | CHAT | {"basis": "chunks"}, [0.125]),
    ],
    "llm_stall_seconds": [(M, [1.5, 2.0])],
    "llm_client_write_wait_seconds": [(M, [0.25, 0.0, 0.0, 0.0]), (N, [0.0]), (REST, [0.0])],
    "llm_upload_seconds": [(M, [0.5])],
    "llm_request_input_tokens": [(M | CHAT, [1000]), (M | TEXT, [7])],
    "llm_request_output_tokens": [(M | CHAT, [15]), (M | TEXT, [4])],
}  # fmt: skip
COUNTED = {
    "llm_requests_total": [
        (M | CHAT | STREAM | {"outcome": "completed"}, 2), (N | CHAT | STREAM | {"outcome": "completed"}, 1),
        (M | TEXT | UNARY | {"outcome": "completed"}, 1), (M | CHAT | UNARY | {"outcome": "overloaded"}, 1),
        (REST | CHAT | UNARY | {"outcome": "client_error"}, 1),
        (M | CHAT | STREAM | {"outcome": "client_disconnected_before_output"}, 1),
        (M | {"operation": "embeddings"} | UNARY | {"outcome": "upstream_unreachable"}, 1),
    ],
    "llm_stalls_total": [(M | CHAT | {"during": "reasoning"}, 1), (M | CHAT | {"during": "output"}, 1)],
    "llm_stalled_requests_total": [(M | CHAT, 1)],
    "llm_input_tokens_total": [(M | CHAT, 1000), (M | TEXT, 7)],
    "llm_cached_input_tokens_total": [(M | CHAT, 640)],
    "llm_output_tokens_total": [(M | CHAT, 15), (M | TEXT, 4)],
    "llm_reasoning_tokens_total": [(M | CHAT, 5)],
    "llm_requests_without_usage_total": [(M | CHAT, 1), (N | CHAT, 1)],
    "llm_stream_chunks_total": [(M | CHAT, 15), (N | CHAT, 5)],
    "llm_stream_reads_total": [(M | CHAT, 9), (N | CHAT, 5)],
    "llm_buffered_responses_total": [(M | CHAT, 1)],
}  # fmt: skip
# What the page holds beside the requests: the gauges and the sidecar itself.
STANDING = {
    "llm_requests_in_flight", "llm_silent_streams", "llm_oldest_silent_stream_seconds",
    "llm_sidecar_build_info", "llm_sidecar_label_overflow_total",
}  # fmt: skip


def expected(
    openmetrics: bool, skip: Iterable[str] = ()
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The story told to prometheus_client."""
    oracle.disable_created_metrics()
    registry = oracle.CollectorRegistry()
    for name, rows in OBSERVED.items():
        if name not in skip:
            family = BY_NAME[name]
            histogram = oracle.Histogram(
                name, family.help, family.labels, buckets=family.buckets, registry=registry
            )
            for labels, values in rows:
                for each in values:
                    histogram.labels(**labels).observe(each)
    for name, totals in COUNTED.items():
        counter = oracle.Counter(name, BY_NAME[name].help, BY_NAME[name].labels, registry=registry)
        for labels, total in totals:
            counter.labels(**labels).inc(total)
    if openmetrics:
        from prometheus_client.openmetrics.exposition import generate_latest

        return flat(parse_openmetrics(generate_latest(registry).decode()))
    return flat(parse_text(oracle.generate_latest(registry).decode()))


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
@pytest.mark.parametrize("detail", ["basic", "full"])
def test_the_page_says_what_prometheus_own_library_would_say(detail: str, openmetrics: bool) -> None:
    metrics = store(detail)
    for record in STORY:
        metrics.record(record)
    found = {key: got for key, got in samples(metrics, openmetrics).items() if key[0] not in STANDING}
    skip = ["llm_time_to_response_headers_seconds"] if detail == "basic" else []
    assert found == expected(openmetrics, skip)


def test_the_story_covers_every_family_that_comes_from_records() -> None:
    told = {*OBSERVED, *COUNTED}
    live = {"llm_inter_chunk_latency_seconds", "llm_inter_token_latency_seconds"}
    client_view = {family.name for family in CLIENT_VIEW}
    assert client_view - told - live == {name for name in STANDING if not name.startswith("llm_sidecar_")}


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_types_units_and_help_are_those_of_the_catalogue(openmetrics: bool) -> None:
    metrics = store("full")
    for record in STORY:
        metrics.record(record)
    parse = parse_openmetrics if openmetrics else parse_text
    families = list(parse(page(metrics, openmetrics)))
    assert len({family.name for family in families}) == len(families)
    for found in families:
        suffix = {"counter": "_total", "info": "_info" if openmetrics else ""}.get(found.type, "")
        declared = BY_NAME[found.name + suffix]
        kind = "gauge" if declared.kind == "info" and not openmetrics else declared.kind
        assert (found.type, found.documentation) == (kind, declared.help)
        assert found.unit == (declared.unit if openmetrics else "")


# --- gaps

GAPS: list[tuple[str, list[tuple[float, int | None]], list[float], dict[str, list[float]]]] = [
    ("a chunk without a count is taken for one token", [(0.02, None)], [0.02], {"chunks": [0.02]}),
    ("a chunk of four tokens is four gaps of a quarter", [(0.1, 4)], [0.1], {"per_chunk_usage": [0.025] * 4}),
    ("a chunk that added no token is no token's gap", [(0.1, 0)], [0.1], {}),
    ("a count that went down is none", [(0.1, -3)], [0.1], {}),
    ("a count beyond belief is none", [(0.1, 10**30)], [0.1], {}),
    ("a gap on a bound belongs to it", [(0.005, None), (0.01, 2)], [0.005, 0.01],
     {"chunks": [0.005], "per_chunk_usage": [0.005] * 2}),
]  # fmt: skip


@pytest.mark.parametrize(("gaps", "icl", "itl"), [row[1:] for row in GAPS], ids=[row[0] for row in GAPS])
def test_gaps(gaps: list[tuple[float, int | None]], icl: list[float], itl: dict[str, list[float]]) -> None:
    metrics = store()
    sink = metrics.gap_sink("m", "chat")
    for gap, tokens in gaps:
        sink(gap, tokens)
    registry = oracle.CollectorRegistry()
    for name, rows in {
        "llm_inter_chunk_latency_seconds": [({}, icl)],
        "llm_inter_token_latency_seconds": [({"basis": basis}, values) for basis, values in itl.items()],
    }.items():
        family = BY_NAME[name]
        histogram = oracle.Histogram(name, "x", family.labels, buckets=family.buckets, registry=registry)
        for labels, values in rows:
            for each in values:
                histogram.labels(model="m", operation="chat", **labels).observe(each)
    got = {key: each for key, each in samples(metrics).items() if key[0].startswith("llm_inter_")}
    assert got == pytest.approx(flat(parse_text(oracle.generate_latest(registry).decode())))


def test_a_gap_sink_is_made_once() -> None:
    metrics = store()
    assert metrics.gap_sink("m", "chat") is metrics.gap_sink("m", "chat")
    assert metrics.gap_sink("m", "chat") is not metrics.gap_sink("m", "messages")


# --- models

LABELLED = [
    ("a served name is a label", ["a", "b"], "a", "a"),
    ("what a client typed is not", ["a", "b"], "c", OTHER),
    ("no name, several models", ["a", "b"], None, OTHER),
    ("no name, one model", ["a"], None, "a"),
    ("no name, no model", [], None, OTHER),
    ("a name twice is one model", ["a", "a"], None, "a"),
    ("an empty name is none", [""], "", OTHER),
    ("a name with a line break would end a sample", ["a\nb"], "a\nb", OTHER),
    ("a NUL would end the page", ["a\0"], "a\0", OTHER),
    ("half a surrogate pair is no text", ["\ud800"], "\ud800", OTHER),
    ("a name as long as a page", ["a" * 257], "a" * 257, OTHER),
]  # fmt: skip


@pytest.mark.parametrize(
    ("served", "raw", "label"), [row[1:] for row in LABELLED], ids=[row[0] for row in LABELLED]
)
def test_model_labels(served: list[str], raw: str | None, label: str) -> None:
    assert store(served=served).model_label(raw) == label


def test_what_a_client_typed_never_reaches_the_page() -> None:
    metrics = store()
    for name in ("secret prompt", "m'", "M", "m ", OTHER + "x"):
        metrics.record(request(model=name, e=101.0))
    assert not {dict(labels).get("model") for _, labels in samples(metrics)} - {None, "m", "n", OTHER}
    assert value(metrics, "llm_sidecar_label_overflow_total", label="model") == 0


def test_more_models_than_max_models_are_other_and_counted() -> None:
    metrics = store(served=["a", "b", "c"], max_models=2)
    for name in ("a", "b", "c", "c", "typed"):
        metrics.record(request(model=name))
    labels = {"operation": "chat", "streaming": "true", "outcome": "completed"}
    counts = [value(metrics, "llm_requests_total", model=name, **labels) for name in ("a", "b", "c", OTHER)]
    assert counts == [1, 1, None, 3]
    assert value(metrics, "llm_sidecar_label_overflow_total", label="model") == 2


def test_a_model_that_is_not_served_any_more_keeps_its_label_and_place() -> None:
    metrics = store(served=["a", "b"], max_models=2)
    metrics.learn_models(["c"])
    assert [metrics.model_label(name) for name in ("a", "b", "c")] == ["a", "b", OTHER]
    assert metrics.model_label(None) == OTHER


def test_a_page_never_exceeds_max_series_and_the_rest_goes_to_other() -> None:
    served = [f"model-{index}" for index in range(40)]
    metrics = store("full", served=served, max_series=5000)
    operations = ("chat", "text_completion", "responses", "messages", "generate")
    for name in served:
        for operation in operations:
            metrics.record(request(model=name, operation=operation, b1=101.0, f1=101.0, o1=101.0, e=102.0))
            metrics.gap_sink(metrics.model_label(name), operation)(0.01, None)
    got = samples(metrics)
    assert len(got) <= 5000
    assert len(got) > 5000 - reserved_samples() - 100, "named models are pushed out too early"
    assert sum(each for (name, _), each in got.items() if name == "llm_requests_total") == 200
    assert value(metrics, "llm_sidecar_label_overflow_total", label="model") > 100


def test_other_alone_stays_within_its_room() -> None:
    """Every closed label at every value: the bound that is kept free is one."""
    metrics = Metrics(MetricsConfig(detail="full"))
    for family in STORED:
        fill(metrics, family)
    assert len(samples(metrics)) <= reserved_samples()


def fill(metrics: Metrics, family: Family, values: tuple[str, ...] = ()) -> None:
    from sidecar.catalogue import LABELS

    if len(values) == len(family.labels):
        metrics.child(family.name, *values)
        return
    label = family.labels[len(values)]
    for each in (OTHER,) if label == "model" else LABELS[label] or [str(number) for number in range(15)]:
        fill(metrics, family, (*values, each))


# --- what is true at the moment, and what others count


def test_served_models_have_their_in_flight_gauge_at_zero() -> None:
    metrics = store(served=["m"])
    assert value(metrics, "llm_requests_in_flight", model="m", operation="chat") == 0
    assert value(metrics, "llm_requests_in_flight", model="m", operation="text_completion") == 0


def test_requests_in_flight_are_those_that_are_open_now() -> None:
    metrics = store()
    metrics.set_in_flight([("m", "chat"), ("m", "chat"), ("typed", "chat"), (None, "embeddings")])
    metrics.set_in_flight([("m", "chat"), ("typed", "chat")])
    got = {
        labels: each for (name, labels), each in samples(metrics).items() if name == "llm_requests_in_flight"
    }
    assert {tuple(dict(sorted(labels)).values()): each for labels, each in got.items()} == {
        ("m", "chat"): 1, ("m", "text_completion"): 0, ("n", "chat"): 0, ("n", "text_completion"): 0,
        (OTHER, "chat"): 1, (OTHER, "embeddings"): 0,
    }  # fmt: skip


def test_silent_streams() -> None:
    metrics = store()
    metrics.set_silence([0.5, 2.0, 61.5, 9.9])
    limits = [value(metrics, "llm_silent_streams", older_than=limit) for limit in ("2", "10", "60")]
    assert (limits, value(metrics, "llm_oldest_silent_stream_seconds")) == ([3, 1, 1], 61.5)
    metrics.set_silence([])
    assert value(metrics, "llm_silent_streams", older_than="2") == 0
    assert value(metrics, "llm_oldest_silent_stream_seconds") == 0


def test_what_the_proxy_counts_is_shown_as_it_is_when_the_page_is_rendered() -> None:
    metrics = store()
    rejected: dict[str, int] = {}
    metrics.take_counters(rejected, {"closed": 2}, {"relay": 3}, {"usage_asked": 4})
    rejected["max_connections"] = 1
    assert value(metrics, "llm_sidecar_rejected_requests_total", reason="max_connections") == 1
    assert value(metrics, "llm_sidecar_upstream_retries_total", reason="closed") == 2
    assert value(metrics, "llm_sidecar_observer_errors_total", stage="relay") == 3


def test_gauges_can_be_refreshed_before_a_page() -> None:
    metrics = store()
    metrics.refresh = lambda: metrics.set_silence([30.0])
    assert value(metrics, "llm_silent_streams", older_than="10") == 1


BAD_COUNTS = [-1, -(10**9), 10**9 + 1, 10**400]


@pytest.mark.parametrize("count", BAD_COUNTS)
def test_a_count_that_no_engine_can_mean_spoils_no_counter(count: int) -> None:
    metrics = store()
    metrics.record(request(input_tokens=count, output_tokens=5, observed=True))
    assert value(metrics, "llm_input_tokens_total", model="m", operation="chat") is None
    assert value(metrics, "llm_output_tokens_total", model="m", operation="chat") == 5


def test_a_wrong_name_or_number_of_labels_is_a_mistake_of_the_caller() -> None:
    metrics = store()
    with pytest.raises(KeyError):
        metrics.child("llm_nothing_total")
    with pytest.raises(ValueError, match="zip"):
        metrics.child("llm_requests_total", "m")


# --- exemplars


def test_an_exemplar_links_its_bucket_to_the_trace_in_openmetrics_only() -> None:
    metrics = store()
    metrics.record(request(f1=100.4, e=102.0), TRACE)
    (family,) = [
        f for f in parse_openmetrics(page(metrics, True)) if f.name == "llm_time_to_first_token_seconds"
    ]
    found = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    assert list(found) == ["0.5"]
    exemplar = found["0.5"]
    assert (exemplar.labels, exemplar.value) == ({"trace_id": TRACE}, pytest.approx(0.4))
    assert float(exemplar.timestamp) == 1.7e9 + 10.0  # the end of the request, by the clock on the wall
    assert TRACE not in page(metrics)


def test_without_an_exported_trace_there_is_no_exemplar() -> None:
    metrics = store()
    metrics.record(request(f1=100.4, e=102.0))
    assert TRACE not in page(metrics, True)


# --- the text


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_come_out_as_they_went_in(name: str, openmetrics: bool) -> None:
    metrics = store(served=[name])
    metrics.record(request(model=name, f1=100.5, e=101.0))
    models = {
        dict(labels)["model"] for key, labels in samples(metrics, openmetrics) if key == "llm_requests_total"
    }
    assert models == {name}


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_line_breaks_in_a_label_are_escaped(openmetrics: bool) -> None:
    metrics = store()
    metrics.counter("llm_sidecar_edits_total", 'a\nb"\\').inc()
    assert (("llm_sidecar_edits_total", frozenset({("result", 'a\nb"\\')}))) in samples(metrics, openmetrics)


NUMBERS = [
    (0, "0"),
    (1.5, "1.5"),
    (1e-07, "1e-07"),
    (float("inf"), "+Inf"),
    (float("-inf"), "-Inf"),
    (float("nan"), "NaN"),
]


@pytest.mark.parametrize(("number", "text"), NUMBERS)
def test_numbers(number: float, text: str) -> None:
    assert exposition.number(number) == text


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
def test_slices_are_small_and_join_to_the_whole(openmetrics: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = store(served=[f"m{index}" for index in range(40)])
    for name in metrics.models.served:
        metrics.record(request(model=name, f1=100.5, o1=100.5, b1=100.4, e=101.0), TRACE)
    pieces = list(metrics.render_slices(openmetrics))
    assert len(pieces) > 10
    for piece in pieces:
        lines = [line for line in piece.decode().splitlines() if not line.startswith("#")]
        assert len(lines) <= exposition.SLICE_SAMPLES
    monkeypatch.setattr(exposition, "SLICE_SERIES", 10**9)
    monkeypatch.setattr(exposition, "SLICE_SAMPLES", 10**9)
    whole = list(metrics.render_slices(openmetrics))
    assert len(whole) == 1
    assert b"".join(pieces) == whole[0]


def test_no_slice_holds_more_than_fifty_series() -> None:
    metrics = store(served=[f"m{index}" for index in range(60)])  # 50 labels and other
    gauges = [piece.count(b"llm_requests_in_flight{") for piece in metrics.render_slices(False)]
    assert (max(gauges), sum(gauges)) == (50, 102)


def test_a_page_may_be_rendered_while_requests_end() -> None:
    """Each series is as it is when its slice is rendered; new ones do not break the page."""
    names = [f"m{index}" for index in range(400)]
    metrics = store(served=names, max_models=400, max_series=100_000)
    fresh = iter(names)
    for _ in range(100):
        metrics.record(request(model=next(fresh), f1=100.5, e=101.0))
    parts = []
    for piece in metrics.render_slices(True):
        parts.append(piece)
        metrics.record(request(model=next(fresh), f1=100.5, e=101.0))
        metrics.record(request(model=names[0], f1=100.5, e=101.0))
    got = flat(parse_openmetrics((b"".join(parts) + exposition.END).decode()))
    for (name, labels), count in got.items():
        if name == "llm_request_duration_seconds_count":
            assert got["llm_request_duration_seconds_bucket", labels | {("le", "+Inf")}] == count


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        assert os.environ.get("CI") != "true", "promtool is missing: CI installs it"
        pytest.skip("promtool is not installed")
    return found


@pytest.mark.integration
def test_promtool_accepts_every_family_and_finds_nothing_to_say() -> None:
    metrics = store("full", served=HOSTILE)
    for family in STORED:
        fill(metrics, family)
    for name in HOSTILE:
        metrics.record(request(model=name, f1=100.5, e=101.0))
    done = subprocess.run(
        [promtool(), "check", "metrics"],
        input=page(metrics),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- cost: an order of size, so that a lock or a look-up on the hot path is noticed on any machine


def test_an_observation_costs_less_than_half_of_prometheus_clients() -> None:
    ours = store().histogram("llm_stall_seconds", "m")
    theirs = oracle.Histogram("x_seconds", "x", buckets=BY_NAME["llm_stall_seconds"].buckets, registry=None)
    cost = {
        each: min(timeit.repeat(lambda each=each: each.observe(1.2), number=2000, repeat=15))
        for each in (ours, theirs)
    }
    assert cost[ours] * 2 < cost[theirs]
