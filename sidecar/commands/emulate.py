"""`sidecar emulate`: an engine with known timing, for trying things out and for tests."""

import argparse
import asyncio
import json
import re
import sys

from sidecar.emulator.schedule import TimeModel
from sidecar.emulator.server import Options, serve

HELP = "run an emulated engine: vLLM's API and metrics with timing that is known beforehand"

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Durations carry a unit: 80ms, 1.5s."""
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 8000), metavar="HOST:PORT")
    parser.add_argument("--model", action="append", metavar="NAME", help="a served name; may be repeated")
    parser.add_argument(
        "--prefill-time", type=_seconds, default=0.05, metavar="TIME", help="from a slot to the first token"
    )
    parser.add_argument(
        "--prefill-ms-per-token", type=float, default=0.0, metavar="MS", help="added for each prompt token"
    )
    parser.add_argument(
        "--token-time", type=_seconds, default=0.02, metavar="TIME", help="from one token to the next"
    )
    parser.add_argument(
        "--jitter", type=_ratio, default=0.0, metavar="RATIO", help="gaps vary evenly by this ratio, 0 to 1"
    )
    parser.add_argument("--slots", type=_count, default=8, metavar="N", help="sequences that run at a time")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same words and gaps")
    parser.add_argument(
        "--output-tokens", type=_count, default=64, metavar="N", help="of a request that sets no limit"
    )
    parser.add_argument("--max-model-len", type=_count, default=32_768, metavar="N", help="prompt and output")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 could not listen."""
    try:
        asyncio.run(serve(_options(args), args.listen, _announce))
    except OSError as failed:
        print(f"sidecar emulate: could not listen: {failed}", file=sys.stderr)
        return 1
    return 0


def _options(args: argparse.Namespace) -> Options:
    times = TimeModel(
        prefill_time=args.prefill_time,
        prefill_per_token=args.prefill_ms_per_token / 1000,
        token_time=args.token_time,
        jitter=args.jitter,
        slots=args.slots,
    )
    return Options(
        models=tuple(args.model or ("emulated",)),
        times=times,
        seed=args.seed,
        natural_tokens=args.output_tokens,
        max_model_len=args.max_model_len,
    )


def _announce(listen: str) -> None:
    print(json.dumps({"event": "ready", "listen": listen}), flush=True)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ratio from 0 to 1")
    return ratio


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write it with a unit, such as 80ms")
    return float(match[1]) * UNITS[match[2]]
