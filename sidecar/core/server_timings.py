"""What an engine says of one request: durations of its own clock, never points in time."""

import msgspec


class ServerTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds; None where the engine does not say.

    `queue` ends when the request is scheduled, `prefill` with its first token, `decode` with its last.
    `ttft` and `e2e` are totals from the engine's own arrival of the request, for engines without parts.
    """

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    ttft: float | None = None
    e2e: float | None = None
    cached_input_tokens: int | None = None

    @property
    def complete(self) -> bool:
        """All three parts are known."""
        return self.queue is not None and self.prefill is not None and self.decode is not None
