"""What an engine counted between two readings; nothing when it began anew meanwhile."""

from collections.abc import Mapping
from typing import Any

import pytest

from sidecar.core.engine_window import EngineWindow, Increase, began_anew, between
from sidecar.core.signals import Distribution, EngineSignals, Key, Reading

OUT, QUEUE = Key("output_tokens", "m"), Key("queue", "m")


def distribution(count: float, total: float, bounds: tuple[float, ...] = (0.3,)) -> Distribution:
    return Distribution(bounds, (count,) + (0.0,) * len(bounds), count, total)


def signals(
    counters: Mapping[Key, float] = {},
    distributions: Mapping[Key, Distribution] = {},
    started: float | None = 1.0,
    engine: str = "vllm",
) -> EngineSignals:
    return EngineSignals(engine, started, {}, counters, distributions)


def test_a_window_is_the_difference_of_two_readings() -> None:
    earlier = Reading(10.0, signals({OUT: 100}, {QUEUE: distribution(4, 2.0)}))
    later = Reading(15.5, signals({OUT: 130}, {QUEUE: distribution(6, 3.5)}))
    assert between(earlier, later) == EngineWindow(10.0, 15.5, {OUT: 30}, {QUEUE: Increase(2, 1.5)})


BEFORE = signals({OUT: 100}, {QUEUE: distribution(4, 2.0)})
CASES: dict[str, tuple[EngineSignals, Any]] = {
    "nothing happened": (BEFORE, ({OUT: 0}, {QUEUE: Increase(0, 0)})),
    "a counter fell": (signals({OUT: 99}, {QUEUE: distribution(5, 3.0)}), None),
    "a distribution counts fewer": (signals({OUT: 101}, {QUEUE: distribution(3, 3.0)}), None),
    "another start, though all counters are higher": (
        signals({OUT: 101}, {QUEUE: distribution(5, 3.0)}, 2.0), None),
    "another engine": (signals({OUT: 101}, {QUEUE: distribution(5, 3.0)}, engine="sglang"), None),
    "a start that is not told any more": (signals({OUT: 101}, {}, None), ({OUT: 1}, {})),
    "a label vanished": (signals({}, {QUEUE: distribution(5, 3.0)}), ({}, {QUEUE: Increase(1, 1.0)})),
    "a label appeared": (
        signals({OUT: 101, Key("output_tokens", "n"): 7}, {QUEUE: distribution(5, 3.0)}),
        ({OUT: 1}, {QUEUE: Increase(1, 1.0)}),
    ),
    "the layout of buckets changed": (
        signals({OUT: 101}, {QUEUE: distribution(5, 3.0, (0.1, 0.2, 1.0))}),
        ({OUT: 1}, {QUEUE: Increase(1, 1.0)}),
    ),
    "the engine's wall clock stepped back: no mean, and no reset": (
        signals({OUT: 101}, {QUEUE: distribution(5, -3598.0)}),
        ({OUT: 1}, {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("after", "window"), CASES.values(), ids=CASES)
def test_between(after: EngineSignals, window: Any) -> None:
    expected = None if window is None else EngineWindow(1.0, 6.0, *window)
    assert between(Reading(1.0, BEFORE), Reading(6.0, after)) == expected
    assert began_anew(BEFORE, after) is (window is None)
