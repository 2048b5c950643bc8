"""Where the time of one sequence went."""

import pytest

from sidecar.emulator.sequence import Sequence, Work


def after(tokens: int, first: float | None, last: float | None, started: float | None = 12.0) -> Sequence:
    """Arrived at 10, queued at 10.5, three tokens to give."""
    return Sequence(0, Work(6, 3), 10.0, 10.5, started, first, last, tokens)


UNFINISHED = {
    "it waits": after(0, None, None, started=None),
    "it computes its prompt": after(0, None, None),
    "it has some tokens": after(2, 15.0, 17.0),
}


@pytest.mark.parametrize("sequence", UNFINISHED.values(), ids=UNFINISHED)
def test_there_are_no_phases_before_the_last_token(sequence) -> None:
    assert not sequence.finished
    assert sequence.phases is None


def test_phases_add_up_to_the_time_since_it_was_queued() -> None:
    sequence = after(3, 15.0, 19.0)
    assert sequence.phases == (15.0, 19.0, 1.5, 3.0, 4.0)
    assert sum(sequence.phases[2:]) == sequence.last - sequence.queued
    assert sequence.length == 9
