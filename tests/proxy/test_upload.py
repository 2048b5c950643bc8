"""A 200 MB upload through a proxy process of its own: all bytes arrive, and its memory does not grow."""

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import on_both_loops
from .wire import pattern

SIZE = 200 << 20
GROWTH = 8 << 20
BLOCK = pattern(1 << 20)

PROXY = """
import asyncio, sys
from sidecar.config import Limits
from sidecar.proxy import Proxy, Upstream

async def main():
    proxy = Proxy(Upstream("127.0.0.1", int(sys.argv[2])), Limits())
    print((await proxy.start("127.0.0.1", 0))[1], flush=True)
    await asyncio.Event().wait()

factory = asyncio.SelectorEventLoop
if sys.argv[1] == "uvloop":
    import uvloop
    factory = uvloop.new_event_loop
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(main())
"""


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


class Sink:
    """An engine that reads one upload when told to: its body's length and hash."""

    def __init__(self) -> None:
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen()
        self.sock.setblocking(False)
        self.go = asyncio.Event()
        self.length = 0
        self.hash = hashlib.sha256()
        self._pending = bytearray()

    def _take(self, data: bytes) -> None:
        self.length += len(data)
        self.hash.update(data)

    async def serve(self, chunked: bool) -> None:
        loop = asyncio.get_running_loop()
        conn, _ = await loop.sock_accept(self.sock)
        with conn:
            await self.go.wait()
            while b"\r\n\r\n" not in self._pending:
                self._pending += await loop.sock_recv(conn, 65536)
            del self._pending[: self._pending.index(b"\r\n\r\n") + 4]
            while not (self._dechunk() if chunked else self._plain()):
                data = await loop.sock_recv(conn, 1 << 18)
                assert data
                self._pending += data
            await loop.sock_sendall(conn, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    def _plain(self) -> bool:
        self._take(bytes(self._pending))
        self._pending.clear()
        return self.length >= SIZE

    def _dechunk(self) -> bool:
        """Takes the whole chunks that are there; True after the last."""
        while (stop := self._pending.find(b"\r\n")) >= 0:
            size = int(self._pending[:stop], 16)
            if len(self._pending) < stop + 2 + size + 2:
                break
            self._take(bytes(self._pending[stop + 2 : stop + 2 + size]))
            del self._pending[: stop + 2 + size + 2]
            if size == 0:
                return True
        return False


async def upload(client: socket.socket, chunked: bool, sample: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % SIZE
    await loop.sock_sendall(client, b"POST /upload HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n")
    for number in range(SIZE // len(BLOCK)):
        await loop.sock_sendall(client, b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK) if chunked else BLOCK)
        if number % 10 == 0:
            sample()
    if chunked:
        await loop.sock_sendall(client, b"0\r\n\r\n")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc/PID/smaps_rollup")
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@on_both_loops
async def test_two_hundred_megabytes(chunked: bool) -> None:
    name = "uvloop" if "uvloop" in type(asyncio.get_running_loop()).__module__ else "asyncio"
    sink = Sink()
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", PROXY, name, str(sink.sock.getsockname()[1])],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root + os.pathsep + os.environ.get("PYTHONPATH", "")},
    )
    with process, sink.sock:
        try:
            await exchange(sink, int(process.stdout.readline()), process.pid, chunked)
        finally:
            process.kill()


async def exchange(sink: Sink, port: int, pid: int, chunked: bool) -> None:
    loop = asyncio.get_running_loop()
    before = peak = private_bytes(pid)

    def sample() -> None:
        nonlocal peak
        peak = max(peak, private_bytes(pid))

    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", port))
        serving = asyncio.ensure_future(sink.serve(chunked))
        sending = asyncio.ensure_future(upload(client, chunked, sample))
        await asyncio.sleep(0.5)  # the engine takes nothing: all that can pile up has done so
        assert not sending.done()
        sample()
        sink.go.set()
        await asyncio.gather(sending, serving)
        answer = b""
        while not answer.endswith(b"ok"):
            answer += await loop.sock_recv(client, 65536)
        sample()
    expected = hashlib.sha256()
    for _ in range(SIZE // len(BLOCK)):
        expected.update(BLOCK)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (sink.length, sink.hash.digest()) == (SIZE, expected.digest())
    assert peak - before < GROWTH, f"{(peak - before) >> 10} KiB more"
