"""How many of something a second: a token bucket that holds one second's worth."""


class RateCap:
    """At most `per_second` on average, and as many at once."""

    def __init__(self, per_second: int, now: float) -> None:
        self._per_second, self._left, self._at = per_second, float(per_second), now

    def take(self, count: int, now: float) -> bool:
        """Whether there is room for all of `count`; if so, they are taken."""
        self._left = min(self._per_second, self._left + (now - self._at) * self._per_second)
        self._at = now
        if count > self._left:
            return False
        self._left -= count
        return True
