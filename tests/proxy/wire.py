"""Both ends of a relayed exchange under a test's control, down to the socket.

`Engine` is a scripted server: one list of steps a connection. `Wire` is one TCP connection, of the engine or
of a client: what it received, byte for byte, and how it ended. Nothing here shares code with the proxy.
"""

import asyncio
import fcntl
import hashlib
import os
import re
import socket
import struct
import termios
from collections.abc import Awaitable, Callable, Sequence

WITHIN = 6.0
"""Seconds that any single wait may last before the test fails."""

PROMPT = 2.0
"""Seconds within which an aborted peer has to be noticed, far above one loop turn and one sweep."""


class Watched:
    """Something whose changes a test can wait for."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, holds: Callable[[], object], within: float = WITHIN) -> None:
        try:
            async with asyncio.timeout(within):
                while not holds():
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise AssertionError(f"not within {within} s: {self!r}") from None


class Wire(Watched):
    """One connection: the exact bytes that came (`received`) and how they ended (`end`: eof, reset)."""

    def __init__(self, sock: socket.socket, *, reading: bool = True, keep: bool = True) -> None:
        super().__init__()
        sock.setblocking(False)
        self.sock = sock
        self.received = bytearray()
        self.count = 0
        self.digest = hashlib.sha256()
        self.end: str | None = None
        self.sent = 0
        self.position = 0
        self.heads: list[bytes] = []
        self.messages: list[bytes] = []
        self._keep = keep
        self._may_read = asyncio.Event()
        self._closing: asyncio.Future[None] | None = None
        if reading:
            self._may_read.set()
        self._reader = asyncio.ensure_future(self._read())

    def __repr__(self) -> str:
        tail = bytes(self.received[-300:])
        return f"<{type(self).__name__} received {self.count} bytes ...{tail!r} end={self.end}>"

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while self.end is None:
            await self._may_read.wait()
            try:
                data = await loop.sock_recv(self.sock, 65536)
            except (ConnectionError, BrokenPipeError):
                self.end = "reset"
            else:
                if not data:
                    self.end = "eof"
                self.count += len(data)
                self.digest.update(data)
                if self._keep:
                    self.received += data
            self.changed()

    def read_on(self) -> None:
        self._may_read.set()

    def stop_reading(self) -> None:
        """No further read is begun; one that waits for data already may still take a piece."""
        self._may_read.clear()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(WITHIN):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)
        self.sent += len(data)

    def push(self, data: bytes) -> int:
        """As much as the kernel takes at once; returns the number of bytes taken."""
        try:
            taken = self.sock.send(data)
        except BlockingIOError:
            return 0
        self.sent += taken
        return taken

    def fin(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        """Closes the socket, once its reader has let go of it, even if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self.sock.close()

    async def rst(self) -> None:
        if self._closing is not None:
            return
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.close()

    async def has(self, data: bytes) -> None:
        """Waits until the bytes received hold `data`."""
        await self.until(lambda: data in self.received or self.end)
        assert data in self.received, self

    async def exactly(self, data: bytes) -> None:
        """Waits until as many bytes as `data` has have come and compares them all."""
        await self.until(lambda: self.count >= len(data) or self.end)
        assert bytes(self.received) == data

    async def ended(self, within: float = WITHIN) -> bytes:
        await self.until(lambda: self.end, within)
        return bytes(self.received)

    async def head(self) -> bytes:
        """The next message's head, which it takes; fails when the connection ends first."""
        await self.until(lambda: b"\r\n\r\n" in self.received[self.position :] or self.end)
        stop = self.received.find(b"\r\n\r\n", self.position)
        assert stop >= 0, self
        head = bytes(self.received[self.position : stop + 4])
        self.position = stop + 4
        self.heads.append(head)
        return head

    async def take(self, size: int) -> bytes:
        await self.until(lambda: len(self.received) >= self.position + size or self.end)
        data = bytes(self.received[self.position : self.position + size])
        assert len(data) == size, self
        self.position += size
        return data

    async def take_chunked(self) -> bytes:
        """A chunked body with its framing; every chunk before the last must hold data."""
        start = self.position
        while True:
            await self.until(lambda: b"\r\n" in self.received[self.position :] or self.end)
            stop = self.received.find(b"\r\n", self.position)
            assert stop >= 0, self
            size = int(self.received[self.position : stop], 16)
            self.position = stop + 2
            if size == 0:
                break
            assert (await self.take(size + 2)).endswith(b"\r\n"), self
        while await self._line() != b"\r\n":
            pass
        return bytes(self.received[start : self.position])

    async def _line(self) -> bytes:
        await self.until(lambda: b"\r\n" in self.received[self.position :] or self.end)
        stop = self.received.find(b"\r\n", self.position)
        assert stop >= 0, self
        line = bytes(self.received[self.position : stop + 2])
        self.position = stop + 2
        return line

    async def message(self, *, bodiless: bool = False) -> bytes:
        """The next whole message, head and body, by the framing that its head declares."""
        message = await self._message(bodiless)
        self.messages.append(message)
        return message

    async def _message(self, bodiless: bool) -> bytes:
        head = await self.head()
        status = int(head[9:12]) if head.startswith(b"HTTP/") else None
        if bodiless or (status is not None and (status < 200 or status in (204, 304))):
            return head
        if re.search(rb"(?im)^transfer-encoding: *chunked", head):
            return head + await self.take_chunked()
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        if length:
            return head + await self.take(int(length[1]))
        if status is None:
            return head
        await self.until(lambda: self.end)
        return head + await self.take(len(self.received) - self.position)


