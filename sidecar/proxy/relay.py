"""One exchange: a request to the engine and its answer to the client.

    waiting_head -> streaming -> done | failed          (a tunnel: waiting_head -> tunnelling -> done)

The exchange is the sink of the upstream connection: a piece is written to the client's transport
from inside the upstream's `data_received`, and shown to the observer later (`unseen.py`). The request
body is pumped by a task of its own, so that an answer may come before the body is complete. `finish`
runs exactly once and alone releases connections and resolves what the handler waits for.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, cast

from aiohttp import StreamReader, web

from sidecar.core.outcome import End
from sidecar.proxy import edit, heads
from sidecar.proxy.errors import Refusal, error_response
from sidecar.proxy.front import ClientConnection, Sent
from sidecar.proxy.sockets import borrow, close_with_reset, tcp_state
from sidecar.proxy.upload import KEPT_BODY, Upload
from sidecar.proxy.upstream import Headers, ResponseHead, UpstreamConnection, UpstreamFault
from sidecar.proxy.watch import Observer, Watch

if TYPE_CHECKING:
    from sidecar.proxy.proxy import Proxy

State = Literal["waiting_head", "streaming", "tunnelling", "done", "failed"]

RETRY_WITHIN = 1.0
SURELY_SENT = 4096  # bytes that the kernel takes at once from a connection that was idle
FIRST_LOOK, LAST_LOOK = 0.001, 0.1  # seconds
OVERHEAD_EVERY = 16  # one piece in so many is timed
_LEFT_STATES = (7, 8)  # CLOSE and CLOSE_WAIT


class Exchange:
    """Carries one request; made by `Proxy.handle`."""

    __slots__ = (
        "_client_keeps", "_cooked", "_edit", "_ended_at", "_engine", "_finished", "_framing",
        "_held", "_pieces", "_pump", "_refusal", "_retried", "_sent_at", "_started", "_status", "_upload",
        "_watch", "client", "head", "head_bytes", "last_write", "proxy", "state", "t0", "wait_moved",
        "wait_since", "wait_size",
    )  # fmt: skip

    def __init__(
        self,
        proxy: "Proxy",
        client: ClientConnection,
        content: StreamReader,
        head: heads.RequestHead,
        head_bytes: bytes,
        t0: float,
        attach: Callable[[], Observer | None],
    ) -> None:
        self.proxy, self.client = proxy, client
        self.head, self.head_bytes, self.t0 = head, head_bytes, t0
        self.state: State = "waiting_head"
        self._watch = Watch(attach, proxy.unseen, proxy.faults)
        self._upload = Upload(content, client, self._watch, t0, chunked=head.chunked)
        self._edit = edit.Edit(proxy.asks, proxy.edits)
        self._engine: UpstreamConnection | None = None
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pump: asyncio.Task[None] | None = None
        self._framing: heads.ClientFraming = "none"
        self._held: tuple[bytes, ResponseHead] | None = None  # a head that goes out with its first bytes
        self._cooked = False  # pieces do not go out as they came: a head is held, or an edit filters
        self._status: int | None = None
        self._refusal: Refusal | None = None
        self._client_keeps = False
        self._retried = False
        self._started = False
        self._sent_at = 0.0
        self._pieces = 0
        self._ended_at: float | None = None
        self.last_write = 0.0
        self.wait_since: float | None = None
        self.wait_size = 0
        self.wait_moved = 0.0

    # --- the handler's side

    def start(self) -> None:
        """Send the request now, if a connection is there to take it. Straight from the read of the head:
        the handler that calls `run` is two turns of the loop away (before Python 3.12)."""
        self._started = True
        upload = self._upload
        upload.take()
        came = upload.body
        if self._edit.may(self.head, complete=upload.complete):
            if upload.body is None:
                self._pump = asyncio.get_running_loop().create_task(self._guard(self._gather()))
                return
            self._ask_for_more(upload.body)
        engine = self.proxy.pool.take(self.t0) if self._retryable_size() else None
        connected = self._write_request(engine, reused=True) if engine is not None else None
        upload.tell(came)
        if connected is not None:
            self._watch.tell("connected", connected, True)
            self._watch.tell("sent", self._sent_at)

    async def run(self) -> Sent:
        """Carry the exchange to its end."""
        try:
            if not self._started:
                self.start()
            if not self._sent_at and self._pump is None and self.state == "waiting_head":
                engine = await self._connect()
                if engine is not None:
                    self._send(engine)
            await self._finished
        except asyncio.CancelledError:
            self.client_left(monotonic())
            raise
        finally:
            if self._pump is not None:
                self._pump.cancel()
            self.finish("reset", monotonic())  # only if what came before failed
        refused_and_closed = self._refusal is not None and not self._client_keeps
        return Sent(self._client_keeps, self.client.linger if refused_and_closed else None)

    def _ask_for_more(self, body: bytes) -> None:
        self.head_bytes, self._upload.body = self._edit.request(self.head_bytes, body)

    async def _gather(self) -> None:
        """Wait for a body that may be edited, then send it."""
        try:
            await self._upload.gather()
        except (web.RequestPayloadError, ConnectionError):
            self.body_invalid(monotonic())
            return
        self._ask_for_more(self._upload.body or b"")
        engine = self.proxy.pool.take(self.t0) if self._retryable_size() else None
        reused = engine is not None
        engine = engine or await self._connect()
        if engine is not None and self.state == "waiting_head":
            self._pump = None
            self._send(engine, reused=reused)

    def _retryable_size(self) -> bool:
        """A body too long to be kept takes a fresh connection, on which nothing has to be sent again."""
        return not self.head.chunked and (self.head.length or 0) <= KEPT_BODY

    async def _connect(self) -> UpstreamConnection | None:
        try:
            engine = await self.proxy.pool.connect()
        except TimeoutError:
            self._refuse(
                Refusal(504, "connect_timeout", "the engine did not accept a connection in time"), "timeout"
            )
        except OSError:
            self._refuse(Refusal(502, "unreachable", "the engine can't be reached"), "unreachable")
        else:
            if self.state == "waiting_head":
                return engine
            engine.abort()
        return None

    def _send(self, engine: UpstreamConnection, *, reused: bool = False) -> None:
        """Send the request and tell the observer."""
        self._watch.tell("connected", self._write_request(engine, reused=reused), reused)
        self._watch.tell("sent", self._sent_at)

    def _write_request(self, engine: UpstreamConnection, *, reused: bool) -> float:
        """Write the head, and the body where all of it is there; else a task pumps it. Returns the time
        at which the connection was ready."""
        now = monotonic()
        self._engine = engine
        engine.begin(self, head_only=self.head.method == "HEAD", upgrade_asked=self.head.websocket)
        body = self._upload.framed()
        engine.write(self.head_bytes + body if body else self.head_bytes)
        self._sent_at = monotonic()
        if body is None:
            self._pump = asyncio.get_running_loop().create_task(self._guard(self._send_body(engine)))
        elif reused:
            self.proxy.overhead.request_head(self._sent_at - max(self.t0, self.client.read_at))
        return now

    async def _send_body(self, engine: UpstreamConnection) -> None:
        try:
            await self._upload.pump(engine)
        except (web.RequestPayloadError, ConnectionError):
            self.body_invalid(monotonic())

    # --- the sink of the upstream connection

    def on_informational(self, head: ResponseHead) -> None:
        """A 1xx goes to HTTP/1.1 clients."""
        if self.head.version >= (1, 1):
            self._write(heads.response_head(head, "none", http_1_1=True, close=False), monotonic())

    def on_head(self, head: ResponseHead, now: float, *, more: bool) -> None:
        """The response begins; with `more` its first body bytes follow at once, and go in the same write."""
        self._status = head.status
        self._framing = heads.client_framing(head, self.head.method, self.head.version)
        self._client_keeps = self._may_keep_client()
        self.state = "streaming"
        http_1_1 = self.head.version >= (1, 1)
        self._edit.answer(head.status, head.headers)
        shown = head
        if self._edit.unwanted:
            fields = [field for field in head.headers if field[0].lower() not in self._edit.unwanted]
            shown = head._replace(headers=fields)
        out = heads.response_head(shown, self._framing, http_1_1=http_1_1, close=not self._client_keeps)
        self._cooked = self._edit.filters
        if more:
            self._held, self._cooked = (out, head), True
        else:
            self._write(out, now)
            self._head_written(head, now)

    def _head_written(self, head: ResponseHead, now: float) -> None:
        self._watch.tell("response_head", head.status, head.headers, now)
        self.proxy.overhead.response_head(monotonic() - now)

    def _may_keep_client(self) -> bool:
        """Another request may follow on this client connection; never with HTTP/1.0.

        Nor after request trailers: aiohttp's parser puts the last one before the next request's fields.
        """
        keeps = self.head.keep_alive and self.head.version >= (1, 1) and not self.client.draining
        return keeps and self._upload.complete and (not self.head.chunked or self.client.ends_with_last_chunk)

    def on_data(self, data: bytes, now: float, raw: bytes | None = None) -> None:
        """Hot: one call a socket read. Write first, then look. `raw`: `data` as the one chunk it came as."""
        transport = self.client.transport
        if transport is None:
            return
        if self.last_write != now and transport.get_write_buffer_size():
            self._waiting(now)
        elif self.wait_since is not None and self.last_write != now:
            self._wait_over(now)
        self.last_write = now
        if self._cooked:
            self._write_cooked(transport, data, now)
        elif self._framing == "chunked":
            transport.write(raw or b"%x\r\n%b\r\n" % (len(data), data))
        elif self._framing != "none":
            transport.write(data)
        if self._watch.attached:
            self._pieces += 1
            if not self._pieces % OVERHEAD_EVERY:
                self.proxy.overhead.chunk(monotonic() - now)
            self.proxy.unseen.add(self._watch, data, now)

    def _write_cooked(self, transport: asyncio.Transport, data: bytes, now: float) -> None:
        """Write with the head that was held, or without the events that an edit caused."""
        held, self._held = self._held, None
        self._cooked = self._edit.filters
        out = self._to_client(self._edit.feed(data))
        if held is not None:
            out = held[0] + out
        if out:
            transport.write(out)
        if held is not None:
            self._head_written(held[1], now)

    def _to_client(self, data: bytes) -> bytes:
        if not data or self._framing == "none":
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._framing == "chunked" else data

    def _end_edit(self, now: float) -> None:
        rest = self._to_client(self._edit.end())
        self._cooked = False
        if rest:
            self._write(rest, now)

    def on_end(self, trailers: Headers, now: float) -> None:
        """The engine's response is complete."""
        if self.state == "waiting_head":  # the head came with the end: on_head has run, or it is a tunnel
            return
        buffered = self._buffered()
        behind = self.last_write != now and buffered > 0
        self._end_edit(now)
        if self._framing == "chunked":
            self._write(heads.last_chunk(trailers), now)
        if not self._upload.complete and self.state != "tunnelling":
            self._client_keeps = False
        if behind or self.wait_since is not None:
            self._ended_at = now
            self._waiting(now)
            self._look_soon(0.0)
        elif buffered > SURELY_SENT:  # uvloop writes when all that was read is seen to
            self._ended_at = now
            asyncio.get_running_loop().call_soon(self._flushed)
        else:
            self.finish("clean", now)

    def on_upgrade(self, head: ResponseHead, rest: bytes, now: float) -> None:
        """101 to a WebSocket request: from here both sides are bytes."""
        self._status = 101
        self.state = "tunnelling"
        self._framing = "length"  # bytes as they come
        self._write(heads.response_head(head, "none", http_1_1=True, close=False), now)
        self._watch.tell("response_head", 101, head.headers, now)
        self._watch.stop()  # a tunnel's bytes are nobody's
        if rest:
            self.on_data(rest, now)
        if self._engine is not None and self.client.transport is not None:
            self._engine.feed_from(self.client.transport)
        self.client.set_parser(cast("Any", Tunnel(self)))  # only feed_data and feed_eof are used

    def on_error(self, fault: UpstreamFault, now: float) -> None:
        """The engine's side broke: once again, an error of our own, or a cut without a terminator."""
        engine, self._engine = self._engine, None
        if self.state == "waiting_head":
            if self._may_retry(engine, fault, now):
                self._retried = True
                self.proxy.retries[fault] += 1
                self._restart_upload()
            else:
                reason = "invalid_response" if fault == "invalid" else "upstream_reset"
                self._refuse(
                    Refusal(502, reason, "the engine closed the connection or did not speak HTTP"), "reset"
                )
        elif self.state in ("streaming", "tunnelling"):
            self._end_edit(now)
            self.finish("reset" if fault == "reset" else "cut", now)

    def from_client(self, data: bytes) -> None:
        """Bytes of the client in a tunnel."""
        if self._engine is not None:
            self._engine.write(data)

    # --- the one retry

    def _may_retry(self, engine: UpstreamConnection | None, fault: UpstreamFault, now: float) -> bool:
        return (
            engine is not None
            and engine.used
            and engine.received == 0
            and fault != "invalid"
            and not self._retried
            and self._upload.kept is not None
            and now - self._sent_at <= RETRY_WITHIN
            and self.client.transport is not None
        )

    def _restart_upload(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        self._pump = asyncio.get_running_loop().create_task(self._guard(self._retry()))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that fails must end the exchange: nobody else waits for it."""
        try:
            await work
        except Exception:
            self.proxy.faults["relay"] += 1
            self._refuse(Refusal(502, "relay", "the request could not be relayed"), "reset")
            self.finish("reset", monotonic())

    async def _retry(self) -> None:
        engine = await self._connect()
        if engine is None or self.state != "waiting_head":
            return
        self._pump = None  # `_send` may start the next one
        self._upload.again()
        self._send(engine)

    # --- the client's side

    def client_closed(self, now: float) -> None:
        """FIN from the client, which may have taken everything before."""
        if self._ended_at is not None and not self._buffered():
            self._client_keeps = False
            self.finish("clean", self._ended_at)
        else:
            self.client_left(now)

    def client_left(self, now: float) -> None:
        """The client is gone."""
        self._client_keeps = False
        self.finish("client_left", now)

    def body_invalid(self, now: float) -> None:
        """The request body breaks its framing, or ended too early."""
        if self.client.transport is None or self.client.transport.is_closing():
            self.client_left(now)
        elif self._upload.ended:
            return  # what is broken came after this request
        elif self.state == "waiting_head":
            self._refuse(Refusal(400, "invalid_body", "the request body is not valid"), "rejected")
        else:
            self.finish("client_left", now)
            self.abort_client()

    def body_timed_out(self) -> None:
        """No byte of the request body came for too long although it was read."""
        if self.state == "waiting_head":
            self._refuse(Refusal(408, "body_timeout", "the request body did not arrive in time"), "rejected")
        else:
            self.finish("client_left", monotonic())
            self.abort_client()

    def head_timed_out(self) -> None:
        """The engine has not answered within `limits.response_head_timeout`."""
        self._refuse(Refusal(504, "response_timeout", "the engine did not answer in time"), "timeout")

    def client_stalled(self, now: float) -> None:
        """The client has taken nothing for `limits.client_write_timeout`."""
        self.client_left(now)
        self.abort_client()

    def pause(self, now: float) -> None:
        """The client's transport is full: stop reading from the engine."""
        self._waiting(now)
        if self._engine is not None and not self._engine.transport.is_closing():
            self._engine.transport.pause_reading()

    def resume(self, now: float) -> None:
        """It takes bytes again."""
        if self._engine is not None and not self._engine.transport.is_closing():
            self._engine.transport.resume_reading()
        self.look(now)

    def look(self, now: float) -> None:
        """See whether an open write wait is over; called by the sweep and when the client takes bytes."""
        if self.wait_since is None:
            return
        size = self._buffered()
        if size == 0:
            self._wait_over(now)
            if self._ended_at is not None:
                self.finish("clean", self._ended_at)
        elif size != self.wait_size:
            self.wait_size, self.wait_moved = size, now

    def _flushed(self) -> None:
        """The response is complete, and what could be sent of it has been."""
        if self.state == "streaming" and self._ended_at is not None:
            if self._buffered():
                self._waiting(self._ended_at)
            self._look_soon(0.0)

    def _look_soon(self, delay: float) -> None:
        """Nothing tells that a buffer is empty which was never full: look, soon at first."""
        if self.wait_since is None and self._ended_at is not None:
            self.finish("clean", self._ended_at)
            return
        self.look(monotonic())
        if self.state == "streaming" and self._ended_at is not None:
            later = max(delay * 1.125, FIRST_LOOK)  # an eighth of what was waited already
            asyncio.get_running_loop().call_later(min(later, LAST_LOOK), self._look_soon, later)

    def uploading(self) -> bool:
        """The client still owes bytes of the body, and we are reading."""
        return self._pump is not None and not self._upload.complete and not self.client._reading_paused

    def left_unseen(self) -> bool:
        """While reading is paused no FIN arrives; the kernel's connection state tells."""
        transport = self.client.transport
        if transport is None or not self.client._reading_paused:
            return False
        return tcp_state(borrow(transport)) in _LEFT_STATES

    def silent_for(self, now: float) -> float:
        """Seconds since the whole request was sent without a response head."""
        if self.state != "waiting_head" or not self._sent_at or not self._upload.complete:
            return 0.0
        return now - max(self._sent_at, self.client.read_at)

    def _buffered(self) -> int:
        """Bytes that the client has yet to take; some, too, of a connection that broke: it dropped them."""
        transport = self.client.transport
        if transport is None:
            return 0
        return transport.get_write_buffer_size() or int(transport.is_closing())

    def _waiting(self, now: float) -> None:
        if self.wait_since is None:
            self.wait_since = self.wait_moved = now
            self.wait_size = self._buffered()
            self.proxy.waiting.add(self)
            self._watch.tell("waiting", now)

    def _wait_over(self, now: float) -> None:
        since, self.wait_since = self.wait_since, None
        self.proxy.waiting.discard(self)
        if since is not None:
            self._watch.tell("write_wait", since, now)

    def _write(self, data: bytes, now: float) -> None:
        transport = self.client.transport
        if transport is not None:
            self.last_write = now
            transport.write(data)

    def _refuse(self, refusal: Refusal, end: End) -> None:
        if self.state != "waiting_head":
            return
        self._refusal, self._status = refusal, refusal.status
        now = monotonic()
        self._client_keeps = self._may_keep_client()
        head_only = self.head.method == "HEAD"
        self._write(error_response(refusal, close=not self._client_keeps, head_only=head_only), now)
        self.finish(end, now)

    def abort_client(self) -> None:
        """End the client's connection without a terminator."""
        if self.client.transport is not None:
            self.client.transport.abort()

    # --- the end

    def finish(self, end: End, now: float) -> None:
        """Runs once: releases the upstream connection, ends the client's side, tells the observer."""
        if self.state in ("done", "failed"):
            return
        tunnel = self.state == "tunnelling"
        self.state = "done" if end == "clean" else "failed"
        if self.wait_since is not None:
            self._wait_over(monotonic())
        if self._pump is not None and not self._upload.complete:
            self._pump.cancel()
        engine, self._engine = self._engine, None
        if engine is not None:
            if end == "clean" and self._upload.complete and not tunnel:
                self.proxy.pool.give(engine, now)
            else:
                engine.abort()
        if self._refusal is None and (end in ("cut", "reset") or tunnel):
            self._client_keeps = False
            if end == "reset" or (end == "cut" and self._framing == "bare"):
                close_with_reset(self.client.transport)
            elif end == "cut":
                self.abort_client()
        self._client_keeps = self._client_keeps and not self.client.draining
        self.client.exchange_ended(monotonic(), sized=bool(self.head.length), keeps=self._client_keeps)
        self.proxy.ended(self)
        self._watch.tell("finish", end, now, self._status)
        if not self._finished.done():
            self._finished.set_result(None)


class Tunnel:
    """aiohttp's parser interface after a 101: what the client sends goes to the engine as it is."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes on; `UpstreamConnection.feed_from` pauses the client while the engine takes none."""
        self._exchange.from_client(bytes(data))
        return False, b""

    def feed_eof(self) -> None:
        """The connection's own end is told elsewhere."""
