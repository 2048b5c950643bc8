"""Client write wait: when the sidecar held bytes that the client would not take.

`until(t)` is how much of it there was up to a time, so that the wait inside an interval is a difference
of two readings and nothing has to be kept of the intervals themselves.

A wait leaves a backlog in the kernel, which then comes in reads that follow one another at once: the gaps of
those are not the engine's either. The first read that is not full has the last of it.
"""

_NEVER = float("-inf")
_ALWAYS = float("inf")
FULL_READ = 65536  # bytes; the smallest read that an event loop here gives when there is more


class WriteWaits:
    """The write waits of one request, in the order of time; they do not overlap one another."""

    __slots__ = ("_since", "behind", "mark", "total")

    def __init__(self) -> None:
        self.total = 0.0  # of waits that are over
        self.mark = _NEVER  # a gap that begins before it is not the engine's; infinity while a wait is open
        self.behind = False  # a backlog may still be coming
        self._since: float | None = None

    def opened(self, since: float | None) -> None:
        """A wait is open since then; None: none is open after all."""
        self._since = since
        if since is not None:
            self.mark = _ALWAYS
        elif self.mark == _ALWAYS:
            self.mark = _NEVER

    def over(self, start: float, end: float) -> None:
        """A wait is over."""
        self._since = None
        self.total += max(end - start, 0.0)
        self.mark = end
        self.behind = True

    def read_begins(self) -> None:
        """While behind: what comes in this read was waiting."""
        self.mark = _ALWAYS

    def read_ended(self, size: int, now: float) -> None:
        """The read at `now` had this size."""
        if self._since is None and size < FULL_READ:
            self.mark = now
            self.behind = False

    def settle(self, now: float) -> None:
        """The exchange is over: so is a wait that was still open."""
        if self._since is not None:
            self.over(self._since, now)

    def until(self, now: float) -> float:
        """All wait up to `now`, seconds."""
        return self.total if self._since is None else self.total + max(now - self._since, 0.0)

    @property
    def announced(self) -> bool:
        """Whether an open wait was told of."""
        return self._since is not None
