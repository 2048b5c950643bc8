"""The observer of one exchange, never in the way.

Nothing that an observer does changes a byte: pieces are shown to it after they were written (`unseen.py`), an
exception of it, or a call that is too slow, is a fault and counted, and after MAX_FAULTS it is detached. (One
slow call alone is more often a descheduled process than a slow observer, and would cost the stream its
numbers.)
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from sidecar.core.outcome import End
from sidecar.proxy.heads import RawHeaders
from sidecar.proxy.unseen import Unseen

MAX_FAULTS = 3
_ALWAYS_TOLD = frozenset({"detach", "finish"})  # to a detached observer too


class Observer(Protocol):
    """What is told about an exchange, after the bytes have gone. Times are `time.monotonic()` seconds."""

    def request_data(self, data: bytes, now: float) -> None: ...
    def request_end(self, now: float) -> None: ...
    def connected(self, now: float, reused: bool) -> None: ...
    def sent(self, now: float) -> None: ...
    def response_head(self, status: int, headers: RawHeaders, now: float) -> None: ...
    def observe(self, data: bytes, now: float) -> None: ...
    def waiting(self, since: float | None) -> None: ...
    def write_wait(self, start: float, end: float) -> None: ...
    def detach(self) -> None: ...
    def finish(self, end: End, now: float, status: int | None) -> None: ...


class Watch:
    """Tells an observer, and survives it."""

    __slots__ = ("_counted", "_faults", "_observe", "_observer", "_pieces", "attached", "unseen")

    def __init__(self, pieces: Unseen, faults: Counter[str]) -> None:
        """`faults` counts them by what the observer was told."""
        self._pieces = pieces
        self._counted = faults
        self._observer: Observer | None = None
        self._observe: Callable[[bytes, float], None] | None = None
        self._faults = 0
        self.attached = False  # pieces are worth showing
        self.unseen = False  # some wait to be shown

    def attach(self, observer: Observer | None) -> None:
        """From here on `observer` is told; None: nobody is."""
        if observer is not None:
            self._observer, self._observe, self.attached = observer, observer.observe, True

    def look_again(self) -> None:
        """The observer may have changed its `observe`, to one that decodes."""
        if self._observe is not None and self._observer is not None:
            self._observe = self._observer.observe

    def stop(self) -> None:
        """Show no more pieces: what follows is nobody's."""
        self._observe, self.attached = None, False

    def tell(self, event: str, *arguments: object) -> None:
        """Call the observer's method `event`, after it has seen all pieces before."""
        if self.unseen:
            self._pieces.show()
        observer = self._observer
        if observer is None or (self._observe is None and event not in _ALWAYS_TOLD):
            return
        try:
            getattr(observer, event)(*arguments)
        except Exception:
            self._fault(event)

    def show(self, data: bytes, now: float) -> None:
        """A piece that the client has been sent."""
        observe = self._observe
        if observe is not None:
            try:
                observe(data, now)
            except Exception:
                self._fault("observe")

    def was_slow(self) -> None:
        """Showing a piece took too long."""
        self._fault("slow")

    def _fault(self, stage: str) -> None:
        self._counted[stage] += 1
        self._faults += 1
        if self._faults >= MAX_FAULTS and self.attached:
            self.stop()
            self.tell("detach")  # its end is still told
