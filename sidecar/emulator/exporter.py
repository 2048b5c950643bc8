"""Posts spans in batches, as an OpenTelemetry batch processor does: after a delay, or when many wait.

The application that exports has no other use for the result, so a failure is said once on stderr and the
batch is dropped.
"""

import asyncio
import sys
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from sidecar.emulator.spans import export_request

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

HEADERS = {"Content-Type": "application/x-protobuf"}
MOST_IN_BATCH = 512
TIMEOUT = aiohttp.ClientTimeout(total=10)


def endpoint(url: str) -> str:
    """The URL to post to: OTLP's own path where it has none."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else parts._replace(path="/v1/traces").geturl()


class Exporter:
    """Build it inside a running event loop; `close` sends what waits."""

    def __init__(self, url: str, delay: float) -> None:
        self._url, self._delay = endpoint(url), delay
        self._loop = asyncio.get_running_loop()
        self._session = aiohttp.ClientSession(headers=HEADERS, timeout=TIMEOUT)
        self._instance = str(uuid.uuid4())
        self._waiting: list[Span] = []
        self._posts: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._complained = False

    def add(self, span: "Span") -> None:
        """Export it within the delay."""
        self._waiting.append(span)
        if len(self._waiting) >= MOST_IN_BATCH:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._delay, self._send)

    async def close(self) -> None:
        """Send what waits, and wait for the answers."""
        self._send()
        await asyncio.gather(*self._posts)
        await self._session.close()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            body = export_request(self._waiting, self._instance)
            self._waiting = []
            task = asyncio.create_task(self._post(body))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)

    async def _post(self, body: bytes) -> None:
        try:
            async with self._session.post(self._url, data=body) as response:
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            if not self._complained:
                self._complained = True
                print(f"sidecar emulate: could not export spans to {self._url}: {failed!r}", file=sys.stderr)
