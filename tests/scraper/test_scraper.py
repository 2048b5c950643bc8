"""A reader an address: names that have several, that change, that can't be resolved."""

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar.catalogue import ENGINE_RUNNING, ENGINE_UP, ENGINE_VIEW
from sidecar.core.signals import Key
from sidecar.scraper import Scraper

from .engine import PAGE, FakeEngine, settings


def label(name: str | None) -> str:
    return name or "only"


class Names:
    """A resolver that is told what to say; None: the name can't be resolved."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: tuple[str, ...] | None = addresses

    async def __call__(self, url: str) -> list[str]:
        if self.addresses is None:
            raise OSError("no such name")
        return list(self.addresses)


def running(scraper: Scraper) -> dict[str, float]:
    """Instance -> running requests, as shown."""
    members = {family.name: members for family, members in scraper.families()}[ENGINE_RUNNING.name]
    return {series.text(False).split('"')[1]: series.value for series in members}  # type: ignore[union-attr]


async def until(scraper: Scraper, count: int) -> None:
    """So many addresses have been read."""
    for _ in range(1000):
        if len(running(scraper)) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not {count}: {running(scraper)}")


@asynccontextmanager
async def engines() -> AsyncIterator[tuple[FakeEngine, FakeEngine]]:
    """Two on one port, at 127.0.0.1 and 127.0.0.2."""
    second = FakeEngine({"/metrics": PAGE.replace('running{model_name="m"} 3', 'running{model_name="m"} 9')})
    async with FakeEngine().serving() as first, second.serving("127.0.0.2", first.port):
        yield first, second


async def test_a_name_with_two_addresses_has_two_readers_and_two_labels() -> None:
    async with engines() as (first, _):
        url = f"http://engine.test:{first.port}"
        names = Names("127.0.0.1", "127.0.0.2")
        scraper = Scraper(settings(metrics=[f"{url}/metrics"]), "http://unused:1", label, resolve=names)
        task = asyncio.create_task(scraper.run())
        await until(scraper, 2)
        assert running(scraper) == {f"127.0.0.1:{first.port}": 3, f"127.0.0.2:{first.port}": 9}
        assert set(scraper.readings) == set(running(scraper))
        assert scraper.windows == {}
        names.addresses = ("127.0.0.2", "127.0.0.3")
        await scraper.look()
        assert running(scraper) == {f"127.0.0.2:{first.port}": 9}
        names.addresses = None
        await scraper.look()  # the last answer stands
        assert running(scraper) == {f"127.0.0.2:{first.port}": 9}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert running(scraper) == {}


async def test_without_urls_the_page_is_looked_for_at_upstream() -> None:
    async with FakeEngine().serving() as engine:
        scraper = Scraper(settings(), f"http://127.0.0.1:{engine.port}", label)
        task = asyncio.create_task(scraper.run())
        await until(scraper, 1)
        assert running(scraper) == {f"127.0.0.1:{engine.port}": 3}
        assert engine.asked[:4] == ["/v1/models", "/prometheus/metrics", "/v1/metrics", "/metrics"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_address_that_two_names_lead_to_has_one_reader() -> None:
    async with FakeEngine().serving() as engine:
        urls = [f"http://{name}.test:{engine.port}/metrics" for name in ("a", "b")]
        names = Names("127.0.0.1", "127.0.0.2")
        scraper = Scraper(settings(metrics=urls), "http://unused:1", label, resolve=names)
        await scraper.look()
        assert len(scraper.readings) == 2
        names.addresses = ()
        await scraper.look()
        assert set(scraper.readings) == {f"a.test:{engine.port}", f"b.test:{engine.port}"}
        task = asyncio.create_task(scraper.run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_window_spans_the_last_two_readings() -> None:
    pages = iter(range(100, 100_000, 10))

    async def growing(_request: object) -> str:
        return PAGE.replace(" 100\n", f" {next(pages)}\n")

    async with FakeEngine({"/metrics": growing}).serving() as engine:
        config = settings(metrics=[f"http://127.0.0.1:{engine.port}/metrics"], interval="1ms")
        scraper = Scraper(config, "http://unused:1", label)
        task = asyncio.create_task(scraper.run())
        for _ in range(1000):
            if scraper.windows:
                break
            await asyncio.sleep(0.01)
        (window,) = scraper.windows.values()
        assert window.counters == {Key("output_tokens", "m"): 10}
        assert window.end > window.start
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_dead_engine_is_shown_as_down_and_every_family_is_named() -> None:
    async with FakeEngine().serving() as engine:
        pass
    scraper = Scraper(settings(), f"http://127.0.0.1:{engine.port}", label)
    task = asyncio.create_task(scraper.run())
    for _ in range(1000):
        found = {family.name: members for family, members in scraper.families()}
        if found[ENGINE_UP.name]:
            break
        await asyncio.sleep(0.01)
    assert [series.value for series in found[ENGINE_UP.name]] == [0]  # type: ignore[union-attr]
    assert list(found) == [family.name for family in ENGINE_VIEW]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# --- TLS


@pytest.fixture(name="certificate")
def _certificate(tmp_path: Path) -> Path:
    """A key and a certificate of `engine.test`, which signs itself, in one file."""
    if shutil.which("openssl") is None:
        assert os.environ.get("CI") != "true", "openssl is missing: CI has it"
        pytest.skip("openssl is not installed")
    file = tmp_path / "engine.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=e"
    names = [
        "-addext",
        "subjectAltName=DNS:engine.test",
        "-keyout",
        str(file),
        "-out",
        str(tmp_path / "c.pem"),
    ]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    file.write_text(file.read_text() + (tmp_path / "c.pem").read_text())
    return file


@pytest.mark.parametrize(
    ("name", "trusted", "up"),
    [("engine.test", True, 1), ("engine.test", False, 0), ("other.test", True, 0)],
    ids=["trusted", "signed by nobody we know", "of another name"],
)
async def test_tls_is_checked_by_name_at_each_address(
    certificate: Path, name: str, trusted: bool, up: int
) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    client = ssl.create_default_context(cafile=str(certificate) if trusted else None)
    async with FakeEngine().serving(tls=server) as engine:
        config = settings(metrics=[f"https://{name}:{engine.port}/metrics"])
        names = Names("127.0.0.1", "127.0.0.2")  # the second is not there
        scraper = Scraper(config, "http://unused:1", label, client, names)
        task = asyncio.create_task(scraper.run())
        for _ in range(1000):
            shown = {family.name: members for family, members in scraper.families()}[ENGINE_UP.name]
            if len(shown) == 2:
                break
            await asyncio.sleep(0.01)
        assert sorted(series.value for series in shown) == [0, up]  # type: ignore[union-attr]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
