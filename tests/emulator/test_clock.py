"""A wall clock that is wrong."""

import pytest

from sidecar.emulator.clock import ClockError, WallClock

# error; instants (monotonic, the engine started at 100 and at unix 5000); what the clock shows then
SHOWN = {
    "a right clock": (ClockError(), {100.0: 5000.0, 160.0: 5060.0}),
    "an hour slow": (ClockError(offset=-3600.0), {100.0: 1400.0, 160.0: 1460.0}),
    "gaining half a second a second": (ClockError(drift=0.5), {100.0: 5000.0, 160.0: 5090.0}),
    "running backwards": (ClockError(drift=-2.0), {100.0: 5000.0, 160.0: 4940.0}),
    "set twice": (
        ClockError(steps=((-100.0, 10.0), (30.0, 20.0))),
        {109.9: 5009.9, 110.0: 4910.0, 119.0: 4919.0, 121.0: 4951.0},
    ),
    "before it started": (ClockError(drift=0.5), {90.0: 4985.0}),
}


@pytest.mark.parametrize(("error", "expected"), SHOWN.values(), ids=SHOWN)
def test_what_it_shows(error, expected) -> None:
    clock = WallClock(unix=5000.0, origin=100.0, error=error)
    assert {at: clock.at(at) for at in expected} == pytest.approx(expected)
