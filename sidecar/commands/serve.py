"""`sidecar serve`: the sidecar itself."""

import argparse
import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable

from sidecar import app
from sidecar.config import ConfigError, load

HELP = "run the sidecar in front of an engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags win over the environment, which wins over the file."""
    parser.add_argument("--upstream", metavar="URL", help="the engine, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where clients connect; port 0 takes a free one"
    )
    parser.add_argument("--admin", metavar="HOST:PORT", help="where /metrics and the admin pages are")
    parser.add_argument("--config", metavar="FILE", help="YAML; see docs/configuration.md")
    parser.add_argument(
        "--loop", choices=("auto", "uvloop", "asyncio"), default="auto", help="the event loop"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Exit codes: 0 drained, 1 not started, 2 configuration."""
    try:
        flags = {"upstream": args.upstream, "listen": args.listen, "admin": args.admin}
        config = load(args.config, flags)
    except ConfigError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    try:
        with asyncio.Runner(loop_factory=_loop_factory(args.loop)) as runner:
            return runner.run(app.serve(config, _announce))
    except (OSError, app.StartError) as failed:
        print(f"sidecar: could not start: {failed}", file=sys.stderr)
        return 1


def _announce(listen: str, admin: str) -> None:
    print(json.dumps({"event": "ready", "listen": listen, "admin": admin}), flush=True)


def _loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it can be had: stamps in bursts are several times more exact on it."""
    if choice == "asyncio" or (choice == "auto" and importlib.util.find_spec("uvloop") is None):
        return None
    import uvloop

    return uvloop.new_event_loop
