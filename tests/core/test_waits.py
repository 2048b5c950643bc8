"""Client write wait: how much there was up to a time."""

from sidecar.core.waits import WriteWaits


def test_waits_that_are_over_add_up() -> None:
    waits = WriteWaits()
    waits.over(1.0, 2.0)
    waits.over(5.0, 5.5)
    assert (waits.total, waits.until(9.0), waits.mark) == (1.5, 1.5, 5.5)


def test_an_open_wait_counts_up_to_now() -> None:
    waits = WriteWaits()
    waits.over(1.0, 2.0)
    waits.opened(5.0)
    assert waits.until(7.0) == 3.0
    assert waits.mark == float("inf")
    assert waits.announced
    waits.over(5.0, 8.0)
    assert (waits.until(9.0), waits.announced, waits.mark) == (4.0, False, 8.0)


def test_an_open_wait_may_turn_out_to_be_none() -> None:
    waits = WriteWaits()
    waits.opened(5.0)
    waits.opened(None)
    assert (waits.until(9.0), waits.mark) == (0.0, float("-inf"))


def test_the_end_of_the_exchange_ends_an_open_wait() -> None:
    waits = WriteWaits()
    waits.opened(5.0)
    waits.settle(6.0)
    waits.settle(9.0)
    assert waits.total == 1.0


def test_a_wait_that_ends_before_it_began_is_nothing() -> None:
    waits = WriteWaits()
    waits.over(5.0, 4.0)
    assert waits.total == 0.0
