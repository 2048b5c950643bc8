"""The client's side: aiohttp parses requests, every response byte is ours.

aiohttp's low-level server is used for what it does well: llhttp with strict settings, pipelining in
order, keep-alive. It never writes: the handler returns a `Sent`, whose `prepare` and `write_eof` do
nothing, and errors that aiohttp finds come to `handle_error`, which writes our own. Everything here
that goes beyond aiohttp's documented interface is checked by `selftest.py` when the sidecar starts.
"""

import asyncio
import re
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from sidecar.proxy.errors import Refusal, error_response

MAX_LINE = 65536
# One byte less than MAX_LINE: aiohttp raises the same exception for a long target and a long field,
# and only the limit in it tells which.
MAX_FIELD = 65535
MAX_FIELDS = 256
READ_BUFFER = 65536
UNSENT_LOW_WATER = 16384
LINGER_SECONDS = 2.0
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|\Z)", re.IGNORECASE)


class ClientExchange(Protocol):
    """What a client connection tells the exchange that runs on it."""

    def client_left(self, now: float) -> None: ...
    def client_closed(self, now: float) -> None: ...
    def body_invalid(self, now: float) -> None: ...
    def pause(self, now: float) -> None: ...
    def resume(self, now: float) -> None: ...


class Sent:
    """The handler's return value: a response that is already on the wire."""

    __slots__ = ("_linger", "keep_alive")
    status = 200
    body_length = 0

    def __init__(self, keep_alive: bool, linger: Callable[[], Awaitable[None]] | None = None) -> None:
        self.keep_alive = keep_alive
        self._linger = linger

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing: the head is written."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing but, after an error, to let the client read it before the connection closes."""
        if self._linger is not None:
            await self._linger()


