"""One request, observed: the pure object that the proxy drives.

The shell tells it what happened and when, in whatever order things happen; it answers with a live view
(`model`, `streaming`, `silent_since`, the gaps) and, once, with the record. It raises on no bytes: what
it cannot understand is counted in `faults`.

Cost is bounded by construction (DESIGN 4.3): at most DECODED_PER_READ bytes of payload are decoded of one
socket read, the rest is framed and counted as missed; `framing` skips events over 1 MiB. One read may
come as several calls of `response_data` with the same `now`.
"""

from collections.abc import Callable
from typing import Final

from sidecar.core.answer_headers import events_of
from sidecar.core.dialects import route_of
from sidecar.core.dialects.json_reader import DONE
from sidecar.core.events import GapSink
from sidecar.core.framing import BodyFramer, Framer, LinesFramer, SSEFramer
from sidecar.core.outcome import End, Outcome, Seen, conclude
from sidecar.core.record import RequestRecord
from sidecar.core.request import Headers, RequestFacts, RequestReader, is_encoded
from sidecar.core.timeline import STALL_THRESHOLD, Timeline

DECODED_PER_READ: Final = 262144  # bytes: as much as a socket read gives; 4 ms of chunks of 145 bytes
PAYLOADS_PER_READ: Final = 8192  # shorter ones are no chunks of a token

_FRAMERS: dict[bytes, tuple[type[Framer], bool]] = {  # content type: framer, streamed
    b"text/event-stream": (SSEFramer, True),
    b"application/x-ndjson": (LinesFramer, True),
    b"application/ndjson": (LinesFramer, True),
    b"application/jsonl": (LinesFramer, True),
    b"application/json": (BodyFramer, False),
}
_UNREAD_REQUEST = RequestFacts()


