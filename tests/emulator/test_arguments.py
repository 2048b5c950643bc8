"""Values on the command line."""

import argparse
import math

import pytest

from sidecar.emulator import arguments
from sidecar.emulator.costs import Pause, Slowdown

GOOD = [
    (arguments.address, "127.0.0.1:0", ("127.0.0.1", 0)),
    (arguments.address, ":8000", ("127.0.0.1", 8000)),
    (arguments.address, "[::1]:80", ("::1", 80)),
    (arguments.count, "7", 7),
    (arguments.ratio, "0.25", 0.25),
    (arguments.seconds, "250us", 0.00025),
    (arguments.seconds, "1.5s", 1.5),
    (arguments.seconds, "2m", 120.0),
    (arguments.clock_step, "-3600@1.5", (-3600.0, 1.5)),
    (arguments.slowdown, "3", Slowdown(3.0, 0.0, math.inf)),
    (arguments.slowdown, "0.5@60-90", Slowdown(0.5, 60.0, 90.0)),
    (arguments.pause, "500ms@30", Pause(0.5, 30.0)),
    (arguments.turn, "12", (12, 1)),
    (arguments.turn, "0/5", (0, 5)),
]


@pytest.mark.parametrize(("read", "text", "expected"), GOOD)
def test_values(read, text, expected) -> None:
    assert read(text) == expected


BAD = [
    (arguments.address, "localhost", "is not HOST:PORT"),
    (arguments.count, "0", "at least 1"),
    (arguments.count, "-1", "at least 1"),
    (arguments.ratio, "1.5", "from 0 to 1"),
    (arguments.ratio, "nan", "from 0 to 1"),
    (arguments.ratio, "much", "from 0 to 1"),
    (arguments.seconds, "20", "write it with a unit"),
    (arguments.seconds, "20h", "is no duration"),
    (arguments.clock_step, "5", "is not SECONDS@AT"),
    (arguments.slowdown, "3@", "is not FACTOR"),
    (arguments.slowdown, "x", "is not FACTOR"),
    (arguments.pause, "2s", "is not TIME@AT"),
    (arguments.pause, "2@30", "is no duration"),
    (arguments.turn, "12/0", "is not TOKENS"),
]


@pytest.mark.parametrize(("read", "text", "said"), BAD)
def test_bad_values_are_refused_with_a_reason(read, text, said) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        read(text)