Step = Callable[[Wire], Awaitable[None]]
Script = Sequence[Step]


async def request(conn: Wire) -> None:
    """Step: read one whole request."""
    await conn.message()


async def head(conn: Wire) -> None:
    """Step: read a request's head only."""
    await conn.head()


async def fin(conn: Wire) -> None:
    conn.fin()


async def rst(conn: Wire) -> None:
    await conn.rst()


async def close(conn: Wire) -> None:
    await conn.close()


def body(size: int) -> Step:
    """Step: read `size` further bytes."""

    async def step(conn: Wire) -> None:
        await conn.take(size)

    return step


def send(data: bytes) -> Step:
    async def step(conn: Wire) -> None:
        await conn.send(data)

    return step


def wait(event: asyncio.Event) -> Step:
    async def step(_: Wire) -> None:
        await event.wait()

    return step


class Engine(Watched):
    """A server that plays one script a connection; the last script serves every further connection."""

    def __init__(self, scripts: Sequence[Script], *, buffers: int = 0, reading: bool = True) -> None:
        super().__init__()
        self._scripts = scripts
        self._reading = reading
        self.sock = socket.socket()
        if buffers:  # what is set before `listen` holds for every connection
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(64)
        self.sock.setblocking(False)
        self.port: int = self.sock.getsockname()[1]
        self.connections: list[Wire] = []
        self.failures: list[BaseException] = []
        self._tasks: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().add_reader(self.sock, self._accept)

    def __repr__(self) -> str:
        return f"<Engine {self.connections!r} failures={self.failures}>"

    @property
    def heads(self) -> list[bytes]:
        """The heads that the scripts have read, over all connections."""
        return [head for conn in self.connections for head in conn.heads]

    def _accept(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError:  # it has gone again
            return
        conn = Wire(sock, reading=self._reading)
        self.connections.append(conn)
        script = self._scripts[min(len(self.connections), len(self._scripts)) - 1]
        self._tasks.append(asyncio.ensure_future(self._play(conn, script)))
        self.changed()

    async def _play(self, conn: Wire, script: Script) -> None:
        try:
            for step in script:
                await step(conn)
        except (AssertionError, OSError, TimeoutError) as error:
            self.failures.append(error)
        self.changed()

    async def connected(self, count: int = 1) -> Wire:
        """The connection with this number, as soon as it is there."""
        await self.until(lambda: len(self.connections) >= count)
        return self.connections[count - 1]

    async def refuse(self) -> None:
        """From now on no new connection is accepted; those that are open stay."""
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()

    async def stop(self) -> None:
        if self.sock.fileno() >= 0:
            await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for conn in self.connections:
            await conn.close()


def queued(local: int, remote: int) -> tuple[int, int]:
    """(bytes sent and not acknowledged, bytes received and not read) of a loopback socket of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            sock = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with sock:
            try:
                found = ports(sock) == (local, remote)
            except (OSError, IndexError):  # not connected, or not of this family
                continue
            if found:
                sizes = [fcntl.ioctl(sock, code, b"    ") for code in (termios.TIOCOUTQ, termios.FIONREAD)]
                return int.from_bytes(sizes[0], "little"), int.from_bytes(sizes[1], "little")
    return 0, 0


async def all_read(conn: Wire) -> None:
    """Waits until the peer has read what this connection sent."""
    mine, theirs = ports(conn.sock)
    async with asyncio.timeout(PROMPT):
        while queued(theirs, mine)[1] > 0:
            await asyncio.sleep(0)


def ports(sock: socket.socket) -> tuple[int, int]:
    """(its port, its peer's port)"""
    return sock.getsockname()[1], sock.getpeername()[1]


def pattern(size: int, start: int = 0) -> bytes:
    """`size` bytes that differ from place to place, from offset `start` of one endless sequence."""
    first = start // 8
    block = b"".join(number.to_bytes(8, "big") for number in range(first, first + size // 8 + 2))
    return block[start % 8 :][:size]
