"""The load generator against an emulator: what it asks for, and that its clients leave as they should."""

import asyncio

import pytest

from sidecar.emulator.costs import StepCosts
from sidecar.emulator.load import SHAPES, Load, Shape

BY_NAME = {shape.name: shape for shape in SHAPES}


def steps(seconds: float) -> StepCosts:
    return StepCosts(fixed=seconds, per_prefill_token=0.0, per_sequence=0.0)


# shape; how the client says that it ended
ENDS = {
    "streamed chat": "finished",
    "streamed chat, usage in each chunk": "finished",
    "unary chat": "finished",
    "reasoning": "finished",
    "tool call": "finished",
    "streamed completion": "finished",
    "asks for a model that is not there": "refused",
}


async def ends_of(url: str, shape: Shape, stop_after: int = 3) -> set[str]:
    """Send at a high rate until some have ended."""
    load = Load(url, 500.0, shapes=(shape,))
    stop = asyncio.Event()
    running = asyncio.create_task(load.run(stop, grace=60.0))
    while sum(load.ends.values()) < stop_after:
        await asyncio.sleep(0)
    stop.set()
    await running
    assert sum(load.ends.values()) == load.sent
    return set(load.ends)


@pytest.mark.parametrize(("name", "end"), ENDS.items(), ids=ENDS)
async def test_clients_that_stay(start_engine, name, end) -> None:
    assert await ends_of(await start_engine(steps(0.001)), BY_NAME[name]) == {end}


async def test_a_client_leaves_in_the_middle(start_engine) -> None:
    url = await start_engine(steps(0.02))
    assert await ends_of(url, BY_NAME["leaves mid-stream"]) == {"left"}


async def test_a_client_loses_its_patience_before_the_first_token(start_engine) -> None:
    url = await start_engine(steps(3600.0))
    assert await ends_of(url, BY_NAME["leaves before the first token"]) == {"left"}


async def test_an_engine_that_is_not_there(unused_tcp_port) -> None:
    assert await ends_of(f"http://127.0.0.1:{unused_tcp_port}", BY_NAME["unary chat"]) == {"failed"}


def test_every_shape_is_tested() -> None:
    assert set(ENDS) | {"leaves mid-stream", "leaves before the first token"} == set(BY_NAME)


async def test_the_same_seed_sends_the_same_requests(start_engine) -> None:
    """Requests of two loads, in order, as far as both came."""
    seen: list[list[str]] = []
    for _ in range(2):
        asked: list[str] = []
        shapes = tuple(
            Shape(str(length), 1.0, "/", lambda draws, asked=asked: asked.append(str(draws.random())) or {})
            for length in range(3)
        )
        load, stop = Load("http://127.0.0.1:9", 1000.0, seed=5, shapes=shapes), asyncio.Event()
        running = asyncio.create_task(load.run(stop))
        while load.sent < 20:
            await asyncio.sleep(0)
        stop.set()
        await running
        seen.append(asked[:20])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 20
