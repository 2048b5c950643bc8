"""Recordings of real engines, their HTTP framing taken apart, and a server that plays them over a socket.

`Recording` is one exchange of tests/data/streams; `Splitter` takes heads and framing off a byte stream
without any HTTP library; `RecordedEngine` answers any request with a recording's raw bytes and ends the
connection as it ended then. Nothing here shares code with the sidecar.
"""

import asyncio
import base64
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

DATA = Path(__file__).parent / "data"
STREAMS = DATA / "streams"
SECOND = 1e9
SILENT = ("client_abort", "timeout")
"""Recorded ends in which it was the client that left: the engine had neither finished nor closed."""


class Read(NamedTuple):
    """What one socket read returned, `at` seconds after the start of the request."""

    at: float
    data: bytes


@dataclass(frozen=True)
class Recording:
    """One recorded exchange; `end` is eof, reset, client_abort or timeout."""

    name: str
    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    sent_at: float
    reads: tuple[Read, ...]
    end: str
    ended_at: float

    @property
    def raw(self) -> bytes:
        """The whole response as on the wire."""
        return b"".join(read.data for read in self.reads)

    def cut_after(self, reads: int, end: str) -> "Recording":
        """The same, but the connection ends (eof, reset) after that many reads."""
        return replace(self, reads=self.reads[:reads], end=end, ended_at=self.reads[reads - 1].at)


def recording_names() -> list[str]:
    return sorted(str(p.relative_to(STREAMS))[: -len(".reads.jsonl")] for p in STREAMS.rglob("*.reads.jsonl"))


@cache
def recording(name: str) -> Recording:
    """Load `vllm/plain/chat_stream` and the like."""
    request = json.loads((STREAMS / f"{name}.request.json").read_text())
    *reads, last = map(json.loads, (STREAMS / f"{name}.reads.jsonl").read_text().splitlines())
    body = request["body"]
    return Recording(
        name=name,
        method=request["method"],
        path=request["path"],
        headers=tuple((k.encode(), v.encode()) for k, v in request["headers"].items()),
        body=body.encode() if isinstance(body, str) else json.dumps(body).encode(),
        sent_at=request["sent_ns"] / SECOND,
        reads=tuple(Read(read["t_ns"] / SECOND, base64.b64decode(read["b64"])) for read in reads),
        end=last["event"],
        ended_at=last["t_ns"] / SECOND,
    )


@cache
def expectations() -> dict[str, dict[str, Any]]:
    """What `data/work_out.py` says that each recording should measure."""
    result: dict[str, dict[str, Any]] = json.loads((STREAMS / "expected.json").read_text())
    return result


class Head(NamedTuple):
    start_line: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def status(self) -> int:
        return int(self.start_line.split(b" ")[1])

    def get(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key.lower() == name), b"")


class Part(NamedTuple):
    """A head, a piece of body, or the end of a message."""

    kind: Literal["head", "body", "end"]
    head: Head | None = None
    data: bytes = b""


