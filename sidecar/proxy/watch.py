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
_STOP = ""  # no method of an observer: the rest is nobody's


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
    """Tells an observer, a little later, and survives it."""

    __slots__ = ("_attach", "_counted", "_faults", "_looks", "_observer", "_unseen", "attached")

    def __init__(self, attach: Callable[[], Observer | None], unseen: Unseen, faults: Counter[str]) -> None:
        """`attach` makes the observer, when it is first told something; `faults` counts them by what it was
        told."""
        self._attach: Callable[[], Observer | None] | None = attach
        self._unseen = unseen
        self._counted = faults
        self._observer: Observer | None = None
        self._faults = 0
        self._looks = True  # it is told of more than the end
        self.attached = True  # pieces are worth keeping

    def tell(self, event: str, *arguments: object) -> None:
        """The observer's method `event` will be called, after it has seen all that came before."""
        self._unseen.tell(self, (event, arguments))

    def tell_data(self, data: bytes, now: float) -> None:
        """The same of bytes of the request."""
        self._unseen.tell(self, ("request_data", (data, now)), len(data))

    def stop(self) -> None:
        """What follows is nobody's: only the end is told."""
        self.attached = False
        self._unseen.tell(self, (_STOP, ()))

    # --- later

    def show(self, data: bytes, now: float) -> None:
        """A piece that the client has been sent."""
        observer = self._observer
        if observer is not None and self._looks:
            try:
                observer.observe(data, now)
            except Exception:
                self._fault("observe")

    def say(self, event: str, arguments: tuple[object, ...]) -> None:
        """Something else that happened."""
        if self._attach is not None:
            attach, self._attach = self._attach, None
            self._observer = attach()
            self.attached = self.attached and self._observer is not None
        if event == _STOP:
            self._looks = False
        elif self._observer is not None and (self._looks or event in _ALWAYS_TOLD):
            try:
                getattr(self._observer, event)(*arguments)
            except Exception:
                self._fault(event)

    def was_slow(self) -> None:
        """Showing a piece took too long."""
        self._fault("slow")

    def _fault(self, stage: str) -> None:
        self._counted[stage] += 1
        self._faults += 1
        if self._faults >= MAX_FAULTS and self._looks:
            self._looks = self.attached = False
            self.say("detach", ())  # its end is still told
