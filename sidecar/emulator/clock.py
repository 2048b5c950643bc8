"""The engine's wall clock, which may be wrong. Pure.

vLLM takes arrival, time to first token and end-to-end from `time.time()`, and queue, prefill and decode
from `time.monotonic()`. Whatever is a wall-clock stamp here goes through `WallClock`, so that a wrong
clock shows where it shows with vLLM, and nowhere else.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockError:
    """How a wall clock goes wrong: seconds off from the start, seconds gained a second, steps.

    A drift below -1 runs backwards. Each step is (seconds, seconds since the engine's start).
    """

    offset: float = 0.0
    drift: float = 0.0
    steps: tuple[tuple[float, float], ...] = ()

    def at(self, elapsed: float) -> float:
        """Seconds that the clock is ahead of the true time, `elapsed` seconds after the start."""
        stepped = sum(seconds for seconds, at in self.steps if at <= elapsed)
        return self.offset + self.drift * elapsed + stepped


@dataclass(frozen=True, slots=True)
class WallClock:
    """Unix time as the engine believes it, from monotonic seconds. True: `unix` at `origin`."""

    unix: float
    origin: float
    error: ClockError = ClockError()

    def at(self, monotonic: float) -> float:
        """Unix seconds at that monotonic instant."""
        elapsed = monotonic - self.origin
        return self.unix + elapsed + self.error.at(elapsed)
