"""Child processes of the demo: started, awaited until they say that they are ready, ended by their id."""

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import IO, Any

READY_SECONDS = 30.0
END_SECONDS = 10.0
LOG_BYTES = 2000


class ChildError(Exception):
    """A child did not start or ended by itself; the message holds the end of its log."""


@contextlib.asynccontextmanager
async def child(*arguments: str) -> "AsyncIterator[Child]":
    """Run `python -m sidecar ARGUMENTS`; ends it on the way out. Raises ChildError."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # Ctrl-C is for the demo, which then ends its children in order.
            start_new_session=True,
        )
        running = Child(arguments[0], process, log)
        try:
            await running.wait_until_ready()
            yield running
        finally:
            await running.end()


class Child:
    """One running child; `ready` is what its ready line said."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self.name = name
        self.ready: Mapping[str, Any] = {}
        self._process, self._log = process, log

    async def wait_until_ready(self) -> None:
        """Read lines until the one with `"event": "ready"`."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while self.ready.get("event") != "ready":
                    self.ready = await self._line()
        except TimeoutError:
            raise ChildError(f"`sidecar {self.name}` was not ready in {READY_SECONDS:.0f} s") from None

    async def _line(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise await self.failure()
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                return said
        return {}

    async def failure(self) -> ChildError:
        """Wait until it ends: the error to raise."""
        code = await self._process.wait()
        self._log.seek(0)
        tail = self._log.read()[-LOG_BYTES:].decode(errors="replace").strip()
        return ChildError(f"`sidecar {self.name}` ended with code {code}\n{tail}")

    async def end(self) -> None:
        """SIGTERM, then wait; SIGKILL when that takes too long. Only ever this process."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def memorable(host: str, port: int) -> str:
    """HOST:PORT when it is free, else HOST:0, which takes any free port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return f"{host}:0"
    return f"{host}:{port}"
