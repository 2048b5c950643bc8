"""Connections to the engine that wait for their next request.

Last in, first out, so that the fewest stay warm. A connection is only handed out when nothing says
that the engine has closed it: llama.cpp closes right after a streamed answer although its head said
keep-alive, and a request sent into that instant is lost.
"""

import asyncio
import ssl
from typing import NamedTuple

from sidecar.proxy.sockets import tcp_state
from sidecar.proxy.upstream import UpstreamConnection

_ESTABLISHED = 1


class Upstream(NamedTuple):
    """The address of the engine."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def authority(self) -> bytes:
        """The value of a Host header for it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode("ascii")


class Pool:
    """Idle connections to one engine, and new ones."""

    def __init__(self, upstream: Upstream, *, connect_timeout: float, idle_limit: float) -> None:
        self.upstream = upstream
        self._connect_timeout = connect_timeout
        self._idle_limit = idle_limit
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()

    def take(self, now: float) -> UpstreamConnection | None:
        """An idle connection that the engine still keeps open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < self._idle_limit and self._alive(connection):
                return connection
            connection.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises OSError when the engine can't be reached, TimeoutError when it does
        not answer in time."""
        async with asyncio.timeout(self._connect_timeout):
            _, connection = await asyncio.get_running_loop().create_connection(
                UpstreamConnection, self.upstream.host, self.upstream.port, ssl=self.upstream.tls
            )
        connection.on_lost = self._open.discard
        self._open.add(connection)
        return connection

    def give(self, connection: UpstreamConnection, now: float) -> None:
        """Take a connection back after an exchange; it is kept if another may follow."""
        connection.detach()
        if not connection.reusable:
            connection.abort()
            return
        connection.idle_since = now
        # One turn of the loop first: the FIN that comes with the last chunk is read by then.
        asyncio.get_running_loop().call_soon(self._keep, connection)

    def expire(self, now: float) -> None:
        """Close what has been idle too long, or was closed by the engine."""
        kept = []
        for connection in self._idle:
            if now - connection.idle_since < self._idle_limit and not connection.transport.is_closing():
                kept.append(connection)
            else:
                connection.abort()
        self._idle = kept

    def close(self) -> None:
        """Close every connection, busy ones too."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def _keep(self, connection: UpstreamConnection) -> None:
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()

    @staticmethod
    def _alive(connection: UpstreamConnection) -> bool:
        return connection.reusable and tcp_state(connection.socket) in (_ESTABLISHED, None)