class ClientConnection(RequestHandler):
    """One client connection; `exchange` is the request that it carries now."""

    __slots__ = (
        "_front", "_head_times", "_lingering", "_open", "_ready", "_tail", "begun", "draining", "exchange",
        "head_since", "overloaded", "read_at", "response_ended_at",
    )  # fmt: skip

    def __init__(self, front: "Front", **settings: Any) -> None:
        super().__init__(front, **settings)
        self._front = front
        self.exchange: ClientExchange | None = None
        self.begun: ClientExchange | None = None  # runs before aiohttp has called the handler for it
        self._ready: bool | None = True  # the next request may begin at once; None: on this connection never
        self.read_at = 0.0
        self.response_ended_at = 0.0
        self.head_since: float | None = None
        self.draining = False
        self.overloaded = False
        self._tail = b""
        self._head_times: deque[float] = deque()
        self._lingering: asyncio.Future[None] | None = None
        self._open: asyncio.Transport | None = None  # aiohttp forgets `transport` when it begins to close

    @property
    def idle(self) -> bool:
        """No request is running, queued or half received."""
        return self.exchange is None and not self._messages and self.head_since is None

    @property
    def unsent(self) -> bool:
        """Bytes wait for the client to take them."""
        return self._open is not None and self._open.get_write_buffer_size() > 0

    def abort(self) -> None:
        """End the connection at once, unsent bytes or not."""
        if self._open is not None:
            self._open.abort()

    @property
    def ends_with_last_chunk(self) -> bool:
        """The latest bytes are the end of a chunked body without trailers, and nothing after it.

        No trailer line can be a lone `0`, so the seven bytes can't be part of one.
        """
        return self._tail == b"\r\n0\r\n\r\n"

    def take_head_time(self) -> float:
        """`t0` of the next request: the read that completed its head, or the end of the previous response."""
        read_at = self._head_times.popleft() if self._head_times else self.read_at
        return max(read_at, self.response_ended_at)

    def take_begun(self) -> ClientExchange | None:
        """The exchange of the request that the handler is called for, if it was begun already."""
        begun, self.begun = self.begun, None
        return begun

    def exchange_ended(self, now: float, *, sized: bool, keeps: bool) -> None:
        """The connection waits for its next head, or has part of it: `sized` says that the request had a
        body with a length, whose end can't be told from a head's beginning."""
        self.exchange = None
        if self._ready is not None:
            self._ready = keeps
        self.response_ended_at = now
        if not sized and not self._messages and not self._tail.endswith(b"\r\n\r\n"):
            self.head_since = self.read_at

    def refuse(self, refusal: Refusal) -> Sent:
        """Answer with an error of our own and close."""
        self._front.on_refused(refusal.reason)
        if self.transport is not None:
            self.transport.write(error_response(refusal, close=True))
        return Sent(False, self.linger)

    async def linger(self) -> None:
        """Half-close, then read and drop until the client closes: a reset would take the error from it."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._lingering = asyncio.get_running_loop().create_future()
        try:
            transport.write_eof()
            transport.resume_reading()
            async with asyncio.timeout(LINGER_SECONDS):
                await self._lingering
        except (TimeoutError, OSError, RuntimeError):
            pass

    def head_timed_out(self) -> None:
        """A request head was begun and not completed in time."""
        self._front.on_refused("head_timeout")
        if self.transport is not None:
            refusal = Refusal(408, "head_timeout", "the request head did not arrive in time")
            self.transport.write(error_response(refusal, close=True))
            self.force_close()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._open = self.transport
        self.read_at = monotonic()
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LOW_WATER)
        self._front.on_connected(self)

    def data_received(self, data: bytes) -> None:
        if data:
            self.read_at = monotonic()
            self._tail = data[-7:] if len(data) >= 7 else (self._tail + data)[-7:]
        if self._lingering is not None:
            return
        messages = self._messages
        before = len(messages)
        # Requests that came and were not handled yet each have a head time.
        idle = self._ready and not before and not self._head_times and self.exchange is None
        if idle and b"h2c" in data:
            data = without_h2c(data)
        super().data_received(data)
        if self._upgraded:  # from here aiohttp may queue requests without a call of this
            self._ready = None
        added = len(messages) - before
        if added > 0:
            self.head_since = None
            self._head_times.extend([self.read_at] * added)
            message, content = messages[0]
            if idle and isinstance(message, RawRequestMessage):
                self._front.on_idle_request(self, message, content)
            elif self.exchange is not None and hasattr(messages[-1][0], "exc"):
                self.exchange.body_invalid(self.read_at)
        elif data.strip(b"\r\n") and self.exchange is None and not self._messages and self.head_since is None:
            self.head_since = self.read_at

    def eof_received(self) -> None:
        """A client's FIN counts as leaving, as in nginx and Envoy."""
        if self._lingering is not None:
            self._end_linger()
        elif self.exchange is not None:
            self.exchange.client_closed(monotonic())
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._open = None
        self._end_linger()
        if self.exchange is not None:
            self.exchange.client_left(monotonic())
        self._front.on_disconnected(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.exchange is not None:
            self.exchange.pause(monotonic())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.exchange is not None:
            self.exchange.resume(monotonic())

    # --- aiohttp's hook for what it refuses by itself, and for what a handler raised

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> Any:
        self.take_head_time()
        return self.refuse(refusal_of(exc))

    def _end_linger(self) -> None:
        if self._lingering is not None and not self._lingering.done():
            self._lingering.set_result(None)


def without_h2c(data: bytes) -> bytes:
    """Bytes that begin with a request head, without its offer to go on in HTTP/2, which ends here anyway.

    aiohttp's parser would stop behind the head, and lose a request that came in the same read.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end or data.startswith((b"\r", b"\n")):  # the line end of a head that came before: a body follows
        return data
    return _H2C.sub(b"", head, count=1) + end + rest


def refusal_of(exc: BaseException | None) -> Refusal:
    """What aiohttp's parser found, as our own error; nothing of the client's bytes is repeated."""
    if isinstance(exc, LineTooLong):
        if exc.args[1] == MAX_LINE:
            return Refusal(414, "target_too_long", f"the request target is longer than {MAX_LINE} bytes")
        return Refusal(431, "field_too_long", f"a header field is longer than {MAX_LINE} bytes")
    if "Too many headers" in str(exc):
        return Refusal(431, "too_many_fields", f"more than {MAX_FIELDS} header fields")
    if isinstance(exc, HttpProcessingError):
        return Refusal(400, "invalid_http", "the request is not valid HTTP/1.1")
    return Refusal(500, "relay", "the request could not be relayed")


class Front(web.Server):
    """Makes a `ClientConnection` for each accepted socket and keeps count of them."""

    def __init__(
        self,
        handle: Callable[[web.BaseRequest], Awaitable[Any]],
        *,
        on_idle_request: Callable[[ClientConnection, RawRequestMessage, StreamReader], None],
        on_connected: Callable[[ClientConnection], None],
        on_disconnected: Callable[[ClientConnection], None],
        on_refused: Callable[[str], None],
        idle_timeout: float,
    ) -> None:
        super().__init__(
            handle,
            handler_cancellation=True,
            auto_decompress=False,
            read_bufsize=READ_BUFFER,
            access_log=None,
            keepalive_timeout=idle_timeout,
            max_line_size=MAX_LINE,
            max_field_size=MAX_FIELD,
            max_headers=MAX_FIELDS,
        )
        self.on_idle_request = on_idle_request
        self.on_connected = on_connected
        self.on_disconnected = on_disconnected
        self.on_refused = on_refused

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, loop=self._loop, **self._kwargs)
