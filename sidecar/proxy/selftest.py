"""Checks at start-up that aiohttp still behaves as `front.py` needs, over a real loopback connection.

The front goes beyond aiohttp's documented interface (it writes through the transport and returns an
already-sent response). An aiohttp that changed there must be found before the first client, not by it.
"""

import asyncio
from typing import Any

from sidecar.config import Limits
from sidecar.proxy.pool import Upstream
from sidecar.proxy.proxy import Proxy

_ANSWER = (
    b"HTTP/1.1 200 Sure\r\nX-a: caf\xe9\r\nx-A: 2\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
)
_REQUEST = b"POST /selftest HTTP/1.1\r\nHost: selftest\r\nContent-Length: 2\r\n\r\n{}"
_SECONDS = 10.0


async def failure() -> str | None:
    """What is wrong with this aiohttp, or None. Two pipelined requests must come back byte for byte."""
    seen: list[bytes] = []

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                seen.append(await reader.readuntil(b"\r\n\r\n{}"))
                writer.write(_ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    proxy = Proxy(Upstream("127.0.0.1", server.sockets[0].getsockname()[1]), Limits())
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _ask(*await proxy.start("127.0.0.1", 0))
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as failed:
        return f"no complete answer ({type(failed).__name__})"
    finally:
        await proxy.stop()
        server.close()
    if answer != _ANSWER * 2:
        return "response bytes were altered"
    if len(seen) != 2 or not all(request.startswith(b"POST /selftest HTTP/1.1\r\n") for request in seen):
        return "request bytes were altered"
    return None


async def _ask(host: str, port: int) -> Any:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST * 2)
        return await reader.readexactly(len(_ANSWER) * 2)
    finally:
        writer.close()
