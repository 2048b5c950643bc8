#!/usr/bin/env python3
"""Measure the sidecar against Envoy, nginx, HAProxy and a Starlette router, and judge it by its goals.

    make -C bench && python bench/run.py [--rounds 7] [--quick]

All variants run one after another within each scenario, in random order in each round.  Exit code: 0 gates
held, 1 a gate is broken, 2 something is missing.  bench/README.md explains how to read the results.
"""

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TextIO

import machine
import report
from processes import HERE, ROOT, Peer, Spec, Upstream, find_program, load_variants, missing
from scenarios import SCENARIOS, WARM_UP, Bench, Record, Scenario, run_load

REQUIRED = ("direct", "sidecar", "envoy")
QUICK = ("s64", "ttft64", "unary32")
PACKAGES = ("aiohttp", "uvloop", "httptools", "msgspec", "starlette", "uvicorn")
VERSION_FLAGS = {"envoy": "--version", "nginx": "-v", "haproxy": "-v"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help=f"one round of {', '.join(QUICK)}: no verdict")
    parser.add_argument("--only", default="", metavar="A,B", help="these variants of variants.json")
    parser.add_argument("--scenarios", default="", metavar="A,B", help=f"some of {', '.join(SCENARIOS)}")
    parser.add_argument("--python", default=sys.executable, help="the Python with the sidecar's dependencies")
    parser.add_argument("--out", type=Path, help="results, JSON lines (default: bench/out/TIME.jsonl)")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the tables between this file's markers"
    )
    parser.add_argument(
        "--quiet", type=float, default=0.3, help="wait until fewer than this many cores are busy"
    )
    parser.add_argument("--quiet-seconds", type=float, default=10, help="but at most this long")
    parser.add_argument(
        "--disturbed", type=float, default=0.2, help="repeat a run in which others used more cores"
    )
    parser.add_argument("--retries", type=int, default=2, help="but at most this many times")
    return parser.parse_args()


class Run:
    """One invocation: the processes that are up, and the file of results."""

    def __init__(self, args: argparse.Namespace, variants: dict[str, Spec], out: TextIO) -> None:
        self._args, self._variants, self._out = args, variants, out
        load_cpus, self._proxy_cpus = machine.cpus()
        os.sched_setaffinity(0, load_cpus)  # the runner too: the proxy's CPU is its own
        self._stack = contextlib.ExitStack()
        upstream = Upstream(load_cpus)
        self._stack.callback(upstream.stop)
        self._bench = Bench(upstream, load_cpus, args.quiet, args.quiet_seconds)
        self._peers: dict[str, Peer | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_peers(self) -> None:
        """All of them at once, so that none has the machine's better minutes.  Raises RuntimeError."""
        for name, spec in self._variants.items():
            if "rig" not in spec:
                self._peers[name] = self._stack.enter_context(self._start(name)) if spec.get("cmd") else None
        for peer in self._peers.values():
            self._warm_up(peer)

    def _start(self, name: str) -> Peer:
        return Peer(
            name, self._variants[name], self._bench.upstream.port, self._args.python, self._proxy_cpus
        )

    def _warm_up(self, peer: Peer | None) -> None:
        run_load(self._bench, peer.port if peer else self._bench.upstream.port, WARM_UP)

    def round(self, number: int, names: list[str]) -> None:
        for name in names:
            scenario = SCENARIOS[name]
            order = [v for v in self._variants if self._wanted(scenario, v)]
            random.shuffle(order)
            for variant in order:
                self._measure(number, name, variant)

    def _wanted(self, scenario: Scenario, variant: str) -> bool:
        spec = self._variants[variant]
        if scenario.only or "rig" in spec:
            return variant == scenario.only
        return scenario.direct or bool(spec.get("cmd"))

    def _measure(self, number: int, name: str, variant: str) -> None:
        """Again while others disturb it; every attempt is written, the report takes the quietest."""
        for attempt in range(self._args.retries + 1):
            record: Record = {"scenario": name, "variant": variant, "round": number, "attempt": attempt}
            try:
                with self._peer(SCENARIOS[name], variant) as peer:
                    record |= SCENARIOS[name].measure(self._bench, peer)
            except (RuntimeError, OSError, ValueError) as failed:
                record["failed"] = str(failed)
            self._out.write(json.dumps(record) + "\n")
            self._out.flush()
            print(report.line(record), flush=True)
            if record.get("other_cores", 0) <= self._args.disturbed:
                return

    @contextlib.contextmanager
    def _peer(self, scenario: Scenario, variant: str) -> Iterator[Peer | None]:
        if not scenario.fresh:
            yield self._peers[variant]
            return
        with self._start(variant) as peer:
            if scenario.warm:
                self._warm_up(peer)
            yield peer


def chosen_variants(args: argparse.Namespace) -> dict[str, Spec]:
    """The variants to run.  Exits with 2 when a required one is not installed; others are left out aloud."""
    variants = load_variants()
    wanted = args.only.split(",") if args.only else list(variants)
    unknown = set(wanted) - set(variants)
    absent = [name for name in wanted if name in variants and missing(variants[name], args.python)]
    for name in unknown:
        print(f"bench: no variant {name}; there are {', '.join(variants)}", file=sys.stderr)
    for name in absent:
        print(f"bench: {name} is not installed; {variants[name]['needs']}", file=sys.stderr)
    required = wanted if args.only else REQUIRED
    if unknown or set(required) & set(absent):
        raise SystemExit(2)
    return {name: variants[name] for name in wanted if name not in absent}


def chosen_scenarios(args: argparse.Namespace) -> list[str]:
    if not args.scenarios:
        return list(QUICK) if args.quick else list(SCENARIOS)
    names = args.scenarios.split(",")
    unknown = set(names) - set(SCENARIOS)
    if unknown:
        print(f"bench: no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}", file=sys.stderr)
        raise SystemExit(2)
    return names


def describe(args: argparse.Namespace, variants: dict[str, Spec]) -> Record:
    """Everything that a reader needs to compare this run with another."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    for name, flag in VERSION_FLAGS.items():
        program = find_program(name, args.python)
        if name in variants and program:
            versions[name] = report.version(_output([program, flag]))
    commit = _output(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]).strip()
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"meta": machine.describe() | {"date": now, "commit": commit, "versions": versions}}


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr


def measure(args: argparse.Namespace, out: Path) -> None:
    variants, names = chosen_variants(args), chosen_scenarios(args)
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "w") as file, Run(args, variants, file) as run:
        file.write(json.dumps(describe(args, variants)) + "\n")
        run.start_peers()
        for number in range(1 if args.quick else args.rounds):
            run.round(number, names)


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are stopped
    if not (HERE / "sse_load").exists():
        print("bench: not built; run `make -C bench`", file=sys.stderr)
        return 2
    if args.write is not None:
        try:
            report.marked_page(args.write)  # now, not after forty minutes
        except ValueError as wrong:
            print(f"bench: {wrong}", file=sys.stderr)
            return 2
    machine.raise_open_files()
    out = args.out or HERE / "out" / f"{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    try:
        measure(args, out)
    except RuntimeError as failed:
        print(f"bench: {failed}", file=sys.stderr)
        return 2
    print(f"\nresults: {out}\n")
    return report.show(out, args.write)


if __name__ == "__main__":
    sys.exit(main())
