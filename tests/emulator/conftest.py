"""A running emulator on a port of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest

from sidecar.emulator.schedule import TimeModel
from sidecar.emulator.server import Options, start

StartEngine = Callable[..., Awaitable[str]]

FAST = TimeModel(prefill_time=0.01, token_time=0.001, slots=4)


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Call it with a TimeModel and other options: the base URL of a new emulator."""
    async with AsyncExitStack() as stack:

        async def begin(times: TimeModel = FAST, **others) -> str:
            runner, listen = await start(
                Options(models=("tiny-chat",), times=times, **others), "127.0.0.1", 0
            )
            stack.push_async_callback(runner.cleanup)
            return f"http://{listen}"

        yield begin


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened
