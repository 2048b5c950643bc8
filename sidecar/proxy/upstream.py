"""One HTTP/1.1 connection to the engine: asyncio.Protocol around llhttp.

A response is told to a sink, in this order:

    on_informational*  on_head  on_data*  (on_end | on_upgrade)      or on_error at any point

`on_data` is called once a socket read, with all body bytes of that read joined, straight from
`data_received`: no task is woken. `raw` are the same bytes as one whole chunk, where they came as one.
Nothing that a sink does can pass through the parser.

What llhttp's Python wrapper does not do, and this file does (each one a test in tests/proxy):
the answer to HEAD ends with its head; a 1xx is a message of its own; bytes after the end of a
response make the connection unusable; FIN ends a body without length and without chunks, and cuts
every other; `should_keep_alive` is only true to the message while its head is being completed.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Literal, NamedTuple, Protocol, cast

import httptools

from sidecar.proxy.sockets import borrow

MAX_HEAD_BYTES = 65536
MAX_FIELDS = 256

# The start of a chunk as engines write it -> the bytes of the whole chunk. Longer chunks, and other ways to
# write a size, are the parser's.
CHUNK_SIZES = {
    spelt % size: len(spelt % size) + size + 2 for size in range(1, 4096) for spelt in (b"%x\r\n", b"%X\r\n")
}
MAX_CHUNK_START = 5  # bytes of a key

Headers = list[tuple[bytes, bytes]]
BodyFraming = Literal["none", "length", "chunked", "until_close"]
UpstreamFault = Literal["cut", "reset", "invalid"]  # FIN too early, RST or FIN before a head, not HTTP


class ResponseHead(NamedTuple):
    """A response head as received: raw header pairs in order, case and number."""

    status: int
    reason: bytes
    headers: Headers
    framing: BodyFraming


class Sink(Protocol):
    """What an upstream connection reports to; `now` is the time at which the socket read returned."""

    def on_informational(self, head: ResponseHead) -> None: ...
    def on_head(self, head: ResponseHead, now: float, *, more: bool) -> None: ...
    def on_data(self, data: bytes, now: float, raw: bytes | None = None) -> None: ...
    def on_end(self, trailers: Headers, now: float) -> None: ...
    def on_upgrade(self, head: ResponseHead, rest: bytes, now: float) -> None: ...
    def on_error(self, fault: UpstreamFault, now: float) -> None: ...


class InvalidResponseError(Exception):
    """The engine's answer breaks HTTP or one of our limits."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that carries one exchange at a time; `reusable` says whether another may follow."""

    __slots__ = (
        "_between_chunks", "_chunk_ended", "_complete", "_drain", "_feeder", "_field_bytes", "_fields",
        "_head", "_head_bytes", "_head_only", "_informational", "_keep_alive", "_parser", "_parts",
        "_reason", "_sink", "_spoiled", "_trailers", "_tunnel", "_upgrade_asked", "_used", "idle_since",
        "on_lost", "received", "socket", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._sink: Sink | None = None
        self._drain: asyncio.Future[None] | None = None
        self._tunnel = False
        self._feeder: asyncio.Transport | None = None
        self._between_chunks = self._chunk_ended = False
        self._spoiled = False
        self._used = False
        self.idle_since = 0.0
        self.received = 0
        self.on_lost: Callable[[UpstreamConnection], None] | None = None

    # --- one exchange

    def begin(self, sink: Sink, *, head_only: bool, upgrade_asked: bool) -> None:
        """Make ready for the response to the next request; `head_only` when that is a HEAD."""
        self._sink = sink
        self._head_only = head_only
        self._upgrade_asked = upgrade_asked
        self._parser = httptools.HttpResponseParser(self)
        self._reset_message()
        self._complete = self._between_chunks = False
        self._head: ResponseHead | None = None
        self._informational: list[ResponseHead] = []
        self._parts: list[bytes] = []
        self._keep_alive = False
        self._spoiled = False
        self.received = 0

    @property
    def reusable(self) -> bool:
        """The last response is complete, the engine keeps the connection, and nothing came after it."""
        return self._complete and self._keep_alive and not self._spoiled and not self.transport.is_closing()

    @property
    def used(self) -> bool:
        """An earlier exchange ran over this connection."""
        return self._used

    def detach(self) -> None:
        """The exchange is over; bytes that still come make the connection unusable."""
        self._sink = None
        self._used = True

    def abort(self) -> None:
        """End the connection at once, unsent bytes or not."""
        self._sink = None
        self.transport.abort()

    def write(self, data: bytes) -> None:
        """Send bytes of the request (or of the tunnel)."""
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the transport takes more; returns at once when it does, or when it is lost."""
        if self._drain is not None:
            await self._drain

    def feed_from(self, client: asyncio.Transport) -> None:
        """In a tunnel: stop reading from the client while the engine takes no more."""
        self._feeder = client

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        self.socket = borrow(transport)

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        sink = self._sink
        if sink is None:
            self._spoiled = True
            self.transport.abort()
            return
        self.received += len(data)
        if self._between_chunks:
            # One whole chunk, as engines send a token: the parser would come out where it went in.
            start = data.find(b"\n", 2, MAX_CHUNK_START) + 1
            if len(data) == CHUNK_SIZES.get(data[:start]) and data.endswith(b"\r\n"):
                sink.on_data(data[start:-2], now, data)
                return
        if self._tunnel:
            sink.on_data(data, now)
            return
        had_head = self._head is not None
        self._chunk_ended = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(sink, data[upgrade.args[0] :], now)
            return
        except Exception:
            # Bytes after a complete response that asked to close are an error of the next message only.
            self._spoiled = True
            if not self._complete:
                self._tell_head(sink, had_head, now)
                self._flush(sink, now)
                self._fail(sink, "cut" if self._head else "invalid", now)
                return
        if not had_head:
            self._tell_head(sink, had_head, now)
            if self._head is None and not self._bounded(len(data)):
                self._fail(sink, "invalid", now)
                return
        self._between_chunks = self._chunk_ended and data.endswith(b"\r\n")
        self._flush(sink, now)
        if self._complete and self._sink is sink:
            sink.on_end(self._trailers, now)

    def eof_received(self) -> bool:
        self._closed_by_engine("cut", monotonic())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        self._closed_by_engine("cut" if exc is None else "reset", monotonic())
        if self.on_lost is not None:
            self.on_lost(self)

    def pause_writing(self) -> None:
        if self._feeder is not None:
            self._feeder.pause_reading()
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        drain, self._drain = self._drain, None
        if drain is not None and not drain.done():
            drain.set_result(None)
        if self._feeder is not None and not self._feeder.is_closing():
            self._feeder.resume_reading()

    # --- what data_received is made of

    def _tell_head(self, sink: Sink, had_head: bool, now: float) -> None:
        if self._informational:
            for head in self._informational:
                sink.on_informational(head)
            self._informational.clear()
        if self._head is not None and not had_head and self._head.status != 101:
            sink.on_head(self._head, now, more=bool(self._parts))

    def _flush(self, sink: Sink, now: float) -> None:
        parts = self._parts
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            sink.on_data(body, now)

    def _bounded(self, size: int) -> bool:
        self._head_bytes += size
        return self._head_bytes <= MAX_HEAD_BYTES

    def _upgraded(self, sink: Sink, rest: bytes, now: float) -> None:
        head = self._head
        self._tell_head(sink, True, now)
        if head is None or not self._upgrade_asked:
            self._fail(sink, "invalid", now)
            return
        self._tunnel = True
        sink.on_upgrade(head, rest, now)

    def _closed_by_engine(self, fault: UpstreamFault, now: float) -> None:
        self._spoiled = True
        sink = self._sink
        if sink is None:
            return
        if self._tunnel or (fault == "cut" and self._head and self._head.framing == "until_close"):
            self._complete = True
            sink.on_end([], now)
        else:
            self._fail(sink, fault if self._head else "reset", now)

    def _fail(self, sink: Sink, fault: UpstreamFault, now: float) -> None:
        self._spoiled = True
        self._sink = None
        self.transport.abort()
        sink.on_error(fault, now)

    # --- llhttp's callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            self._spoiled = True
        elif self._head is None:
            self._reset_message()

    def on_status(self, part: bytes) -> None:
        if not self._complete:
            self._reason += part
            if len(self._reason) > MAX_HEAD_BYTES:
                raise InvalidResponseError("the reason phrase is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete:
            self._spoiled = True
        elif self._head is not None:
            self._keep_field(self._trailers, name, value)
        else:
            self._keep_field(self._fields, name, value)

    def on_headers_complete(self) -> None:
        if self._complete or self._head is not None:
            self._spoiled = True
            return
        status = self._parser.get_status_code()
        head = ResponseHead(status, self._reason, self._fields, self._framing_of(status))
        if status < 200 and status != 101:
            if head.framing != "none":
                raise InvalidResponseError("a 1xx response has no body")
            self._informational.append(head)
            return
        self._head = head
        self._keep_alive = self._parser.should_keep_alive()
        if self._head_only:
            # llhttp can't know that the request was a HEAD; the body it waits for never comes.
            self._complete = True

    def on_body(self, part: bytes) -> None:
        if self._complete:
            self._spoiled = True
        else:
            self._parts.append(part)

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = not self._complete

    def on_message_complete(self) -> None:
        self._chunk_ended = False
        if self._head is None:
            self._reset_message()  # a 1xx: the next message starts from nothing
        elif self._head.status != 101:
            self._complete = True

    def _reset_message(self) -> None:
        self._reason = b""
        self._fields: Headers = []
        self._trailers: Headers = []
        self._head_bytes = 0
        self._field_bytes = 0

    def _keep_field(self, fields: Headers, name: bytes, value: bytes) -> None:
        fields.append((name, value))
        self._field_bytes += len(name) + len(value) + 4
        if len(fields) > MAX_FIELDS or self._field_bytes > MAX_HEAD_BYTES:
            raise InvalidResponseError("too many or too long header fields")

    def _framing_of(self, status: int) -> BodyFraming:
        """RFC 9112 section 6.3, for the response's body as the engine sends it."""
        chunked = length = False
        for name, value in self._fields:
            lower = name.lower()
            if lower == b"transfer-encoding":
                if chunked or value.strip().lower() != b"chunked":
                    raise InvalidResponseError("a transfer coding other than chunked")
                chunked = True
            elif lower == b"content-length":
                length = True
        if status < 200 and (chunked or length):
            return "length"
        if status < 200 or status in (204, 304):
            return "none"
        return "chunked" if chunked else "length" if length else "until_close"
