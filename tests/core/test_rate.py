"""The cap on exports: worked out by hand."""

from sidecar.core.rate import RateCap


def test_a_seconds_worth_at_once_and_then_at_that_rate() -> None:
    cap = RateCap(10, now=100.0)
    assert [cap.take(3, 100.0) for _ in range(4)] == [True, True, True, False]
    assert cap.take(1, 100.0)
    assert not cap.take(1, 100.05)
    assert cap.take(1, 100.11)


def test_a_quiet_hour_saves_no_more_than_a_seconds_worth() -> None:
    cap = RateCap(10, now=0.0)
    assert cap.take(10, 3600.0)
    assert not cap.take(1, 3600.0)
