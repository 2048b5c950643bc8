"""Percentiles and counts of the demo, from pages written by hand."""

import math

import pytest

from sidecar.emulator.readings import Page, Readings, bucket_quantile, exact_quantile, lag, read_page

PAGE = """\
# TYPE llm_requests counter
llm_requests_total{model="a",operation="chat",streaming="true",outcome="completed"} 3
llm_requests_total{model="a",operation="chat",streaming="false",outcome="completed"} 2
llm_requests_total{model="a",operation="chat",streaming="true",outcome="truncated"} 0
llm_requests_total{model="a",operation="chat",streaming="true",outcome="client_error"} 9
# TYPE llm_requests_in_flight gauge
llm_requests_in_flight{model="a",operation="chat"} 2
llm_requests_in_flight{model="b",operation="chat"} 1
# TYPE llm_inter_token_latency_seconds histogram
llm_inter_token_latency_seconds_bucket{model="a",basis="chunks",le="0.01"} 1
llm_inter_token_latency_seconds_bucket{model="a",basis="chunks",le="+Inf"} 2
llm_inter_token_latency_seconds_bucket{model="a",basis="per_chunk_usage",le="0.01"} 4
llm_inter_token_latency_seconds_bucket{model="a",basis="per_chunk_usage",le="+Inf"} 4
"""


def test_a_page_is_summed_over_its_labels() -> None:
    assert read_page(PAGE) == Page({0.01: 5, math.inf: 6}, {"client_error": 9, "completed": 5}, 3)


# cumulative buckets; quantile; expected, as histogram_quantile has it
BUCKETS = {
    "in the middle of a bucket": ({1.0: 0, 2.0: 10, math.inf: 10}, 0.5, 1.5),
    "the first bucket begins at zero": ({1.0: 10, math.inf: 10}, 0.25, 0.25),
    "beyond the last bound it is that bound": ({1.0: 1, math.inf: 10}, 0.99, 1.0),
    "buckets without values are passed over": ({1.0: 5, 2.0: 5, 4.0: 10, math.inf: 10}, 0.9, 3.6),
    "nothing counted": ({1.0: 0, math.inf: 0}, 0.5, None),
    "no buckets": ({}, 0.5, None),
}


@pytest.mark.parametrize(("buckets", "q", "expected"), BUCKETS.values(), ids=BUCKETS)
def test_quantiles_of_buckets(buckets, q, expected) -> None:
    assert bucket_quantile(buckets, q) == (None if expected is None else pytest.approx(expected))


EXACT = {
    "of a hundred values": (range(1, 101), 0.95, 95),
    "of one": ([7], 0.99, 7),
    "of four, the median is the second": ([1, 2, 3, 4], 0.5, 2),
    "of none": ([], 0.5, None),
}


@pytest.mark.parametrize(("values", "q", "expected"), EXACT.values(), ids=EXACT)
def test_quantiles_of_values(values, q, expected) -> None:
    assert exact_quantile(values, q) == expected


def request(**values) -> dict:
    return {"id": "x", "outcome": "completed", "ttft": None, "ttfo": None, "tpot": None, "e2e": None} | values


def test_a_view_leaves_out_what_was_not_observed() -> None:
    requests = [request(ttft=0.1, e2e=1.0), request(ttft=0.3), request(outcome="client_error", e2e=0.001)]
    rows = {row.name: row for row in Readings().view(read_page(PAGE), requests, now=0.0).rows}
    assert (rows["TTFT"].quantiles, rows["TTFT"].count) == ((0.1, 0.3, 0.3), 2)
    assert (rows["E2E"].quantiles, rows["E2E"].count) == ((1.0, 1.0, 1.0), 1)
    assert (rows["TPOT"].quantiles, rows["TPOT"].count) == ((None, None, None), 0)
    assert rows["ITL"].count == 6


def test_inter_token_latency_is_of_the_window_once_that_is_full() -> None:
    readings = Readings()

    def itl(now: float, fast: int, slow: int):
        page = Page({0.01: fast, 0.02: fast + slow, math.inf: fast + slow}, {}, 0)
        return next(row for row in readings.view(page, [], now).rows if row.name == "ITL")

    assert itl(0.0, 10, 0).count == 10
    assert itl(15.0, 20, 0).source == "histogram, whole run"
    late = itl(31.0, 20, 4)
    assert (late.count, late.source) == (24, "histogram, whole run"), "only 16 s are known"
    late = itl(44.0, 20, 8)
    assert (late.count, late.source) == (8, "histogram, last 29 s")
    assert late.quantiles[0] == pytest.approx(0.015)


def test_lag_is_matched_request_by_request() -> None:
    requests = [
        request(id="a", ttft=0.11),
        request(id="b", ttft=0.25),
        request(id="c", ttft=9.0),
        request(id="d"),
    ]
    truths = [{"id": "a", "first_text": 0.1}, {"id": "b", "first_text": 0.2}, {"id": "d", "first_text": 0.1}]
    row = lag(requests, truths)
    assert row.count == 2
    assert row.quantiles == pytest.approx((0.01, 0.05, 0.05))
