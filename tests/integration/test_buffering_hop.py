"""A real nginx between sidecar and engine: with buffering on it is found out, with buffering off it is not.

The engine here sends a chunk every few milliseconds; what the hop does to them is nginx's own doing.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sidecar.config import Limits
from sidecar.core.record import RequestRecord
from sidecar.proxy import Proxy, Upstream
from sidecar.proxy.observer import StreamObserver

CHUNKS = 60
EVERY = 0.01
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"token %d"}}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
BODY = b'{"model":"m","stream":true}'
CONF = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/err crit; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{engine}; {settings} }}
  }}
}}
"""
GZIP = "gzip on; gzip_types text/event-stream; gzip_proxied any; gzip_min_length 1;"
HTTP_1_1 = "proxy_http_version 1.1;"
# What nginx 1.22 does as it comes: it speaks HTTP/1.0 to the engine and fills its buffers. With HTTP/1.1 it
# passes a chunk on once the engine has no more for the moment, unless the response is compressed, which holds
# it to its end: the compressor is not flushed.
HOPS = {
    "nginx as it comes": ("", True),
    "nginx that compresses what it buffers": (f"{HTTP_1_1} {GZIP}", True),
    "nginx with HTTP/1.1 to the engine": (HTTP_1_1, False),
    "nginx with proxy_buffering off": ("proxy_buffering off;", False),
    "nginx that compresses without buffering": (f"{HTTP_1_1} proxy_buffering off; {GZIP}", False),
    "no hop": (None, False),
}


class Sinks:
    """Keeps the records."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.ended = asyncio.Event()

    def started(self, observer: StreamObserver) -> None: ...
    def gap_sink(self, model: object, operation: str) -> object:
        return lambda gap, tokens: None

    def finished(self, observer: StreamObserver, record: RequestRecord) -> None:
        self.records.append(record)
        self.ended.set()

    def undecodable(self) -> None:
        raise AssertionError("the body could not be decoded")


async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    chunked = b" HTTP/1.1\r\n" in await reader.readuntil(BODY)
    framing = b"Transfer-Encoding: chunked" if chunked else b"Connection: close"
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n%b\r\n\r\n" % framing)
    for number in range(CHUNKS):
        event = EVENT % number if number < CHUNKS - 1 else EVENT % number + END
        writer.write(b"%x\r\n%b\r\n" % (len(event), event) if chunked else event)
        await asyncio.sleep(EVERY)
    if chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


@contextlib.contextmanager
def nginx(settings: str, engine_port: int, folder: Path) -> Iterator[int]:
    """The port of an nginx in front of the engine."""
    if not shutil.which("nginx") and not os.environ.get("CI"):
        pytest.skip("nginx is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = folder / "nginx.conf"
    conf.write_text(CONF.format(dir=folder, port=port, engine=engine_port, settings=settings))
    command = [shutil.which("nginx") or "/usr/sbin/nginx", "-p", str(folder), "-c", str(conf)]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        child.terminate()
        child.wait(10)


@contextlib.asynccontextmanager
async def hop(settings: str | None, engine_port: int, folder: Path) -> AsyncIterator[int]:
    """The port that the sidecar's upstream has."""
    if settings is None:
        yield engine_port
        return
    with nginx(settings, engine_port, folder) as port:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.02)
        yield port


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAccept-Encoding: gzip\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
    )
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.integration
@pytest.mark.parametrize(("settings", "buffered"), HOPS.values(), ids=HOPS)
def test_a_buffering_hop_is_found_and_others_are_not(
    settings: str | None, buffered: bool, tmp_path: Path
) -> None:
    async def run() -> RequestRecord:
        sinks = Sinks()
        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        engine_port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(60), hop(settings, engine_port, tmp_path) as port:
            proxy = Proxy(
                Upstream("127.0.0.1", port), Limits(), lambda start: StreamObserver(start, sinks, 1.0)
            )
            _, listen = await proxy.start("127.0.0.1", 0)
            try:
                assert await ask(listen)
                await sinks.ended.wait()
            finally:
                await proxy.stop()
                server.close()
        return sinks.records[0]

    record = asyncio.run(run())
    assert (record.outcome, record.chunks) == ("completed", CHUNKS)
    assert record.buffered is buffered
    assert (record.tpot is None) is buffered, "what a hop made of the gaps is no measure of the engine"
    if buffered:
        assert record.buffered_because is not None
        assert f"{CHUNKS} token-bearing chunks came in {record.reads} reads" in record.buffered_because
    else:
        assert record.buffered_because is None
