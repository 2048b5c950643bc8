"""`sidecar demo`: emulated engine, sidecar and a light load, with a live table of what is measured."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from sidecar.emulator.children import Child, ChildError, child, memorable
from sidecar.emulator.load import Load
from sidecar.emulator.readings import Readings, View, lag, read_page
from sidecar.emulator.table import Screen, screen, summary

HELP = "show it all at once: an emulated engine, the sidecar in front, a light load, a live table"

ENGINE = (
    *("--model", "emulated", "--step-time", "14ms", "--sequence-time", "500us"),
    *("--prefill-token-time", "100us", "--jitter", "0.3", "--max-seqs", "8"),
)
EXPLAINED = (
    "An emulated engine, the sidecar in front of it, and clients, some of whom leave.",
    "A step of the engine takes 14 ms + 0.5 ms a request + 0.1 ms a prompt token, ± 30 %,",
    "for up to 8 requests at a time. The table is what the sidecar measured.",
)
REFRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """HOST:PORT of each part."""

    listen: str
    admin: str
    engine: str

    def lines(self) -> list[str]:
        """What to open."""
        return [
            f"  clients   http://{self.listen}/v1/chat/completions  (try it)",
            f"  metrics   http://{self.admin}/metrics",
            f"  requests  http://{self.admin}/api/requests",
            f"  engine    http://{self.engine}/metrics",
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything has a default."""
    parser.add_argument("--seconds", type=float, metavar="N", help="end after N seconds (default: Ctrl-C)")
    parser.add_argument("--rate", type=float, default=5.0, metavar="R", help="requests a second (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same arrivals and requests")
    parser.add_argument("--no-color", action="store_true")
    parser.add_argument("--listen", metavar="HOST:PORT", help="for clients (default: 127.0.0.1:8080 if free)")
    parser.add_argument("--admin", metavar="HOST:PORT", help="for /metrics (default: 127.0.0.1:9464 if free)")


def run(args: argparse.Namespace) -> int:
    """Exit codes: 0 ended by Ctrl-C, SIGTERM or --seconds; 1 a part did not start or ended by itself."""
    if args.rate <= 0:
        print("sidecar demo: --rate must be above 0", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_demo(args))
    except (ChildError, aiohttp.ClientError) as failed:
        print(f"sidecar demo: {failed}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the lines has seen enough (`sidecar demo | head`); nothing may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


async def _demo(args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    async with _parts(args) as (addresses, children), aiohttp.ClientSession() as session:
        if args.seconds is not None:
            loop.call_later(args.seconds, stop.set)
        load = Load(f"http://{addresses.listen}", args.rate, args.seed)
        watch = Watch(session, addresses)
        head = [*EXPLAINED, "", *addresses.lines()]
        with screen(head, sys.stdout.isatty(), not args.no_color) as shown:
            await _until_stopped(stop, load, children, watch.show_on(shown, stop))
        print(summary(await watch.final(), load.ends), flush=True)
    return 0


@asynccontextmanager
async def _parts(args: argparse.Namespace) -> AsyncIterator[tuple[Addresses, list[Child]]]:
    """Engine and sidecar, running; they are ended in reverse, also when something fails."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(
            child("emulate", "--listen", memorable("127.0.0.1", 8000), "--seed", str(args.seed), *ENGINE)
        )
        listen = args.listen or memorable("127.0.0.1", 8080)
        admin = args.admin or memorable("127.0.0.1", 9464)
        upstream = f"http://{engine.ready['listen']}"
        sidecar = await stack.enter_async_context(
            child("serve", "--upstream", upstream, "--listen", listen, "--admin", admin)
        )
        said = sidecar.ready
        yield Addresses(said["listen"], said["admin"], engine.ready["listen"]), [engine, sidecar]


async def _until_stopped(
    stop: asyncio.Event, load: Load, children: list[Child], watching: Coroutine[Any, Any, None]
) -> None:
    """Load and view run until `stop`. Raises ChildError when a part ends by itself."""
    work = asyncio.gather(load.run(stop), watching)
    guards = [asyncio.create_task(each.failure()) for each in children]
    tasks: list[asyncio.Future[Any]] = [work, *guards]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for guard in guards:
            if guard.done():
                raise guard.result()
        await work
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Watch:
    """Reads the sidecar's own pages, about once a second."""

    def __init__(self, session: aiohttp.ClientSession, addresses: Addresses) -> None:
        self._session, self._addresses = session, addresses
        self._readings = Readings()

    async def show_on(self, shown: Screen, stop: asyncio.Event) -> None:
        """Show a view each second until `stop`; a page that can't be read is left out."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), REFRESH_SECONDS)
            with contextlib.suppress(aiohttp.ClientError):
                shown.show((await self._view())[0])

    async def final(self) -> View:
        """The last view, with the engine's plan beside the measurement."""
        view, requests = await self._view()
        truths = json.loads(await self._get(self._addresses.engine, "/emulator/truth"))
        return replace(view, lag=lag(requests, truths))

    async def _view(self) -> tuple[View, list[dict[str, Any]]]:
        page = read_page(await self._get(self._addresses.admin, "/metrics"))
        requests = json.loads(await self._get(self._addresses.admin, "/api/requests"))["recent"]
        return self._readings.view(page, requests, asyncio.get_running_loop().time()), requests

    async def _get(self, address: str, path: str) -> str:
        async with self._session.get(f"http://{address}{path}") as response:
            response.raise_for_status()
            return await response.text()
