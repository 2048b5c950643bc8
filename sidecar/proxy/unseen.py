"""What has happened on the wire and the observers have yet to be told, of all exchanges, in its order.

They are told a few milliseconds later, of many things in one go. Between two system calls caches and branch
predictors are cold: a piece looked at there costs about three times what it costs in a row of others
(`python bench/hotspots.py`), and the next client waits meanwhile. Stamps are those of the socket reads.
"""

import asyncio
from time import monotonic
from typing import Protocol

LATER = 0.010  # seconds
MANY = 128  # entries: half a millisecond of work
LARGE = 16384  # bytes of a piece that is not kept for later

SLOW_CALL = 0.010  # seconds, for every SLOW_SIZE bytes begun
SLOW_SIZE = 65536

Event = tuple[str, tuple[object, ...]]


class Looker(Protocol):
    """One exchange's observer."""

    def show(self, data: bytes, now: float) -> None: ...
    def say(self, event: str, arguments: tuple[object, ...]) -> None: ...
    def was_slow(self) -> None: ...


class Unseen:
    """Pieces of responses, and events: what an observer's method is called, and its arguments."""

    __slots__ = ("_due", "_entries")

    def __init__(self) -> None:
        self._entries: list[tuple[Looker, bytes | None, float, Event | None]] = []
        self._due = False

    def add(self, watch: Looker, data: bytes, now: float) -> None:
        """Hot: a piece was read at `now` and written."""
        self._entries.append((watch, data, now, None))
        if len(data) > LARGE or len(self._entries) >= MANY:
            self.show()
        elif not self._due:
            self._call_later()

    def tell(self, watch: Looker, event: Event, size: int = 0) -> None:
        """Something else happened, with so many bytes to keep."""
        self._entries.append((watch, None, 0.0, event))
        if size > LARGE or len(self._entries) >= MANY:
            self.show()
        elif not self._due:
            self._call_later()

    def _call_later(self) -> None:
        self._due = True
        asyncio.get_running_loop().call_later(LATER, self._show_due)

    def _show_due(self) -> None:
        self._due = False
        self.show()

    def show(self) -> None:
        """Tell all of it now."""
        entries, self._entries = self._entries, []
        before = monotonic()
        for watch, data, now, event in entries:
            if event is not None:
                watch.say(*event)
                before = monotonic()
            elif data is not None:
                watch.show(data, now)
                after = monotonic()
                took = after - before
                if took > SLOW_CALL and took > SLOW_CALL * (1 + len(data) // SLOW_SIZE):
                    watch.was_slow()
                before = after
