"""Engine spans that wait until it is known whether their trace is exported.

Pure and bounded in bytes: what there is no room for is not held.
"""

from sidecar.core.otlp_frames import Frame

MAX_HELD_BYTES = 16 << 20


class HeldSpans:
    """Spans by trace."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._left = max_bytes
        self._frames: dict[str, list[Frame]] = {}
        self._wanted: set[str] = set()

    def add(self, trace_id: str, frame: Frame) -> bool:
        """Hold a span; False when there is no room."""
        if frame.size > self._left:
            return False
        self._left -= frame.size
        self._frames.setdefault(trace_id, []).append(frame)
        return True

    def wanted(self, trace_id: str) -> bool:
        """Whether the spans of this trace are passed on at once."""
        return trace_id in self._wanted

    def want(self, trace_id: str) -> list[Frame]:
        """This trace is exported: the spans that were held, and from now on none is."""
        self._wanted.add(trace_id)
        return self.forget(trace_id, keep_wanting=True)

    def forget(self, trace_id: str, *, keep_wanting: bool = False) -> list[Frame]:
        """Nobody waits for this trace any more: the spans that were held for nothing."""
        if not keep_wanting:
            self._wanted.discard(trace_id)
        frames = self._frames.pop(trace_id, [])
        self._left += sum(frame.size for frame in frames)
        return frames
