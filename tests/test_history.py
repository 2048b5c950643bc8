"""Three bounded views: the newest, the slowest of the last hour, the newest of the failed."""

from typing import Any

import pytest

from sidecar.core.record import RequestRecord
from sidecar.history import History

STREAMED = {"streaming": True, "observed": True}


def request(name: str, at: float = 0.0, ttft: float | None = 0.1, **fields: Any) -> RequestRecord:
    """A streamed request that ended at `at`, one second after it began."""
    given = {"operation": "chat", "model": "m", "status": 200, "outcome": "completed", **STREAMED, **fields}
    f1 = None if ttft is None else at - 1.0 + ttft
    return RequestRecord(
        id=name, trace_id="", method="POST", wall=0.0, t0=at - 1.0, f1=f1, o1=f1, e=at, ended=at, **given
    )


def names(history: History, view: str, now: float | None = None) -> list[object]:
    return [row["id"] for row in history.as_json(now)[view]]


def test_the_newest_come_first_and_the_oldest_go() -> None:
    history = History(recent=3)
    for index in range(5):
        history.add(request(f"r{index}", float(index)))
    assert names(history, "recent") == ["r4", "r3", "r2"]


OUTCOMES = {
    "completed": False,
    "client_error": False,
    "client_disconnected_before_output": True,
    "client_disconnected": True,
    "overloaded": True,
    "upstream_error": True,
    "upstream_unreachable": True,
    "upstream_reset": True,
    "truncated": True,
    "error_in_stream": True,
    "timeout": True,
}


@pytest.mark.parametrize(("outcome", "failed"), OUTCOMES.items())
def test_what_counts_as_failed(outcome: str, failed: bool) -> None:
    history = History()
    history.add(request("r", outcome=outcome))
    assert names(history, "failed") == (["r"] if failed else [])


def test_failed_ones_are_bounded_too() -> None:
    history = History(failed=2)
    for index in range(4):
        history.add(request(f"r{index}", outcome="timeout"))
    assert names(history, "failed") == ["r3", "r2"]


def test_slow_is_by_ttft_when_streamed_by_the_wait_without_a_token_and_by_e2e_otherwise() -> None:
    history = History()
    history.add(request("slow first token", ttft=0.9))
    history.add(request("quick first token", ttft=0.1))
    history.add(request("unary", streaming=False))
    history.add(request("never a token", ttft=None, outcome="truncated", z=-0.5))
    assert names(history, "slowest") == ["unary", "slow first token", "never a token", "quick first token"]


def test_the_slowest_are_kept_however_many_come_after() -> None:
    history = History(recent=5, slowest=2)
    for index, ttft in enumerate((0.2, 0.9, 0.3, 0.8, 0.1, 0.4)):
        history.add(request(f"r{index}", ttft=ttft))
    for index in range(100):
        history.add(request(f"later{index}", 10.0, ttft=0.05))
    assert names(history, "slowest") == ["r1", "r3"]


def test_the_slowest_go_after_an_hour_and_the_next_slowest_are_still_known() -> None:
    """As many as fit are kept of every five minutes, not of the hour."""
    history = History(slowest=2)
    for index in range(4):
        history.add(request(f"early{index}", 10.0, ttft=0.9 + index / 100))
        history.add(request(f"late{index}", 1810.0, ttft=0.5 + index / 100))
    assert names(history, "slowest", 1900.0) == ["early3", "early2"]
    assert names(history, "slowest", 3610.0 + 300.0) == ["late3", "late2"]
    assert names(history, "slowest", 1810.0 + 3600.0 + 300.0) == []


def test_an_hour_of_a_new_step_forgets_the_old_ones_without_being_read() -> None:
    history = History(slowest=1)
    for step in range(100):
        history.add(request(f"r{step}", step * 300.0 + 1.0))
    assert sum(len(heap) for heap in history._steps.values()) <= 14


def test_equal_ones_are_not_compared_by_what_they_are() -> None:
    history = History(slowest=3)
    for index in range(10):
        history.add(request(f"r{index}"))
    assert len(names(history, "slowest")) == 3


def test_rows_are_those_of_the_record() -> None:
    history = History()
    record = request("r", outcome="timeout")
    history.add(record)
    row = {**record.as_json(), "join": None, "phases": None}
    assert history.as_json() == {
        "recent": [row],
        "slowest": [row],
        "failed": [row],
    }
