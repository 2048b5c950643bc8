"""The router many teams write: uvicorn (uvloop, httptools), Starlette, aiohttp's client; no measuring."""

import argparse
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade",
}  # fmt: skip
NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length"}


class Router:
    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: Request) -> StreamingResponse:
        body = await request.body()
        headers = [(k, v) for k, v in request.headers.items() if k not in NOT_FORWARDED]
        url = self._upstream + request.url.path
        answer = await self._client().request(request.method, url, data=body or None, headers=headers)
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
        return StreamingResponse(relay(answer), status_code=answer.status, headers=kept)

    def _client(self) -> aiohttp.ClientSession:
        """Made at the first request: a session needs a running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


async def relay(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.content.iter_any():
            yield piece
    finally:
        answer.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True, help="port on 127.0.0.1")
    args = parser.parse_args()
    router = Router(f"http://127.0.0.1:{args.upstream}")
    app = Starlette(routes=[Route("/{path:path}", router.handle, methods=["GET", "POST"])])
    uvicorn.run(
        app, host="127.0.0.1", port=args.port, log_level="error", access_log=False,
        loop="uvloop", http="httptools", backlog=4096,
    )  # fmt: skip


if __name__ == "__main__":
    main()
