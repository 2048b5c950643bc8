"""Spans to a collector by OTLP: batched, bounded, and never in anybody's way.

What the queue has no room for, what a collector does not take, and what a dead one never will is dropped
and counted. Retries follow the specification
(https://opentelemetry.io/docs/specs/otlp/#otlphttp-response): 429, 502, 503, 504 and their gRPC equals.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp

from sidecar.core.otlp_frames import Frame, join

log = logging.getLogger("sidecar.tracing")

MAX_QUEUE_BYTES = 8 << 20
MAX_BATCH_SPANS = 512
MAX_BATCH_BYTES = 1 << 19
BATCH_SECONDS = 1.0  # in which spans gather
SEND_SECONDS = 10.0
MAX_RESPONSE = 65536
FIRST_RETRY, MAX_RETRY = 1.0, 30.0  # seconds
MAX_ATTEMPTS = 5
_GRPC_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_HTTP_RETRIED: Final = frozenset({429, 502, 503, 504})
_GRPC_RETRIED: Final = frozenset(
    {
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNAVAILABLE",
        "DATA_LOSS",
    }
)


class UnavailableError(Exception):
    """The collector can't take an export now; `after`: seconds that it asked to wait."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class RefusedError(Exception):
    """The collector will never take this export."""


class Sender(Protocol):
    """One protocol. `send` gives the collector's answer and raises the two errors above."""

    async def send(self, export: bytes) -> bytes: ...
    async def close(self) -> None: ...


class HttpSender:
    """OTLP over HTTP with protobuf bodies."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        """A URL without a path gets the standard one."""
        self._url = url if urlsplit(url).path not in ("", "/") else url.rstrip("/") + "/v1/traces"
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._session: aiohttp.ClientSession | None = None

    async def send(self, export: bytes) -> bytes:
        """See Sender."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SEND_SECONDS))
        try:
            async with self._session.post(
                self._url, data=export, headers=self._headers, allow_redirects=False
            ) as response:
                if response.status in _HTTP_RETRIED:
                    raise UnavailableError(
                        str(response.status), _seconds(response.headers.get("Retry-After"))
                    )
                if response.status != 200:
                    raise RefusedError(str(response.status))
                return await response.content.read(MAX_RESPONSE)
        except (aiohttp.ClientError, TimeoutError, OSError) as failed:
            raise UnavailableError(type(failed).__name__) from None

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()


class GrpcSender:
    """OTLP over gRPC, which needs `grpcio`. Raises ImportError without it."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        import grpc.aio

        parts = urlsplit(url)
        port = parts.port or 4317
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        options = [("grpc.max_receive_message_length", MAX_RESPONSE)]
        self._channel = (
            grpc.aio.secure_channel(f"{host}:{port}", grpc.ssl_channel_credentials(), options)
            if parts.scheme == "https"
            else grpc.aio.insecure_channel(f"{host}:{port}", options)
        )
        self._call: Any = self._channel.unary_unary(_GRPC_METHOD)
        self._metadata = tuple(headers.items())
        self._error: Any = grpc.aio.AioRpcError

    async def send(self, export: bytes) -> bytes:
        """See Sender."""
        try:
            answer: bytes = await self._call(export, timeout=SEND_SECONDS, metadata=self._metadata)
        except self._error as failed:
            code = failed.code().name
            raise (UnavailableError(code) if code in _GRPC_RETRIED else RefusedError(code)) from None
        return answer

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


SENDERS: Final[dict[str, Callable[[str, dict[str, str]], Sender]]] = {"http": HttpSender, "grpc": GrpcSender}


class Exporter:
    """A bounded queue of spans and the task that sends them. All counts go to `counts`, by result."""

    def __init__(
        self,
        sender: Sender,
        rejected: Callable[[bytes], int],
        counts: Counter[str],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`rejected` reads a collector's answer: how many spans it did not take."""
        self._sender, self._rejected, self._counts, self._sleep = sender, rejected, counts, sleep
        self._queue: deque[Frame] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._batch: list[Frame] = []
        self._closing = False
        self._failing = False

    def put(self, frame: Frame) -> None:
        """Queue a span, or drop it."""
        if self._bytes + frame.size > MAX_QUEUE_BYTES:
            self._counts["queue_full"] += 1
            return
        self._queue.append(frame)
        self._bytes += frame.size
        self._filled.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._filled.wait()
            if not self._closing and len(self._queue) < MAX_BATCH_SPANS:
                await self._sleep(BATCH_SECONDS)
            try:
                await self._send(self._take())
            except Exception:
                log.exception("spans can't be exported")
                self._drop("failed", len(self._batch))
                self._batch = []

    async def close(self, task: "asyncio.Task[None]", within: float) -> None:
        """End `task`, which runs `run`; what can't be sent within so many seconds is dropped."""
        self._closing = True
        try:
            async with asyncio.timeout(within):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                while self._batch or self._queue:
                    await self._attempt(self._batch or self._take())
        except (TimeoutError, UnavailableError):
            pass
        finally:
            self._drop("failed", len(self._batch) + len(self._queue))
            self._batch, self._queue, self._bytes = [], deque(), 0
            await self._sender.close()

    def _take(self) -> list[Frame]:
        size = 0
        while self._queue and len(self._batch) < MAX_BATCH_SPANS and size < MAX_BATCH_BYTES:
            frame = self._queue.popleft()
            self._batch.append(frame)
            self._bytes -= frame.size
            size += frame.size
        if not self._queue:
            self._filled.clear()
        return self._batch

    async def _send(self, batch: list[Frame]) -> None:
        for attempt in range(MAX_ATTEMPTS):
            try:
                await self._attempt(batch)
            except UnavailableError as failed:
                self._complain("can't be exported", failed)
                if attempt + 1 < MAX_ATTEMPTS:
                    await self._sleep(_backoff(attempt, failed.after))
            else:
                return
        self._drop("failed", len(self._batch))
        self._batch = []

    async def _attempt(self, batch: list[Frame]) -> None:
        """One try; raises UnavailableError when the batch may be tried again."""
        if not batch:
            return
        try:
            answer = await self._sender.send(join(batch))
        except RefusedError as refused:
            self._complain("are refused by the collector", refused)
            self._drop("rejected", len(batch))
        else:
            self._failing = False
            lost = min(max(self._rejected(answer), 0), len(batch))
            self._drop("rejected", lost)
            self._counts["sent"] += len(batch) - lost
        self._batch = []

    def _complain(self, what: str, why: Exception) -> None:
        """Once, until an export succeeds again."""
        if not self._failing:
            log.warning("spans %s: %s", what, why)
        self._failing = True

    def _drop(self, result: str, count: int) -> None:
        if count:
            self._counts[result] += count


def _backoff(attempt: int, asked: float | None) -> float:
    """Seconds until the next try: what was asked for, else doubling, with jitter."""
    wait = FIRST_RETRY * 2**attempt * random.uniform(0.8, 1.2) if asked is None else asked  # noqa: S311
    return min(wait, MAX_RETRY)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; its other form, a date, is another machine's clock."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
