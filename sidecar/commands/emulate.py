"""`sidecar emulate`: an engine with known timing, for trying things out and for tests."""

import argparse
import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

from sidecar.emulator.arguments import address, clock_step, count, pause, ratio, seconds, slowdown, turn
from sidecar.emulator.clock import ClockError
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.options import Api, Fault, FaultKind, Options, OptionsError
from sidecar.emulator.scheduler import Limits
from sidecar.emulator.server import serve
from sidecar.emulator.spans import INSTALL

HELP = "run an emulated engine: vLLM's API, metrics and spans, with timing that is known beforehand"


class Flag(NamedTuple):
    """One option. Without a `type` it is a switch; a default is written as a user would."""

    name: str
    help: str
    metavar: str = ""
    type: Callable[[str], Any] | None = None
    default: Any = None
    repeated: bool = False


SLOWED = "take F times as long in steps that start from FROM to TO seconds after the start"
EVERY = "after N tokens of each M-th request (of each, without M)"

# fmt: off
GROUPS = {
    "engine": (
        Flag("listen", "where; port 0 takes a free one", "HOST:PORT", address, "127.0.0.1:8000"),
        Flag("model", "a served name (emulated)", "NAME", str, repeated=True),
        Flag("seed", "the same seed and arrivals give the same words and steps", "N", int, 0),
        Flag("output-tokens", "output of a request that sets no limit", "N", count, 64),
        Flag("max-model-len", "prompt and output (32768, or less where that has no room)", "N", count),
        Flag("frontend-time", "from the arrival to the queue", "TIME", seconds, "0s"),
        Flag("frontend-token-time", "added to it a prompt token", "TIME", seconds, "0s"),
    ),
    "steps: what has room in one": (
        Flag("max-seqs", "sequences", "N", count, 64),
        Flag("max-step-tokens", "tokens: one a decode, the rest for prompts", "N", count, 2048),
        Flag("kv-blocks", "blocks of the KV cache; without a free one, preemption", "N", count, 4096),
        Flag("block-size", "tokens a block", "N", count, 16),
        Flag("no-prefix-caching", "compute every prompt anew"),
        Flag("no-chunked-prefill", "a prompt waits for a step that has room for all of it"),
    ),
    "steps: how long one takes": (
        Flag("step-time", "each", "TIME", seconds, "10ms"),
        Flag("prefill-token-time", "added a prefill token", "TIME", seconds, "100us"),
        Flag("sequence-time", "added a sequence", "TIME", seconds, "200us"),
        Flag("context-token-time", "added a token of its sequences in the KV cache", "TIME", seconds, "0s"),
        Flag("jitter", "vary evenly by this ratio, 0 to 1", "RATIO", ratio, "0"),
    ),
    "API, as with vLLM's flags": (
        Flag("stream-interval", "tokens an event, after the first", "N", count, 1),
        Flag("per-request-metrics", "the engine's own times beside the usage"),
        Flag("prompt-tokens-details", "cached tokens in the usage"),
        Flag("force-include-usage", "usage in every event, asked for or not"),
        Flag("request-id-headers", "answer with x-request-id"),
        Flag("sse-keep-alive-interval", "comments until the first event", "TIME", seconds),
        Flag("max-queued", "sequences that may wait, then 503", "N", count),
    ),
    "telemetry": (
        Flag("otlp", "post a span for each finished sequence there (http/protobuf)", "URL", str),
        Flag("otlp-delay", "how long spans are collected", "TIME", seconds, "5s"),
        Flag("truth", "append a JSON line for each sequence: its true phases", "FILE", str),
    ),
    "wall clock (of every stamp; durations are monotonic, as vLLM's)": (
        Flag("clock-offset", "ahead of the true time; write --clock-offset=-3600", "SECONDS", float, "0"),
        Flag("clock-drift", "seconds gained a second; below -1 it runs backwards", "RATIO", float, "0"),
        Flag("clock-step", "set forward AT seconds after the start", "SECONDS@AT", clock_step, repeated=True),
    ),
    "faults": (
        Flag("slow-prefill", f"prefill tokens {SLOWED}", "F[@FROM[-TO]]", slowdown, repeated=True),
        Flag("slow-decode", f"all but prefill tokens {SLOWED}", "F[@FROM[-TO]]", slowdown, repeated=True),
        Flag("stall", "the engine stands still AT seconds after the start", "TIME@AT", pause, repeated=True),
        Flag("hold-back", "bytes of a stream, as a hop that buffers", "TIME", seconds, "0s"),
        Flag("cut", f"close the connection {EVERY}", "N[/M]", turn, repeated=True),
        Flag("error", f"break as an engine breaks {EVERY}", "N[/M]", turn, repeated=True),
        Flag("hang", f"stay open and silent {EVERY}", "N[/M]", turn, repeated=True),
    ),
}
# fmt: on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every row of the table."""
    parser.description = f"{HELP}. TIME has a unit: 200us, 80ms, 1.5s, 2m."
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            _add(group.add_argument, flag)


