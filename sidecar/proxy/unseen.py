"""What has gone to the clients and the observers have yet to see.

Pieces are shown a few milliseconds after they were written, many in one go. Between two system calls
caches and branch predictors are cold: a piece looked at there costs about three times what it costs in a
row of others (`python bench/hotspots.py`), and the next client waits meanwhile. Stamps are those of the
socket reads, and whatever else an observer is told waits for the pieces before it.
"""

import asyncio
from time import monotonic
from typing import Protocol

LATER = 0.010  # seconds
MANY = 128  # pieces: half a millisecond of work
LARGE = 16384  # bytes of a piece that is not kept for later

SLOW_CALL = 0.010  # seconds, for every SLOW_SIZE bytes begun
SLOW_SIZE = 65536


class Looker(Protocol):
    """One exchange's observer."""

    unseen: bool  # pieces of it wait to be shown

    def show(self, data: bytes, now: float) -> None: ...
    def was_slow(self) -> None: ...


class Unseen:
    """The pieces of all exchanges, in the order in which they came."""

    __slots__ = ("_due", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[tuple[Looker, bytes, float]] = []
        self._due = False

    def add(self, watch: Looker, data: bytes, now: float) -> None:
        """Hot: a piece was read at `now` and written."""
        watch.unseen = True
        pieces = self._pieces
        pieces.append((watch, data, now))
        if len(data) > LARGE or len(pieces) >= MANY:
            self.show()
        elif not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(LATER, self._show_due)

    def _show_due(self) -> None:
        self._due = False
        self.show()

    def show(self) -> None:
        """Show all of them now."""
        pieces, self._pieces = self._pieces, []
        before = monotonic()
        for watch, data, now in pieces:
            watch.show(data, now)
            after = monotonic()
            took = after - before
            if took > SLOW_CALL and took > SLOW_CALL * (1 + len(data) // SLOW_SIZE):
                watch.was_slow()
            before = after
        for watch, _, _ in pieces:
            watch.unseen = False
