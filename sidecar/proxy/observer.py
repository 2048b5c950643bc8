"""Joins the relay to the core: one `Observation` an exchange, and the sinks of what it finds.

The relay calls this after the bytes have gone and survives whatever it raises. A compressed body is
decompressed here, as a copy; a body that can't be is not observed any further, and counted.
"""

import time
from collections.abc import Callable
from typing import Protocol

from sidecar.core.observation import Observation
from sidecar.core.outcome import End
from sidecar.core.record import RequestRecord
from sidecar.proxy.decode import Decoder, UndecodableError
from sidecar.proxy.heads import RawHeaders
from sidecar.proxy.proxy import RequestStart


class Sinks(Protocol):
    """Where observations go; `model` is what the request or the response named, not a label."""

    def started(self, observer: "StreamObserver") -> None: ...
    def gap_sink(self, model: str | None, operation: str) -> Callable[[float, int | None], None]: ...
    def finished(self, observer: "StreamObserver", record: RequestRecord) -> None: ...
    def undecodable(self) -> None: ...


class StreamObserver:
    """The relay's `Observer` for one exchange."""

    __slots__ = (
        "_decoder", "_sinks", "connected", "headers", "observation", "observe", "request_data", "sent",
        "trace", "waiting", "write_wait",
    )  # fmt: skip

    def __init__(self, start: RequestStart, sinks: Sinks, stall_threshold: float) -> None:
        self._sinks = sinks
        self.trace = start.trace
        self.headers = start.headers
        self._decoder: Decoder | None = None
        self.observation = observation = Observation(
            t0=start.t0,
            method=start.method,
            path=start.path,
            headers=start.headers,
            request_id=start.request_id,
            trace_id=start.trace.trace_id,
            wall=time.time() - (time.monotonic() - start.t0),  # the request is on its way since t0
            gap_sink=lambda seen: sinks.gap_sink(seen.model, seen.operation),
            stall_threshold=stall_threshold,
        )
        # The hot calls go straight to the core.
        self.observe = observation.response_data
        self.request_data = observation.request_data
        self.connected = observation.connected
        self.sent = observation.sent
        self.waiting = observation.waiting
        self.write_wait = observation.write_wait
        sinks.started(self)

    def request_end(self, now: float) -> None:
        """The request body is complete."""
        self.observation.request_end(now)

    def response_head(self, status: int, headers: RawHeaders, now: float) -> None:
        """The response begins; a compressed body is read through a decoder."""
        self.observation.response_head(status, headers, now)
        coding = next((value for name, value in headers if name.lower() == b"content-encoding"), b"identity")
        if coding.strip().lower() not in (b"", b"identity"):
            self._decode(coding)

    def detach(self) -> None:
        """No more bytes come to the observation, although the response goes on."""
        self.observation.detach()

    def finish(self, end: End, now: float, status: int | None) -> None:
        """The exchange is over."""
        self._sinks.finished(self, self.observation.finish(end, now, status))

    def _decode(self, coding: bytes) -> None:
        try:
            self.observe = self._observe_decoded
            self._decoder = Decoder(coding)
        except UndecodableError:
            self._give_up()

    def _observe_decoded(self, data: bytes, now: float) -> None:
        if self._decoder is None:
            return
        try:
            plain = self._decoder.feed(data)
        except UndecodableError:
            self._give_up()
            return
        if plain:
            self.observation.response_data(plain, now)

    def _give_up(self) -> None:
        self._sinks.undecodable()
        self.observation.detach()
        self._decoder = None
