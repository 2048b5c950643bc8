"""A light open-loop load: Poisson arrivals that do not wait for answers, of a mix of requests.

Open-loop, because clients of a real service do not slow down when it does.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

Body = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
EVERY_USAGE = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
THINK = {"chat_template_kwargs": {"enable_thinking": True}}
WEATHER: Mapping[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request and of client.

    `leaves_after` is the number of HTTP chunks after which the client goes away; `patience` the seconds
    that it waits for the whole answer. `None`: it stays.
    """

    name: str
    weight: float
    path: str
    make: Callable[[random.Random], Body]
    leaves_after: int | None = None
    patience: float | None = None


def _chat(extra: Mapping[str, Any], tokens: tuple[int, int] | None) -> Callable[[random.Random], Body]:
    def make(draws: random.Random) -> Body:
        body: Body = {"messages": [{"role": "user", "content": _prompt(draws)}], **extra}
        return body if tokens is None else body | {"max_tokens": draws.randint(*tokens)}

    return make


def _completion(draws: random.Random) -> Body:
    return {"prompt": _prompt(draws), "max_tokens": draws.randint(20, 60), **USAGE}


def _prompt(draws: random.Random) -> str:
    return "word " * draws.randint(20, 400)


SHAPES = (
    Shape("streamed chat", 40, CHAT, _chat(USAGE, (20, 120))),
    Shape("streamed chat, usage in each chunk", 10, CHAT, _chat(EVERY_USAGE, (20, 80))),
    Shape("unary chat", 12, CHAT, _chat({}, (10, 40))),
    Shape("reasoning", 15, CHAT, _chat(USAGE | THINK, None)),
    Shape("tool call", 10, CHAT, _chat({**USAGE, **WEATHER}, None)),
    Shape("streamed completion", 10, COMPLETION, _completion),
    Shape("leaves mid-stream", 8, CHAT, _chat(USAGE, (60, 120)), leaves_after=12),
    Shape("leaves before the first token", 3, CHAT, _chat(USAGE, (60, 120)), patience=0.03),
    Shape("asks for a model that is not there", 2, CHAT, _chat(USAGE | {"model": "absent"}, (10, 20))),
)


class Load:
    """Sends requests to one base URL; `ends` counts how they ended, as the client saw it."""

    def __init__(self, url: str, rate: float, seed: int = 0, shapes: tuple[Shape, ...] = SHAPES) -> None:
        self.ends: Counter[str] = Counter()
        self.sent = 0
        self._url, self._rate, self._shapes = url, rate, shapes
        self._draws = random.Random(seed)  # noqa: S311 (no secret, a repeatable run)
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event, grace: float = 2.0) -> None:
        """Send until `stop` is set, give open requests `grace` seconds to end, then leave them."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await self._arrivals(session, stop)
            if self._open:
                await asyncio.wait(self._open, timeout=grace)
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _arrivals(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while not stop.is_set():
            at += self._draws.expovariate(self._rate)
            try:
                async with asyncio.timeout_at(at):
                    await stop.wait()
            except TimeoutError:
                self._send(session)

    def _send(self, session: aiohttp.ClientSession) -> None:
        shape = self._draws.choices(self._shapes, [shape.weight for shape in self._shapes])[0]
        task = asyncio.create_task(self._exchange(session, shape, shape.make(self._draws)))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        self.sent += 1

    async def _exchange(self, session: aiohttp.ClientSession, shape: Shape, body: Body) -> None:
        end = "left"
        try:
            async with asyncio.timeout(shape.patience):
                end = await _ask(session, self._url + shape.path, body, shape.leaves_after)
        except TimeoutError:
            pass
        except (aiohttp.ClientError, OSError):
            end = "failed"
        finally:
            self.ends[end] += 1


async def _ask(session: aiohttp.ClientSession, url: str, body: Body, leaves_after: int | None) -> str:
    async with session.post(url, json=body) as response:
        chunks = 0
        async for _, is_whole in response.content.iter_chunks():
            chunks += is_whole
            if chunks == leaves_after:
                response.close()
                return "left"
    return "finished" if response.status < 400 else "refused"
