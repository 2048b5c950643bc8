"""The proxy between a scripted engine and scripted clients, and what must hold after any exchange."""

import asyncio
import contextlib
import functools
import inspect
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from sidecar.config import Limits
from sidecar.proxy import Proxy, Upstream
from sidecar.proxy.proxy import AS_IT_COMES, TracePolicy
from sidecar.proxy.upstream import UpstreamConnection

from .wire import WITHIN, Engine, Script, Watched, Wire


class Recorder(Watched):
    """An observer of one exchange that notes every call."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.start = start
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __repr__(self) -> str:
        return f"<Recorder {[name for name, _ in self.calls]} end={self.end} status={self.status}>"

    def _note(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))
        self.changed()

    def request_data(self, data: bytes, now: float) -> None:
        self._note("request_data", bytes(data), now)

    def request_end(self, now: float) -> None:
        self._note("request_end", now)

    def connected(self, now: float, reused: bool) -> None:
        self._note("connected", now, reused)

    def sent(self, now: float) -> None:
        self._note("sent", now)

    def response_head(self, status: int, headers: Any, now: float) -> None:
        self._note("response_head", status, tuple(headers), now)

    def observe(self, data: bytes, now: float) -> None:
        self._note("observe", bytes(data), now)

    def waiting(self, since: float | None) -> None:
        self._note("waiting", since)

    def write_wait(self, start: float, end: float) -> None:
        self._note("write_wait", start, end)

    def detach(self) -> None:
        self._note("detach")

    def finish(self, end: str, now: float, status: int | None = None) -> None:
        self._note("finish", end, now, status)

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]

    @property
    def end(self) -> str | None:
        return next((arguments[0] for arguments in self.named("finish")), None)

    @property
    def status(self) -> int | None:
        return next((arguments[2] for arguments in self.named("finish")), None)

    @property
    def request_body(self) -> bytes:
        return b"".join(data for data, _ in self.named("request_data"))

    @property
    def response_body(self) -> bytes:
        return b"".join(data for data, _ in self.named("observe"))


class Relay(Watched):
    """The proxy between an engine and the clients of one test."""

    def __init__(
        self, engine: Engine, limits: Limits, attach: Callable[[Any], Any] | None, tracing: TracePolicy
    ) -> None:
        super().__init__()
        self.engine = engine
        self._exchanges: list[Recorder] = []
        self.clients: list[Wire] = []
        self.proxy = Proxy(
            Upstream("127.0.0.1", engine.port), limits, attach or self._record, tracing=tracing
        )
        self.port = 0

    def _record(self, start: Any) -> Recorder:
        recorder = Recorder(start)
        self._exchanges.append(recorder)
        self.changed()
        return recorder

    @property
    def exchanges(self) -> list[Recorder]:
        """Their observers, told of all that has happened so far."""
        self.proxy.unseen.show()
        return self._exchanges

    async def client(self, data: bytes = b"", *, buffers: int = 0, **options: Any) -> Wire:
        """A new client connection that has sent `data`."""
        sock = socket.socket()
        if buffers:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        wire = Wire(sock, **options)
        self.clients.append(wire)
        if data:
            await wire.send(data)
        return wire

    async def exchange(self, count: int = 1) -> Recorder:
        """The observer of the exchange with this number, as soon as it began."""
        await self.until(lambda: len(self.exchanges) >= count)
        return self.exchanges[count - 1]

    async def finished(self, *ends: str, within: float = WITHIN) -> list[Recorder]:
        """Waits until as many exchanges as given have ended, and compares how."""
        for number in range(len(ends)):
            exchange = await self.exchange(number + 1)
            await exchange.until(lambda e=exchange: e.end, within)
        assert [exchange.end for exchange in self.exchanges] == list(ends)
        return self.exchanges

    async def settled(self, within: float = WITHIN) -> None:
        """No exchange is left open, and the observers were told."""
        async with asyncio.timeout(within):
            while self.proxy.open:
                await asyncio.sleep(0.002)
        self.proxy.unseen.show()


class Complaints(logging.Handler):
    """What was logged as an error or given to the loop's exception handler: must stay empty."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        self.seen.append(f"{record.getMessage()} {trace}")

    def unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.seen.append(repr(context))


@contextlib.asynccontextmanager
async def relay(
    *scripts: Script,
    attach: Callable[[Any], Any] | None = None,
    settles: bool = True,
    buffers: int = 0,
    engine_reads: bool = True,
    tracing: TracePolicy = AS_IT_COMES,
    **limits: float,
) -> AsyncIterator[Relay]:
    """A started proxy in front of a scripted engine; checks the invariants when the test is through.

    `buffers`: bytes for the kernel's buffers of the engine's sockets and of the proxy's own, which else grow.
    """
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    asyncio.get_running_loop().set_exception_handler(complaints.unhandled)
    engine = Engine(scripts or [[]], buffers=buffers, reading=engine_reads)
    between = Relay(
        engine, Limits(**{name: in_words(name, value) for name, value in limits.items()}), attach, tracing
    )
    _, between.port = await between.proxy.start("127.0.0.1", 0)
    made = UpstreamConnection.connection_made
    if buffers:
        for server in between.proxy._servers:
            for listening in server.sockets:
                limit_buffers(listening, buffers)  # accepted sockets inherit it

        def made_small(self: UpstreamConnection, transport: Any) -> None:
            made(self, transport)
            limit_buffers(transport.get_extra_info("socket"), buffers)

        UpstreamConnection.connection_made = made_small  # type: ignore[method-assign]
    try:
        yield between
        if settles:
            await between.settled()
            check_exchanges(between.exchanges)
            assert engine.failures == []
    finally:
        UpstreamConnection.connection_made = made  # type: ignore[method-assign]
        for client in between.clients:
            await client.close()
        await between.proxy.stop()
        await engine.stop()
        logging.getLogger().removeHandler(complaints)
    assert complaints.seen == []
    check_exchanges(between.exchanges)


def limit_buffers(sock: Any, size: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def in_words(name: str, value: float) -> float | str:
    """A limit as the configuration writes it: durations have a unit."""
    return value if name == "max_connections" else f"{value}s"


def check_exchanges(exchanges: Sequence[Recorder]) -> None:
    """Every exchange ended once, with nothing observed afterwards, and its steps came in order."""
    once = ("request_end", "response_head")  # a retry connects and sends again
    for exchange in exchanges:
        names = [name for name, _ in exchange.calls]
        assert names.count("finish") == 1, exchange
        assert names[-1] == "finish", exchange
        assert all(names.count(name) <= 1 for name in once), exchange
        if "observe" in names:
            assert names.index("response_head") < names.index("observe"), exchange
        if "sent" in names:
            assert names.index("connected") < names.index("sent"), exchange


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Makes a coroutine function a test that runs on its own loop of each kind (see conftest)."""
    signature = inspect.signature(test)
    factory = inspect.Parameter("loop_factory", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.wraps(test)
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test(**arguments)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(bounded())

    del run.__wrapped__
    run.__signature__ = signature.replace(parameters=[factory, *signature.parameters.values()])
    return run
