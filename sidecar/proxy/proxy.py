"""The listener: accepts clients, makes an exchange a request, sweeps, drains.

One periodic sweep finds what time alone brings: write waits that ended, bodies and heads that do not
come, clients that left while nothing was read from them. There is no timer per event.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from aiohttp import StreamReader, web
from aiohttp.http_parser import RawRequestMessage

from sidecar.config import Limits
from sidecar.core.tracecontext import RANDOM_BYTES, TraceContext, derive
from sidecar.proxy.edit import Asks
from sidecar.proxy.errors import Refusal
from sidecar.proxy.front import ClientConnection, Front, Sent
from sidecar.proxy.heads import RawHeaders, read_request, request_head
from sidecar.proxy.pool import Pool, Upstream
from sidecar.proxy.relay import Exchange
from sidecar.proxy.unseen import Unseen
from sidecar.proxy.watch import Observer

SWEEP_SECONDS = 0.1
SLOW_SWEEP_EVERY = 10  # of these
BACKLOG = 4096
FLUSH_SECONDS = 0.01
MAX_ID = 128  # bytes of a client's request id that are kept


class RequestStart(NamedTuple):
    """What is known of a request when its head has been read."""

    method: str
    path: bytes
    headers: RawHeaders
    t0: float
    request_id: str
    trace: TraceContext


def _ignore(_seconds: float) -> None: ...


class Overhead(NamedTuple):
    """Where the time goes that a piece spends inside the sidecar (seconds each)."""

    request_head: Callable[[float], None] = _ignore  # read to written upstream, on a pooled connection
    response_head: Callable[[float], None] = _ignore  # read to written and shown to the observer
    chunk: Callable[[float], None] = _ignore  # a body piece: read to written


def _unless_the_caller_declined(trace: TraceContext) -> bool:
    return trace.sampled is not False


class TracePolicy(NamedTuple):
    """What becomes of a caller's trace context on the way to the engine."""

    trust: bool = True  # continue the caller's trace
    sampled: Callable[[TraceContext], bool] = _unless_the_caller_declined  # what the engine is told
    takes_part: bool = True  # else the caller's context passes as it is: nobody would export our span


AS_IT_COMES = TracePolicy()
NOTHING = Asks()

Attach = Callable[[RequestStart], Observer | None]


