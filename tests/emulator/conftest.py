"""A running emulator on a port of its own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest

from sidecar.emulator.costs import StepCosts
from sidecar.emulator.options import Options
from sidecar.emulator.server import start

StartEngine = Callable[..., Awaitable[str]]

FAST = StepCosts(fixed=0.001, per_prefill_token=0.0, per_sequence=0.0)


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Call it with step costs and other options: the base URL of a new emulator."""
    async with AsyncExitStack() as stack:

        async def begin(costs: StepCosts = FAST, **others) -> str:
            options = Options(models=("tiny-chat",), costs=costs, **others)
            runner, listen = await start(options, "127.0.0.1", 0)
            stack.push_async_callback(runner.cleanup)
            return f"http://{listen}"

        yield begin


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened
