"""Every recording of a real engine through the core, against values worked out by `data/work_out.py`.

With its own read times each number has to agree; with the same bytes in other pieces everything that is no
time has to agree.
"""

import importlib.util
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.core.observation import Observation
from sidecar.core.record import RequestRecord
from tests.replay import (
    DATA,
    SECOND,
    Part,
    Recording,
    body_of,
    expectations,
    recording,
    recording_names,
    response_parts,
)

TOLERANCE = 1e-6  # seconds
LARGEST_READ = 65536  # as a socket read of the proxy; more is not decoded at once
NAMES = recording_names()
SHORT = [name for name in NAMES if len(recording(name).raw) < 12_000]


class Replay:
    """One recording on its way through an Observation; `gaps` are what the gap sink was told."""

    def __init__(self, source: Recording) -> None:
        self.source = source
        self.gaps: list[tuple[float, int | None]] = []
        self.observation = Observation(
            t0=0.0,
            method=source.method,
            path=source.path.encode(),
            headers=source.headers,
            request_id="r",
            trace_id="0" * 32,
            wall=0.0,
            gap_sink=lambda _: lambda gap, tokens: self.gaps.append((gap, tokens)),
        )
        self.observation.request_data(source.body, 0.0)
        self.observation.request_end(0.0)
        self.observation.connected(0.0, False)
        self.observation.sent(source.sent_at)

    def play(self, parts: Iterable[tuple[float, Part]]) -> RequestRecord:
        """Head, body pieces and end as they came; the end is the recording's own, if the parts have none."""
        for now, part in parts:
            if part.kind == "head":
                assert part.head is not None
                self.observation.response_head(part.head.status, part.head.headers, now)
            elif part.kind == "body":
                self.observation.response_data(part.data, now)
            else:
                return self.observation.finish("clean", now)
        return self.observation.finish(expectations()[self.source.name]["end"], self.source.ended_at)


def replayed(name: str) -> tuple[RequestRecord, Replay]:
    replay = Replay(recording(name))
    return replay.play(response_parts(replay.source.reads)), replay


def in_pieces(source: Recording, sizes: Iterator[int]) -> RequestRecord:
    """The same body in other pieces, each a read of its own."""
    (at, head), *rest = response_parts(source.reads)
    body, pieces, start = body_of(source.reads), [(at, head)], 0
    while start < len(body):
        size = next(sizes)
        at += 1e-6
        pieces.append((at, Part("body", data=body[start : start + size])))
        start += size
    pieces += [(at, part) for _, part in rest if part.kind == "end"]
    return Replay(source).play(pieces)


def seconds(nanoseconds: int | None) -> Any:
    return None if nanoseconds is None else pytest.approx(nanoseconds / SECOND, abs=TOLERANCE, rel=0)


WHAT_IS_NO_TIME = (
    "status", "outcome", "choices", "chunks", "first_chunk_tokens", "input_tokens", "cached_input_tokens",
    "output_tokens", "reasoning_tokens",
)  # fmt: skip


def what_is_no_time(record: RequestRecord) -> dict[str, Any]:
    measured = {key: getattr(record, key) for key in WHAT_IS_NO_TIME}
    return {**measured, "finish_reasons": sorted(record.finish_reasons)}


def same_things_expected(name: str) -> dict[str, Any]:
    expected = expectations()[name]
    measured = {key: expected[key] for key in WHAT_IS_NO_TIME}
    return {**measured, "finish_reasons": sorted(expected["finish_reasons"])}


def test_the_expected_values_are_what_the_program_works_out() -> None:
    spec = importlib.util.spec_from_file_location("work_out", DATA / "work_out.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    text = program.as_text({name: program.work_out(name) for name in program.names()})
    assert text == (DATA / "streams" / "expected.json").read_text()
    assert sorted(json.loads(text)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_times_are_those_of_the_reads(name: str) -> None:
    record, _ = replayed(name)
    expected = expectations()[name]
    measured = {
        "header_ns": record.headers_time,
        "first_byte_ns": record.ttfb,
        "ttft_ns": record.ttft,
        "ttfo_ns": record.ttfo,
        "reasoning_ns": record.reasoning,
        "last_token_ns": record.f_last,
        "longest_gap_ns": record.longest_gap,
    }
    assert measured == {key: seconds(expected[key]) for key in measured}
    assert [stall.duration for stall in record.stalls] == [seconds(ns) for ns in expected["stalls_ns"]]
    assert record.reads == expected["reads"]


@pytest.mark.parametrize("name", NAMES)
def test_every_gap_is_reported_once_with_its_tokens(name: str) -> None:
    _, replay = replayed(name)
    expected = expectations()[name]
    assert [gap for gap, _ in replay.gaps] == [seconds(ns) for ns in expected["gaps_ns"]]
    tokens = expected["gap_tokens"] or [None] * len(replay.gaps)
    assert [count for _, count in replay.gaps] == tokens


@pytest.mark.parametrize("name", NAMES)
def test_time_per_output_token_and_its_basis(name: str) -> None:
    record, _ = replayed(name)
    expected = expectations()[name]
    tpot = expected["tpot_s"]
    assert record.tpot == (None if tpot is None else pytest.approx(tpot, abs=TOLERANCE, rel=0))
    assert record.tpot_basis == expected["tpot_basis"]


@pytest.mark.parametrize("name", NAMES)
def test_counts_usage_finish_reasons_and_outcome(name: str) -> None:
    record, replay = replayed(name)
    assert what_is_no_time(record) == same_things_expected(name)
    assert not record.buffered
    assert replay.observation.faults == 0


@pytest.mark.parametrize("name", [name for name in NAMES if expectations()[name]["status"] < 400])
def test_streaming_is_told_by_the_response(name: str) -> None:
    record, _ = replayed(name)
    assert record.streaming is expectations()[name]["streamed"]


@pytest.mark.parametrize("name", NAMES)
def test_request_duration_ends_with_the_body(name: str) -> None:
    record, _ = replayed(name)
    expected = expectations()[name]
    assert record.e2e == (seconds(expected["end_ns"]) if expected["end"] == "clean" else None)


@pytest.mark.parametrize("name", NAMES)
def test_waiting_in_vain_is_kept_as_the_time_waited(name: str) -> None:
    record, _ = replayed(name)
    expected = expectations()[name]
    in_vain = expected["streamed"] and expected["ttft_ns"] is None
    assert record.waited == (seconds(expected["end_ns"]) if in_vain else None)


@pytest.mark.parametrize("name", NAMES)
def test_largest_reads_count_the_same(name: str) -> None:
    record = in_pieces(recording(name), iter(lambda: LARGEST_READ, 0))
    assert what_is_no_time(record) == same_things_expected(name)


@pytest.mark.parametrize("name", SHORT)
def test_byte_by_byte_counts_the_same(name: str) -> None:
    record = in_pieces(recording(name), iter(lambda: 1, 0))
    assert what_is_no_time(record) == same_things_expected(name)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(NAMES), data=st.data())
def test_random_splits_count_the_same(name: str, data: st.DataObject) -> None:
    source = recording(name)
    end = len(body_of(source.reads))
    cuts = {*data.draw(st.lists(st.integers(0, end), max_size=40)), *range(0, end, LARGEST_READ), end}
    sizes = iter([b - a for a, b in pairwise(sorted(cuts))])
    assert what_is_no_time(in_pieces(source, sizes)) == same_things_expected(name)