class Splitter:
    """Takes HTTP/1.1 messages of one direction of a connection apart, whatever pieces they come in.

    All body bytes of one `feed` and one message are one part. `bodiless` says of the next messages, in order,
    whether they have no body whatever their headers say (answers to HEAD).
    """

    def __init__(self, *, response: bool) -> None:
        self._response = response
        self._buffer = b""
        self._left: int | None = None  # of the body or the chunk at hand; None: head or chunk size expected
        self._chunked = False
        self._until_eof = False
        self.bodiless: list[bool] = []
        self.inside = False  # a message has begun and not ended

    def feed(self, data: bytes) -> list[Part]:
        self._buffer += data
        parts: list[Part] = []
        while (part := self._next()) is not None:
            if part.kind == "body" and parts and parts[-1].kind == "body":
                part = Part("body", data=parts.pop().data + part.data)
            if part.kind != "body" or part.data:
                parts.append(part)
        return parts

    def eof(self) -> list[Part]:
        """The peer closed: the end of a message that has no other."""
        if self.inside and self._until_eof:
            self.inside = False
            return [Part("end")]
        return []

    def _next(self) -> Part | None:
        if not self.inside:
            return self._read_head()
        if self._until_eof or self._left is not None:
            return self._read_body()
        return self._read_chunk_size()

    def _read_head(self) -> Part | None:
        text, blank, rest = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return None
        self._buffer = rest
        start, *lines = text.split(b"\r\n")
        head = Head(start, tuple((k, v.strip()) for k, _, v in (line.partition(b":") for line in lines)))
        self.inside = True
        self._chunked = b"chunked" in head.get(b"transfer-encoding")
        length = head.get(b"content-length")
        self._until_eof = self._response and not self._chunked and not length
        self._left = None if self._chunked or self._until_eof else int(length or 0)
        if self.bodiless and self.bodiless.pop(0):
            self._chunked, self._until_eof, self._left = False, False, 0
        return Part("head", head)

    def _read_body(self) -> Part | None:
        if self._left == 0 and not self._chunked:
            self.inside, self._left = False, None
            return Part("end")
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        if self._chunked and self._left == 0:
            if len(self._buffer) < 2:
                return None
            self._buffer, self._left = self._buffer[2:], None
            return Part("body")
        if not take:
            return None
        data, self._buffer = self._buffer[:take], self._buffer[take:]
        if self._left is not None:
            self._left -= take
        return Part("body", data=data)

    def _read_chunk_size(self) -> Part | None:
        line, crlf, rest = self._buffer.partition(b"\r\n")
        if not crlf:
            return None
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            if not rest.startswith(b"\r\n"):
                return None  # trailers are in no recording
            self._buffer = rest[2:]
            self.inside = False
            return Part("end")
        self._buffer, self._left = rest, size
        return Part("body")


def response_parts(reads: Sequence[Read]) -> list[tuple[float, Part]]:
    """Head, body pieces (one a socket read) and end of a recorded response, with the times of their reads."""
    splitter = Splitter(response=True)
    return [(read.at, part) for read in reads for part in splitter.feed(read.data)]


def body_of(reads: Sequence[Read]) -> bytes:
    return b"".join(part.data for _, part in response_parts(reads) if part.kind == "body")


class RecordedEngine:
    """Plays `recording` to any request, on 127.0.0.1 and a port of its own; use with `async with`.

    A read is a write; `delay_factor` stretches (or shrinks) the recorded times between them, 0 leaves them
    out. Then: eof closes, reset sends an RST, client_abort and timeout leave the connection open and silent
    until the client closes it, which sets `client_left`.
    """

    def __init__(self, recording: Recording, *, delay_factor: float = 0.0) -> None:
        self.recording = recording
        self.delay_factor = delay_factor
        self.requests: list[tuple[Head, bytes]] = []
        self.client_left = asyncio.Event()
        self.host, self.port = "127.0.0.1", 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if await self._read_request(reader):
                await self._play(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            self.client_left.set()
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _read_request(self, reader: asyncio.StreamReader) -> bool:
        splitter, head, body = Splitter(response=False), None, b""
        while data := await reader.read(65536):
            for part in splitter.feed(data):
                head, body = part.head or head, body + part.data
                if part.kind == "end" and head is not None:
                    self.requests.append((head, body))
                    return True
        return False

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        before = 0.0
        for at, data in self.recording.reads:
            await asyncio.sleep((at - before) * self.delay_factor)  # 0 too lets the peer read this far
            before = at
            writer.write(data)
            await writer.drain()
        end = self.recording.end
        if end in SILENT:
            await reader.read()
            self.client_left.set()
        elif end == "reset":
            await _flushed(writer)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        else:
            writer.close()
            await writer.wait_closed()


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """Wait until the kernel has taken everything: an abort drops what is still held here."""
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()
