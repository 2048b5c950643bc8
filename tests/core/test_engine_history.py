"""Runs of an engine, and several engines behind one address."""

import pytest

from sidecar.core.engine_history import KEPT_READINGS, EngineHistory
from sidecar.core.signals import EngineSignals, Key, Reading

OUT, FINISHED = Key("output_tokens", "m"), Key("requests_finished", "m", "stop")


def history(pages: list[tuple[float | None, float]]) -> EngineHistory:
    """Of readings (start, tokens), one every 5 s; every ten tokens end a request."""
    found = EngineHistory()
    for index, (started, tokens) in enumerate(pages):
        counters = {OUT: tokens, FINISHED: tokens // 10}
        found.add(Reading(5.0 * index, EngineSignals("vllm", started, {}, counters, {})))
    return found


def silent(*tokens: float) -> list[tuple[float | None, float]]:
    """Of an engine that does not tell its start."""
    return [(None, count) for count in tokens]


CASES = {  # pages; resets; is it several engines; readings of the run that goes on
    "one engine that works": ([(1, 0), (1, 50), (1, 90)], 0, False, 3),
    "an engine that restarts": ([(1, 100), (2, 0), (2, 50)], 1, False, 2),
    "an engine that crashes again and again": ([(1, 100), (2, 3), (3, 100), (4, 1), (5, 4)], 4, False, 1),
    "a restart is seen by its start alone": ([(1, 10), (2, 20)], 1, False, 1),
    "two engines in turn, told by their starts": ([(1, 100), (2, 500), (1, 101)], 2, True, 0),
    "two idle engines in turn": ([(1, 0), (2, 0), (1, 0)], 2, True, 0),
    "no start told: a restart": (silent(100, 0, 20), 1, False, 2),
    "no start told: two restarts, the counters low": (silent(12, 50, 20, 90), 1, False, 2),
    "no start told: two engines in turn": (silent(100, 500, 101, 505, 102), 2, True, 0),
    "no start told: two engines by chance": (silent(100, 101, 500, 102, 103, 506, 104), 2, True, 0),
    "no start told: three engines in turn": (silent(100, 500, 900, 101, 501, 901, 102), 2, True, 0),
    "one process that begins its counters anew": (
        [(1, 100), (1, 0), (1, 50), (1, 0), (1, 60), (1, 0), (1, 70), (1, 0)],
        4,
        False,
        1,
    ),
}


@pytest.mark.parametrize(("pages", "resets", "several", "kept"), CASES.values(), ids=CASES)
def test_runs(pages: list[tuple[float | None, float]], resets: int, several: bool, kept: int) -> None:
    found = history(pages)
    assert (found.resets, found.several, len(found.readings)) == (resets, several, kept)


def test_the_window_is_that_of_the_last_two_readings_of_one_run() -> None:
    window = history([(1, 0), (1, 50), (1, 90)]).window
    assert window is not None
    assert (window.start, window.end, window.counters[OUT]) == (5.0, 10.0, 40)
    assert history([(1, 10), (2, 20)]).window is None
    assert history([(1, 10)]).window is None
    assert history([]).window is None
    assert history([]).latest is None


def test_memory_has_a_bound() -> None:
    assert len(history([(1, tokens) for tokens in range(1000)]).readings) == KEPT_READINGS
