"""The parts together: what the engine's page does, and what it can't do, to the relay."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from sidecar.app import StartError, engine_scraper
from sidecar.config import EngineConfig, MetricsConfig
from sidecar.metrics import Metrics

NO_START = [
    ({"api_key_env": "NOT_SET"}, "engine.api_key_env: the variable NOT_SET is not set"),
    ({"api_key_file": "/nowhere"}, "engine.api_key_file: can't be read: No such file or directory"),
    (
        {"ca_file": "/nowhere", "metrics": ["https://a:1"]},
        "engine.ca_file: can't be read: No such file or directory",
    ),
]


@pytest.mark.parametrize(("fields", "message"), NO_START)
def test_a_key_or_certificate_that_can_not_be_had_is_told_at_the_start(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(StartError) as caught:
        engine_scraper(EngineConfig.model_validate(fields), "http://a:1", Metrics(MetricsConfig()))
    assert str(caught.value) == message


class Engine:
    """Serves a model; `page` is what `/metrics` does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.page_asked = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}]})
        if request.path == "/metrics":
            self.page_asked.set()
            await asyncio.Event().wait()
        return web.json_response({"said": request.path})


@asynccontextmanager
async def sidecar(
    engine: Engine, tmp_path: Path, settings: str, interface: str = "127.0.0.1"
) -> AsyncIterator[tuple[str, str]]:
    """Where it listens for clients, and its admin address, as the ready line says."""
    runner = web.ServerRunner(web.Server(engine.handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = tmp_path / "sidecar.yaml"
    host, port = runner.addresses[0]
    listens = f'listen: "{interface}:0"\nadmin: "{interface}:0"\n'
    config.write_text(f"upstream: http://{host}:{port}\n{listens}{settings}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sidecar", "serve", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        yield ready["listen"], ready["admin"]
    finally:
        process.terminate()
        await process.wait()
        await runner.cleanup()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.integration
@pytest.mark.parametrize(
    "interface",
    ["127.0.0.1", pytest.param("[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="needs IPv6"))],
)
async def test_the_addresses_of_the_ready_line_can_be_asked_as_they_stand(
    interface: str, tmp_path: Path
) -> None:
    async with (
        sidecar(Engine(), tmp_path, "engine: {enabled: false}\n", interface) as (listen, admin),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        assert [address.rpartition(":")[0] for address in (listen, admin)] == [interface] * 2
        for address, path in ((listen, "/hello"), (admin, "/-/ready")):
            async with session.get(f"http://{address}{path}") as answer:
                assert answer.status == 200


async def until(session: aiohttp.ClientSession, admin: str, line: str) -> None:
    for _ in range(600):
        async with session.get(f"http://{admin}/metrics") as page:
            if line in await page.text():
                return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{line!r} never came")


@pytest.mark.integration
async def test_a_page_that_never_comes_holds_up_nothing(tmp_path: Path) -> None:
    engine = Engine()
    async with (
        sidecar(engine, tmp_path, "engine: {timeout: 300ms, interval: 100ms}\n") as (listen, admin),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        await asyncio.wait_for(engine.page_asked.wait(), 30)
        async with session.get(f"http://{listen}/hello") as answer:  # while the page is awaited
            assert await answer.json() == {"said": "/hello"}
        async with session.get(f"http://{admin}/-/ready") as answer:
            assert answer.status == 200
        await until(session, admin, 'reason="timeout"} 2')
        async with session.get(f"http://{admin}/metrics") as page:
            text = await page.text()
    assert "llm_engine_up{" in text
    assert not [line for line in text.splitlines() if line.startswith("llm_engine_up{") and line[-1] != "0"]


@pytest.mark.integration
async def test_switched_off_the_page_is_never_asked_for(tmp_path: Path) -> None:
    engine = Engine()
    async with (
        sidecar(engine, tmp_path, "engine: {enabled: false, interval: 1ms}\n") as (listen, admin),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
    ):
        for _ in range(5):
            async with session.get(f"http://{listen}/hello") as answer:
                assert answer.status == 200
        async with session.get(f"http://{admin}/metrics") as page:
            assert "llm_engine" not in await page.text()
    assert set(engine.asked) == {"/v1/models", "/hello"}
