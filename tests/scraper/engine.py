"""An engine's pages on a real socket: what is asked, what is answered, and when."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from sidecar.config import EngineConfig
from sidecar.scraper.targets import Target, targets

PAGE = (
    'vllm:num_requests_running{model_name="m"} 3\n'
    'vllm:generation_tokens_total{model_name="m"} 100\n'
    'vllm:request_queue_time_seconds_bucket{le="0.3",model_name="m"} 2\n'
    'vllm:request_queue_time_seconds_bucket{le="+Inf",model_name="m"} 4\n'
    'vllm:request_queue_time_seconds_count{model_name="m"} 4\n'
    'vllm:request_queue_time_seconds_sum{model_name="m"} 2.5\n'
    "process_start_time_seconds 1.5e9\n"
)

Reply = web.StreamResponse | str
Answer = Reply | Callable[[web.BaseRequest], Awaitable[Reply]]


def models(owner: str) -> web.Response:
    return web.json_response({"data": [{"id": "m", "owned_by": owner}]})


class FakeEngine:
    """Answers by path, 404 to the rest; a text is a page."""

    def __init__(self, answers: dict[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = {"/metrics": PAGE} if answers is None else answers
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.most = 0
        self.port = 0
        self.arrived = asyncio.Event()

    @property
    def times(self) -> Counter[str]:
        return Counter(self.asked)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most = max(self.most, self.running)
        self.arrived.set()
        try:
            answer = self.answers.get(request.path, web.Response(status=404))
            if callable(answer) and not isinstance(answer, web.StreamResponse):
                answer = await answer(request)
            if isinstance(answer, str):
                return web.Response(text=answer)
            if isinstance(answer, web.Response):  # one of its own each time
                headers = {k: v for k, v in answer.headers.items() if k.lower() != "content-length"}
                return web.Response(status=answer.status, body=answer.body, headers=headers)
            return answer
        finally:
            self.running -= 1

    @asynccontextmanager
    async def serving(
        self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator["FakeEngine"]:
        runner = web.ServerRunner(web.Server(self.handle, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()

    def target(self, path: str = "") -> Target:
        return targets(f"http://127.0.0.1:{self.port}{path}", ())[0]


def settings(**fields: Any) -> EngineConfig:
    return EngineConfig.model_validate(fields)