def _add(add: Callable[..., Any], flag: Flag) -> None:
    name, tail = f"--{flag.name}", "" if flag.default is None else " (%(default)s)"
    if flag.type is None:
        add(name, action="store_true", help=flag.help)
    elif flag.repeated:
        shown = f"{flag.help}; may be repeated"
        add(name, action="append", type=flag.type, default=[], metavar=flag.metavar, help=shown)
    else:
        add(name, type=flag.type, default=flag.default, metavar=flag.metavar, help=flag.help + tail)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 could not listen, 2 wrong options."""
    try:
        options = _options(args)
        asyncio.run(serve(options, args.listen, _announce))
    except OptionsError as wrong:
        print(f"sidecar emulate: {wrong}", file=sys.stderr)
        return 2
    except OSError as failed:
        print(f"sidecar emulate: could not listen: {failed}", file=sys.stderr)
        return 1
    return 0


def _options(args: argparse.Namespace) -> Options:
    if args.otlp is not None and not _is_installed("opentelemetry.proto"):
        raise OptionsError(f"--otlp needs the package opentelemetry-proto: {INSTALL}")
    options = Options(
        models=tuple(args.model) or ("emulated",),
        limits=_limits(args),
        costs=_costs(args),
        seed=args.seed,
        natural_tokens=args.output_tokens,
        max_model_len=args.max_model_len,
        frontend_time=args.frontend_time,
        frontend_per_token=args.frontend_token_time,
        api=_api_options(args),
        hold_back=args.hold_back,
        faults=tuple(
            Fault(kind, tokens, every)
            for kind in get_args(FaultKind)
            for tokens, every in getattr(args, kind)
        ),
        clock=ClockError(args.clock_offset, args.clock_drift, tuple(args.clock_step)),
        otlp=args.otlp,
        otlp_delay=args.otlp_delay,
        truth=args.truth,
    )
    _ = options.context
    return options


def _limits(args: argparse.Namespace) -> Limits:
    return Limits(
        max_sequences=args.max_seqs,
        max_step_tokens=args.max_step_tokens,
        kv_blocks=args.kv_blocks,
        block_size=args.block_size,
        prefix_caching=not args.no_prefix_caching,
        chunked_prefill=not args.no_chunked_prefill,
    )


def _costs(args: argparse.Namespace) -> StepCosts:
    return StepCosts(
        fixed=args.step_time,
        per_prefill_token=args.prefill_token_time,
        per_sequence=args.sequence_time,
        per_context_token=args.context_token_time,
        jitter=args.jitter,
        slow_prefill=tuple(args.slow_prefill),
        slow_decode=tuple(args.slow_decode),
        pauses=tuple(args.stall),
    )


def _api_options(args: argparse.Namespace) -> Api:
    return Api(
        stream_interval=args.stream_interval,
        per_request_metrics=args.per_request_metrics,
        prompt_tokens_details=args.prompt_tokens_details,
        force_include_usage=args.force_include_usage,
        request_id_headers=args.request_id_headers,
        keep_alive_interval=args.sse_keep_alive_interval,
        max_queued=args.max_queued,
    )


def _announce(listen: str) -> None:
    print(json.dumps({"event": "ready", "listen": listen}), flush=True)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it is in is missing
        return False