class Proxy:
    """Forwards every request to one upstream. Build and use it inside a running loop."""

    def __init__(
        self,
        upstream: Upstream,
        limits: Limits,
        attach: Attach | None = None,
        *,
        asks: Asks = NOTHING,
        tracing: TracePolicy = AS_IT_COMES,
    ) -> None:
        self._limits = limits
        self._tracing = tracing
        self._attach = attach
        self.asks = asks
        self.pool = Pool(upstream, connect_timeout=limits.connect_timeout, idle_limit=limits.upstream_idle)
        self.open: set[Exchange] = set()
        self.waiting: set[Exchange] = set()
        self.rejected: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.edits: Counter[str] = Counter()
        self.on_lag: Callable[[float], None] | None = None
        self.overhead = Overhead()
        self.unseen = Unseen()
        self._clients: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweeps = 0
        self._timer: asyncio.TimerHandle | None = None
        self._front = Front(
            self.handle,
            on_idle_request=self.begin,
            on_connected=self._connected,
            on_disconnected=self._clients.discard,
            on_refused=self._refused,
            idle_timeout=limits.idle_timeout,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address that was bound. Raises OSError when it can't be."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._front, host, port, backlog=BACKLOG)
        self._servers.append(server)
        if self._timer is None:
            self._schedule_sweep(loop.time() + SWEEP_SECONDS)
        name = server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def drain(self, grace: float, limit: float) -> bool:
        """Stop accepting after `grace` seconds and let what runs end within `limit`; True if all ended.

        aiohttp's own shutdown would stop reading uploads that are under way.
        """
        await asyncio.sleep(grace)
        self._draining = True
        await self._stop_accepting()
        for client in list(self._clients):
            client.draining = True
            if client.idle and client.transport is not None:
                client.transport.close()
        try:
            async with asyncio.timeout(limit):
                await self._empty.wait()
                await self._flushed()
        except TimeoutError:
            return False
        return True

    async def _flushed(self) -> None:
        """Until the clients have taken what was written; nothing tells when a buffer is empty."""
        while any(client.unsent for client in self._clients):  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_SECONDS)

    async def _stop_accepting(self) -> None:
        """Close the listeners. Stock asyncio first lets sockets that it has accepted get their transport:
        after `close` it would drop them open (CPython's `Server._attach` asserts)."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.SelectorEventLoop):
            for server in self._servers:
                for sock in server.sockets:
                    loop.remove_reader(sock.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
        for server in self._servers:
            server.close()

    async def stop(self) -> None:
        """Close everything at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for server in self._servers:
            server.close()
        for client in list(self._clients):
            client.abort()
        self.pool.close()
        await asyncio.sleep(0)
        await self._front.shutdown(1.0)
        self.unseen.show()

    # --- one request

    async def handle(self, request: web.BaseRequest) -> Any:
        """aiohttp's handler; whatever happens, aiohttp writes nothing."""
        client = request.protocol
        assert isinstance(client, ClientConnection)
        t0 = client.take_head_time()
        exchange: object = client.take_begun()
        if exchange is None:
            client.head_since = None
            if client.transport is None:
                return Sent(False)
            exchange = self._exchange(client, request._message, request.content, t0)
        if isinstance(exchange, Refusal):
            return client.refuse(exchange)
        assert isinstance(exchange, Exchange)
        try:
            return await exchange.run()
        except Exception:
            self.faults["relay"] += 1
            exchange.finish("reset", monotonic())
            if client.transport is not None:
                client.transport.abort()
            return Sent(False)

    def begin(self, client: ClientConnection, message: RawRequestMessage, content: StreamReader) -> None:
        """A request came on an idle connection: send it on at once. `handle` sees to the rest."""
        exchange: Exchange | Refusal | None = None
        try:
            exchange = self._exchange(client, message, content, client.read_at)
            if isinstance(exchange, Exchange):
                client.begun = exchange
                exchange.start()
        except Exception:
            self.faults["relay"] += 1
            if isinstance(exchange, Exchange):
                exchange.finish("reset", monotonic())
            if client.transport is not None:
                client.transport.abort()

    def _exchange(
        self, client: ClientConnection, message: RawRequestMessage, content: StreamReader, t0: float
    ) -> Exchange | Refusal:
        if client.overloaded:
            return Refusal(503, "max_connections", "too many client connections")
        target = message.path.encode("utf-8", "surrogateescape")
        version = (message.version.major, message.version.minor)
        # Behind an offer to go on in another protocol aiohttp's parser drops what came in the same read.
        keep_alive = not message.should_close and not message.upgrade
        head = read_request(message.method, target, version, message.raw_headers, keep_alive=keep_alive)
        if isinstance(head, Refusal):
            return head
        random = os.urandom(RANDOM_BYTES)
        trace = derive(head.first(b"traceparent"), random, trust=self._tracing.trust)
        request_id = head.first(b"x-request-id") or trace.span_id.encode()
        tells = self._tracing.takes_part
        traceparent = trace.header(self._tracing.sampled(trace)) if tells else None
        head_bytes = request_head(
            head,
            self.pool.upstream.authority,
            traceparent,
            request_id,
            new_trace=tells and trace.link is not None,
        )

        def attach() -> Observer | None:
            readable_id = request_id[:MAX_ID].decode("ascii", "backslashreplace")
            return self._observer(
                RequestStart(head.method, head.target, head.headers, t0, readable_id, trace)
            )

        exchange = Exchange(self, client, content, head, head_bytes, t0, attach)
        client.exchange = exchange
        self.open.add(exchange)
        self._empty.clear()
        return exchange

    def _observer(self, start: RequestStart) -> Observer | None:
        if self._attach is None:
            return None
        try:
            return self._attach(start)
        except Exception:
            self.faults["attach"] += 1
            return None

    def ended(self, exchange: Exchange) -> None:
        """Called once by each exchange."""
        self.open.discard(exchange)
        self.waiting.discard(exchange)
        if not self.open:
            self._empty.set()

    # --- connections

    def _connected(self, client: ClientConnection) -> None:
        self._clients.add(client)
        client.draining = self._draining
        if self._draining and client.transport is not None:
            client.transport.close()  # accepted in the instant in which the listener closed
        limit = self._limits.max_connections
        client.overloaded = len(self._clients) > limit
        if len(self._clients) > 2 * limit and client.transport is not None:
            self._refused("max_connections")
            client.transport.abort()

    def _refused(self, reason: str) -> None:
        self.rejected[reason] += 1

    # --- the sweep

    def _schedule_sweep(self, due: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(due, self._sweep, due)

    def _sweep(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        if self.on_lag is not None:
            self.on_lag(max(0.0, loop.time() - due))
        now = monotonic()
        for exchange in list(self.waiting):
            exchange.look(now)
            if (
                exchange.wait_since is not None
                and now - exchange.wait_moved > self._limits.client_write_timeout
            ):
                exchange.client_stalled(now)
        self._sweeps += 1
        if self._sweeps % SLOW_SWEEP_EVERY == 0:
            self._slow_sweep(now)
        self._schedule_sweep(loop.time() + SWEEP_SECONDS)

    def _slow_sweep(self, now: float) -> None:
        limits = self._limits
        self.pool.expire(now)
        for exchange in list(self.open):
            if exchange.left_unseen():
                exchange.client_left(now)
                exchange.abort_client()
            elif exchange.uploading() and now - exchange.client.read_at > limits.body_timeout:
                exchange.body_timed_out()
            elif limits.response_head_timeout and exchange.silent_for(now) > limits.response_head_timeout:
                exchange.head_timed_out()
        for client in list(self._clients):
            if client.head_since is not None and now - client.head_since > limits.head_timeout:
                client.head_since = None
                client.head_timed_out()
            elif (  # the end of an answer so small that its exchange did not wait for it
                client.exchange is None
                and client.unsent
                and now - max(client.read_at, client.response_ended_at) > limits.client_write_timeout
            ):
                client.abort()
