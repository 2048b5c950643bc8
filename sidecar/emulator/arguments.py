"""Values on the emulator's command line -> what they mean; each raises ArgumentTypeError with a reason."""

import argparse
import math
import re

from sidecar.emulator.costs import Pause, Slowdown

IN_A_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0, "m": 1 / 60}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m)")
NUMBER = r"\d+(?:\.\d+)?"
SIGNED = re.compile(rf"([+-]?{NUMBER})@({NUMBER})")
SLOWDOWN = re.compile(rf"({NUMBER})(?:@({NUMBER})(?:-({NUMBER}))?)?")
TURN = re.compile(r"(\d+)(?:/([1-9]\d*))?")


def address(text: str) -> tuple[str, int]:
    """HOST:PORT; the host may be left out."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def count(text: str) -> int:
    """A number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def ratio(text: str) -> float:
    """From 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio from 0 to 1")
    return value


def seconds(text: str) -> float:
    """A duration with a unit."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write it with a unit, such as 80ms")
    return float(match[1]) / IN_A_SECOND[match[2]]


def clock_step(text: str) -> tuple[float, float]:
    """SECONDS@AT: a step of the wall clock, seconds after the start."""
    match = SIGNED.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECONDS@AT, such as -3600@10")
    return float(match[1]), float(match[2])


def slowdown(text: str) -> Slowdown:
    """FACTOR[@FROM[-TO]]: seconds after the start."""
    match = SLOWDOWN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not FACTOR[@FROM[-TO]], such as 3 or 3@60-120")
    return Slowdown(float(match[1]), float(match[2] or 0), float(match[3] or math.inf))


def pause(text: str) -> Pause:
    """TIME@AT: a duration with a unit, and seconds after the start."""
    time, sign, at = text.partition("@")
    if not sign or re.fullmatch(NUMBER, at) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not TIME@AT, such as 2s@30")
    return Pause(seconds(time), float(at))


def turn(text: str) -> tuple[int, int]:
    """TOKENS[/EVERY]: after how many tokens, of each how-manieth request."""
    match = TURN.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOKENS[/EVERY], such as 12 or 12/5")
    return int(match[1]), int(match[2] or 1)
