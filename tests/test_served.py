"""What the sidecar learns from the engine's list of models, and says when it can't."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from sidecar import served
from sidecar.served import ServedModels

Answer = Callable[[web.Request], web.StreamResponse]


@contextlib.asynccontextmanager
async def engine(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that answers `/v1/models`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    app = web.Application()
    app.router.add_get("/v1/models", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def listed(*names: str) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


def with_key(request: web.Request) -> web.Response:
    return (
        listed("m") if request.headers.get("Authorization") == "Bearer sesame" else web.Response(status=401)
    )


CASES: dict[str, tuple[Answer, tuple[str, ...], str, set[str], bool, str]] = {
    "a list": (lambda _: listed("m", "lora"), (), "", {"m", "lora"}, True, ""),
    "a long list, in pieces": (
        lambda _: listed(*(f"model-{n:05}" for n in range(9000))), (), "", {f"model-{n:05}" for n in range(9000)},
        True, "",
    ),
    "a list that needs a key, which is given": (with_key, (), "sesame", {"m"}, True, ""),
    "a list that needs a key": (with_key, (), "", set(), True, "does not list its models"),
    "the same, with configured models": (with_key, ("mine",), "", {"mine"}, True, ""),
    "no list": (lambda _: web.json_response({"models": 3}), (), "", set(), True, "does not list its models"),
    "no JSON": (lambda _: web.Response(text="["), (), "", set(), True, "does not list its models"),
    "an engine that is loading": (lambda _: web.Response(status=503), (), "", set(), False, "with status 503"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "configured", "key", "learnt", "reachable", "logged"), CASES.values(), ids=CASES.keys()
)
async def test_what_is_learnt(
    answer: Answer,
    configured: tuple[str, ...],
    key: str,
    learnt: set[str],
    reachable: bool,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names: set[str] = set()
    async with engine(answer) as url:
        models = ServedModels(url, configured, names.update, lambda: key)
        watching = asyncio.create_task(models.watch())
        await asyncio.wait_for(models.asked.wait(), 5)
        await asyncio.sleep(0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert (names, models.reachable) == (learnt, reachable)
    said = [record.getMessage() for record in caplog.records if record.name == "sidecar"]
    assert len(said) == bool(logged)
    assert all(logged in line for line in said)


async def test_trouble_is_logged_when_it_begins_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "RETRY_SECONDS", 0.001)
    asked = 0
    answers_again = asyncio.Event()

    def answer(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=500) if asked <= 3 else listed("m")

    async with engine(answer) as url:
        models = ServedModels(url, (), lambda names: answers_again.set() if "m" in names else None)
        watching = asyncio.create_task(models.watch())
        await asyncio.wait_for(answers_again.wait(), 5)
        await asyncio.sleep(0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    lines = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "sidecar"]
    assert [level for level, _ in lines] == [logging.WARNING] * 2
    assert "with status 500" in lines[0][1]
    assert lines[1][1] == "the engine answers and its models are known"


async def test_an_engine_that_is_not_there_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "RETRY_SECONDS", 0.001)
    async with engine(lambda _: listed()) as url:
        pass
    models = ServedModels(url, (), lambda _: None)
    watching = asyncio.create_task(models.watch())
    await asyncio.wait_for(models.asked.wait(), 5)
    await asyncio.sleep(0.05)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    said = [record.getMessage() for record in caplog.records if record.name == "sidecar"]
    assert len(said) == 1
    assert "does not answer" in said[0]
    assert not models.reachable


async def test_an_adapter_has_the_model_that_it_is_one_of() -> None:
    """vLLM's list of a server with `--lora-modules`."""
    data = [{"id": "base", "parent": None}, {"id": "lora", "parent": "base"}]
    async with engine(lambda _: web.json_response({"data": data})) as url:
        models = ServedModels(url, (), lambda _: None)
        watching = asyncio.create_task(models.watch())
        await asyncio.wait_for(models.asked.wait(), 5)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert [models.base_of(name) for name in ("base", "lora", "another")] == ["base", "base", "another"]
