"""The command line of `sidecar emulate`."""

import argparse

import pytest

from sidecar.commands import emulate
from sidecar.emulator.schedule import TimeModel


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    emulate.add_arguments(parser)
    return parser.parse_args(arguments)


def test_options_become_the_time_model_in_seconds() -> None:
    args = parsed(
        *("--prefill-time", "80ms", "--prefill-ms-per-token", "0.5", "--token-time", "1.5s"),
        *("--jitter", "0.1", "--slots", "3", "--seed", "7", "--model", "a", "--model", "b"),
    )
    options = emulate._options(args)
    assert options.times == TimeModel(0.08, 0.0005, 1.5, 0.1, 3)
    assert (options.models, options.seed) == (("a", "b"), 7)


ADDRESSES = {"127.0.0.1:0": ("127.0.0.1", 0), ":8000": ("127.0.0.1", 8000), "[::1]:80": ("::1", 80)}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.items())
def test_addresses(text, expected) -> None:
    assert parsed("--listen", text).listen == expected


BAD = {
    "a duration without a unit": (("--token-time", "20"), "write it with a unit"),
    "an unknown unit": (("--token-time", "20h"), "is no duration"),
    "an address without a port": (("--listen", "localhost"), "is not HOST:PORT"),
    "no slots": (("--slots", "0"), "at least 1"),
    "jitter above one": (("--jitter", "1.5"), "from 0 to 1"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD)
def test_bad_options_are_refused_with_a_reason(arguments, said) -> None:
    with pytest.raises(argparse.ArgumentError, match=said):
        parsed(*arguments)