class Observation:
    """What is known of one request. All times are seconds of one monotonic clock."""

    __slots__ = (
        "_b1", "_bytes_in", "_bytes_out", "_connected", "_decoded", "_encoded", "_facts",
        "_framer", "_gap_sink", "_h", "_idle", "_missed", "_payload", "_read_at", "_reader", "_request",
        "_reused", "_sent", "_streamed", "_streams", "_up", "_waited_at", "_wall", "method", "operation",
        "request_id", "status", "t0", "timeline", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        t0: float,
        method: str,
        path: bytes,
        headers: Headers,
        request_id: str,
        trace_id: str,
        wall: float,
        gap_sink: "Callable[[Observation], GapSink] | None" = None,
        stall_threshold: float = STALL_THRESHOLD,
    ) -> None:
        """`headers` are the request's; `wall` is Unix time at `t0`.

        `gap_sink` is called once, before the first gap, when model and operation are known; what it returns
        takes every gap live: `sink(gap_seconds, tokens)`, tokens None when the chunk carried no count,
        else the tokens since the choice's previous token-bearing chunk, 0 if there were none.
        """
        self.t0, self.method, self.request_id, self.trace_id = t0, method, request_id, trace_id
        route = route_of(method, path)
        self.operation = route.operation
        self._streams = route.streams
        self.timeline = Timeline(self._first_gap, stall_threshold)
        self.status: int | None = None
        self._gap_sink = gap_sink
        self._wall = wall
        self._request = RequestReader(headers) if self.operation != "other" else None
        self._facts = _UNREAD_REQUEST
        self._reader = route.reader(self.timeline) if route.reader is not None else None
        self._payload = self._reader.payload if self._reader is not None else _unread
        self._framer: Framer | None = None
        self._streamed: bool | None = None  # the response, by its content type
        self._encoded = False
        self._idle = False  # a read that is one plain event can be decoded as it stands
        self._up: float | None = None
        self._connected: float | None = None
        self._reused: bool | None = None
        self._sent: float | None = None
        self._h: float | None = None
        self._b1: float | None = None
        self._waited_at: float | None = None
        self._read_at: float | None = None
        self._decoded = 0  # payload bytes decoded of the read at hand
        self._missed = 0
        self._bytes_in = self._bytes_out = 0

    # --- the live view

    @property
    def model(self) -> str | None:
        """The model as requested, else as the response names it; None while neither is known."""
        return self._facts.model or self.timeline.model

    @property
    def streaming(self) -> bool | None:
        """Whether the answer is, or was asked to be, a stream; None while that is not known."""
        if self._streamed is not None:
            return self._streamed
        if not self._facts.readable:
            return None
        return self._streams if self._facts.stream is None else self._facts.stream

    @property
    def facts(self) -> RequestFacts:
        """What the request said, as soon as its body was complete."""
        return self._facts

    @property
    def last_token_at(self) -> float | None:
        """Time of the latest token-bearing chunk; None before the first."""
        return self.timeline.last_token_at

    @property
    def faults(self) -> int:
        """What was skipped or not understood so far."""
        not_understood = self._reader.faults if self._reader is not None else 0
        return self._skipped + not_understood + self.timeline.ignored

    @property
    def _skipped(self) -> int:
        """Payloads that were not looked at, and may have said anything."""
        return self._missed + (self._framer.skipped if self._framer is not None else 0)

    def silent_since(self, now: float) -> float:
        """Seconds without a token, from the start before the first; 0 once the answer is complete."""
        if self.timeline.terminal or self.timeline.waits.announced:
            return 0.0  # complete, or its own client holds it up
        last = self.timeline.last_token_at
        return now - (self.t0 if last is None else last)

    # --- the request

    def request_data(self, data: bytes, now: float) -> None:
        """A piece of the request body came from the client."""
        self._bytes_in += len(data)
        if self._request is not None:
            self._request.feed(data)

    def request_end(self, now: float) -> None:
        """The request body is complete."""
        self._up = now
        if self._request is None:
            return
        facts, self._request = self._request.end(), None
        self._facts = facts
        if facts.readable:
            self.timeline.expected = facts.n * facts.prompts
            self.timeline.per_prompt = facts.n

    def connected(self, now: float, reused: bool) -> None:
        """The upstream connection is ready; the latest counts, after a retry."""
        self._connected, self._reused = now, reused

    def sent(self, now: float) -> None:
        """The last byte of the request was written upstream."""
        self._sent = now

    # --- the response

    def response_head(self, status: int, headers: Headers, now: float) -> None:
        """The final response head (no 1xx) came."""
        self.status, self._h = status, now
        self._encoded = is_encoded(headers)
        for event in events_of(headers):
            self.timeline.apply(event, now)
        framer, streamed = _FRAMERS.get(_content_type(headers), (None, None))
        if status < 400:
            self._streamed = bool(streamed)
            if framer is not None and self._reader is not None:
                self._framer = framer()

    def response_data(self, data: bytes, now: float) -> None:
        """Hot: a piece of the response body, without transfer or content coding."""
        size = len(data)
        self._bytes_out += size
        # One event alone, as engines send it: its first LF is the one before the last, and no CR.
        if (
            self._idle
            and data.startswith(b"data: {")
            and data.find(b"\n") == size - 2
            and data[size - 1] == 10
            and b"\r" not in data
        ):
            if now != self._read_at:
                self._read_at = now
                self._decoded = size - 8
            else:
                self._decoded += size - 8
            if self._decoded <= DECODED_PER_READ:
                self._payload(data[6:], now)
            else:
                self._missed += 1
            return
        if size:
            self._response_piece(data, now)

    def _response_piece(self, data: bytes, now: float) -> None:
        if self._b1 is None:
            self._b1 = now
        framer, reader = self._framer, self._reader
        if framer is None or reader is None:
            return
        if now != self._read_at:
            self._read_at, self._decoded = now, 0
        waits = self.timeline.waits
        behind = waits.behind
        if behind:
            waits.read_begins()
        for number, (event_type, payload) in enumerate(framer.feed(data)):
            self._decoded += len(payload)
            too_much = self._decoded > DECODED_PER_READ or number >= PAYLOADS_PER_READ
            if too_much and payload != DONE:
                self._missed += 1
            elif event_type and event_type != b"message":
                reader.named_payload(event_type, payload, now)
            else:
                reader.payload(payload, now)
        if behind:
            waits.read_ended(len(data), now)
        self._idle = framer.idle and not waits.behind

    def detach(self) -> None:
        """Stop observing the response: what comes from here on is not known."""
        self._framer, self._idle = None, False

    # --- the client

    def waiting(self, since: float | None) -> None:
        """A client write wait is open since then; None: there is none after all."""
        self.timeline.waits.opened(since)

    def write_wait(self, start: float, end: float) -> None:
        """A client write wait is over."""
        self._waited_at = end
        self.timeline.write_wait(start, end)
        self._idle = False  # a backlog comes: no short cut

    # --- the end

    def finish(self, end: End, now: float, status: int | None = None) -> RequestRecord:
        """The exchange is over; call it once. `status` is what the client was told, if no head came.

        `now` of a clean end is the end of the response body, even when the client took it later.
        """
        observed = self._end_of_body(end, now)
        timeline = self.timeline
        timeline.waits.settle(now)
        timeline.on_gap = _no_gaps  # else the two refer to each other, and wait for the garbage collector
        return RequestRecord(
            id=self.request_id,
            trace_id=self.trace_id,
            method=self.method,
            operation=self.operation,
            model=self.model,
            streaming=self.streaming,
            status=status if self.status is None else self.status,
            outcome=self._outcome(end, observed, status),
            wall=self._wall,
            t0=self.t0,
            t_up=self._up,
            t_conn=self._connected,
            t_sent=self._sent,
            h=self._h,
            b1=self._b1,
            e=now if end == "clean" else None,
            d_end=max(now, self._waited_at or now) if end == "clean" else None,
            ended=now,
            reused=self._reused,
            observed=observed,
            missed=self.faults,
            error=self._error(end),
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out,
            **timeline.summary(),
        )

    def _end_of_body(self, end: End, now: float) -> bool:
        """The last payloads and the open gaps; whether the response was read up to here."""
        framer, reader = self._framer, self._reader
        if framer is None or reader is None:
            # Nothing to read is no lack when the response never came.
            return self._reader is not None and self.status is None
        if end == "clean":
            read = reader.payload if self._streamed else reader.body
            for _, payload in framer.end():
                read(payload, now)
            self.timeline.conclude_choices()
        self.timeline.close(now)
        return (reader.recognised or not self._encoded) and not reader.foreign

    def _outcome(self, end: End, observed: bool, own_status: int | None) -> Outcome:
        timeline = self.timeline
        in_depth = observed and bool(self.streaming)
        return conclude(
            Seen(
                end=end,
                status=self.status,
                own_status=own_status,
                terminal=timeline.terminal,
                needs_terminal=in_depth and self._framer is not None and not self._skipped,
                error_reported=timeline.error_reported,
                failed_reason=timeline.failed_reason() is not None,
                output=(timeline.f1 if in_depth else self._b1) is not None,
            )
        )

    def _error(self, end: End) -> str | None:
        if self.timeline.error_reported:
            return "error_event"
        reason = self.timeline.failed_reason()
        if reason is not None:
            return f"finish_reason_{reason}"
        return None if end in ("clean", "client_left") else end

    def _first_gap(self, gap: float, tokens: int | None) -> None:
        sink = _no_gaps if self._gap_sink is None else self._gap_sink(self)
        self.timeline.on_gap = sink
        sink(gap, tokens)


def _unread(_payload: bytes, _now: float) -> None: ...


def _no_gaps(_gap: float, _tokens: int | None) -> None: ...


def _content_type(headers: Headers) -> bytes:
    for name, value in headers:
        if name.lower() == b"content-type":
            return value.partition(b";")[0].strip().lower()
    return b""
