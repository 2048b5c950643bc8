"""The identities of the join: all parts are durations, and add up to what the client lived through."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core.join import PhaseBreakdown, join
from sidecar.core.record import RequestRecord
from sidecar.core.server_timings import ServerTimings


def record(**fields: Any) -> RequestRecord:
    """A stream: head at 100, body there at 100.1, connected at 100.15, first token at 101, last at 103."""
    stamps = {"t0": 100.0, "t_up": 100.1, "t_conn": 100.15, "f1": 101.0, "f_last": 103.0, "e": 103.1}
    given = {"operation": "chat", "streaming": True, "outcome": "completed", "choices": 1, **stamps, **fields}
    return RequestRecord(
        id="r", trace_id="", method="POST", model="m", status=200, wall=0.0, ended=104.0, **given
    )


def timings(**seconds: float) -> ServerTimings:
    return ServerTimings(**{"queue": 0.2, "prefill": 0.6, "decode": 1.9, **seconds})  # type: ignore[arg-type]


U = {"upload": 0.1, "connect": 0.05}
CASES: dict[str, tuple[RequestRecord, ServerTimings | None, str, dict[str, float]]] = {
    "all parts are known": (
        record(), timings(), "ok",
        {**U, "queue": 0.2, "prefill": 0.6, "unattributed": 0.05, "ttft": 1.0, "decode": 1.9, "stretch": 0.1,
         "generation": 2.0},
    ),
    "an engine that does not say its queue": (
        record(), ServerTimings(prefill=0.6, decode=1.9), "ok",
        {**U, "prefill": 0.6, "unattributed": 0.25, "ttft": 1.0, "decode": 1.9, "stretch": 0.1,
         "generation": 2.0},
    ),
    "the connection was there before the body": (
        record(t_conn=100.02), timings(), "ok",
        {"upload": 0.1, "connect": 0.0, "queue": 0.2, "prefill": 0.6, "unattributed": 0.1, "ttft": 1.0,
         "decode": 1.9, "stretch": 0.1, "generation": 2.0},
    ),
    "the answer began before the body was complete": (
        record(t_up=101.5, t_conn=100.02), ServerTimings(prefill=0.0, decode=1.9), "ok",
        {"upload": 1.0, "connect": 0.0, "prefill": 0.0, "unattributed": 0.0, "ttft": 1.0, "decode": 1.9,
         "stretch": 0.1, "generation": 2.0},
    ),
    "the first text was held back: the stretch is below zero": (
        record(), timings(prefill=0.3, decode=2.3), "ok",
        {**U, "queue": 0.2, "prefill": 0.3, "unattributed": 0.35, "ttft": 1.0, "decode": 2.3, "stretch": -0.3,
         "generation": 2.0},
    ),
    "below zero within the tolerance of 2 %": (
        record(), timings(queue=0.265), "ok",
        {**U, "queue": 0.265, "prefill": 0.6, "unattributed": -0.015, "ttft": 1.0, "decode": 1.9,
         "stretch": 0.1, "generation": 2.0},
    ),
    "below zero beyond it": (
        record(), timings(queue=0.28), "negative",
        {**U, "queue": 0.28, "prefill": 0.6, "unattributed": -0.03, "ttft": 1.0, "decode": 1.9, "stretch": 0.1,
         "generation": 2.0},
    ),
    "5 ms are within the tolerance of a short interval": (
        record(f1=100.2, f_last=100.2), ServerTimings(prefill=0.0545, decode=0.0), "ok",
        {**U, "prefill": 0.0545, "unattributed": -0.0045, "ttft": 0.2, "decode": 0.0, "stretch": 0.0,
         "generation": 0.0},
    ),
    "the engine says nothing": (record(), None, "missing", {**U, "ttft": 1.0, "generation": 2.0}),
    "the engine says only its queue": (
        record(), ServerTimings(queue=0.2), "missing", {**U, "queue": 0.2, "ttft": 1.0, "generation": 2.0},
    ),
    "several choices: the durations are of one of them": (
        record(choices=2), timings(), "ambiguous", {**U, "ttft": 1.0, "generation": 2.0},
    ),
    "cut in the middle: there is a first token, and no generation to compare": (
        record(outcome="truncated", e=None), timings(), "ok",
        {**U, "queue": 0.2, "prefill": 0.6, "unattributed": 0.05, "ttft": 1.0},
    ),
    "in one piece: the first token is the end less the decode": (
        record(streaming=False, f1=None, f_last=None), timings(), "ok",
        {**U, "queue": 0.2, "prefill": 0.6, "unattributed": 0.25, "ttft": 1.2, "decode": 1.9, "stretch": 0.0,
         "generation": 1.9},
    ),
    "in one piece, without a decode": (
        record(streaming=False, f1=None, f_last=None), ServerTimings(prefill=0.6), "missing",
        {**U, "prefill": 0.6, "ttft": 3.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "said", "status", "parts"), CASES.values(), ids=CASES.keys())
def test_where_the_time_went(
    request_: RequestRecord, said: ServerTimings | None, status: str, parts: dict[str, float]
) -> None:
    breakdown = join(request_, said, "in_band")
    assert breakdown is not None
    assert breakdown.status == status
    assert breakdown.parts() == pytest.approx(parts)
    assert breakdown.source == ("none" if said is None or status == "ambiguous" else "in_band")


NONE = {
    "no first token came": record(f1=None, f_last=None, outcome="timeout"),
    "no generation": record(operation="embeddings"),
    "in one piece, and it failed": record(streaming=False, f1=None, outcome="upstream_error"),
}


@pytest.mark.parametrize("request_", NONE.values(), ids=NONE.keys())
def test_there_is_nothing_to_join(request_: RequestRecord) -> None:
    assert join(request_, timings(), "in_band") is None


def test_what_may_be_another_requests_is_not_used() -> None:
    breakdown = join(record(), timings(), "span", ambiguous=True)
    assert breakdown is not None
    assert (breakdown.status, breakdown.source, breakdown.queue) == ("ambiguous", "none", None)


def test_what_was_held_back_is_told() -> None:
    held = join(record(), timings(prefill=0.3, decode=2.3), "in_band")
    assert held is not None
    assert held.held_back == pytest.approx(0.3)
    unary = join(record(streaming=False), timings(), "in_band")
    assert unary is not None
    assert unary.held_back == 0.0


TIMES = st.floats(0, 1e4)


@given(st.lists(TIMES, min_size=6, max_size=6), TIMES, TIMES, TIMES, st.booleans())
def test_the_parts_of_a_sound_join_add_up_and_no_clock_matters(
    stamps: list[float], queue: float, prefill: float, decode: float, streaming: bool
) -> None:
    """Stamps in any order, shifted by any amount: differences alone count."""

    def shifted(by: float) -> PhaseBreakdown | None:
        t0, t_up, t_conn, f1, f_last, e = (by + stamp for stamp in stamps)
        first, last = min(f1, f_last), max(f1, f_last)
        one = record(
            t0=min(t0, t_up, first, e),
            t_up=t_up,
            t_conn=t_conn,
            f1=first,
            f_last=last,
            e=e,
            streaming=streaming,
        )
        return join(one, ServerTimings(queue=queue, prefill=prefill, decode=decode), "span")

    here, there = shifted(0.0), shifted(1e5)
    assert here is not None
    assert there is not None
    assert there.parts() == pytest.approx(here.parts(), abs=1e-6)
    parts = here.parts()
    total = sum(parts[name] for name in ("upload", "connect", "queue", "prefill", "unattributed"))
    assert total == pytest.approx(parts["ttft"], abs=1e-6)
    assert parts["decode"] + parts["stretch"] == pytest.approx(parts["generation"], abs=1e-6)
    assert parts["upload"] >= 0
    assert parts["connect"] >= 0
