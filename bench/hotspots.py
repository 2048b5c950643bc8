#!/usr/bin/env python3
"""Where a proxy's CPU time goes under a load: perf by library, py-spy by Python line, strace by system call.

    python bench/hotspots.py [--variant sidecar] [--scenario s256] [--seconds 5]

Each tool that is not installed is left out with a word.  perf and py-spy need the right to trace.
"""

import argparse
import collections
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import machine
from processes import Peer, Upstream, find_program, load_result, load_variants, start_load
from scenarios import LOADS, Load

RAMP_SECONDS = 1.5  # all connections are open by then
STRACE_SECONDS = 2
LINES = 25
MANY = 1_000_000  # unary requests a connection: more than any run has time for


def during_load(
    upstream: Upstream, peer: Peer, load: Load, cpus: set[int], command: list[str]
) -> tuple[str, int]:
    """(output of a tool that ran while the load did, token events meanwhile)."""
    upstream.set(load.tokens, load.rate, load.step)
    client = start_load(peer.port, load.arguments(), cpus)
    time.sleep(RAMP_SECONDS)
    before = upstream.stats()["events"]
    done = subprocess.run(command, capture_output=True, text=True)
    events = upstream.stats()["events"] - before
    load_result(client, load.seconds)
    return done.stdout + done.stderr, events


def perf_lines(data: Path, sort: str) -> list[str]:
    report = ["perf", "report", "-i", str(data), "--stdio", "--sort", sort, "--percent-limit", "0.6"]
    out = subprocess.run(report, capture_output=True, text=True).stdout
    return [re.sub(r"\s+", " ", line.strip())[:110] for line in out.splitlines() if re.match(r"\s+\d", line)]


def py_spy_lines(raw: Path) -> list[str]:
    """Self time by Python line, of the samples in which the process ran."""
    samples: collections.Counter[str] = collections.Counter()
    for line in raw.read_text().splitlines() if raw.exists() else []:
        stack, count = line.rsplit(" ", 1)
        samples[re.sub(r"\S*/site-packages/", "", stack.split(";")[-1])] += int(count)
    total = samples.total()
    return [f"{100 * count / total:5.1f}%  {frame}" for frame, count in samples.most_common(LINES)]


def strace_lines(out: str, events: int) -> list[str]:
    """System calls per token event, of strace -c's table: share, seconds, us each, calls, [errors], name."""
    rows = [fields for fields in map(str.split, out.splitlines()) if len(fields) >= 5 and fields[3].isdigit()]
    calls = [(int(fields[3]) / max(events, 1), fields[-1]) for fields in rows if fields[-1] != "total"]
    return [f"{number:6.2f}  {name}" for number, name in sorted(calls, reverse=True) if number > 0.01]


def show(title: str, lines: list[str]) -> None:
    print(f"\n{title}")
    for line in lines[:LINES] or ["(nothing: is tracing allowed?)"]:
        print("   ", line)


def profile(upstream: Upstream, peer: Peer, load: Load, cpus: set[int], seconds: int, python: str) -> None:
    pid, perf_data, raw = str(peer.pid), peer.directory / "perf.data", peer.directory / "raw"
    duration = str(seconds)
    py_spy = find_program("py-spy", python)
    if shutil.which("perf"):
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-p", pid, "-o", str(perf_data)]
        during_load(upstream, peer, load, cpus, [*record, "--", "sleep", duration])
        show("perf, by library", perf_lines(perf_data, "dso"))
        show("perf, by symbol", perf_lines(perf_data, "dso,symbol"))
    else:
        print("perf is not installed")
    if py_spy:
        record = [py_spy, "record", "-d", duration, "-r", "400", "-f", "raw", "-o", str(raw), "--pid", pid]
        during_load(upstream, peer, load, cpus, record)
        show("py-spy, self time by Python line", py_spy_lines(raw))
    else:
        print("py-spy is not installed: pip install py-spy")
    if shutil.which("strace"):
        command = ["timeout", "-s", "INT", str(STRACE_SECONDS), "strace", "-f", "-c", "-p", pid]
        out, events = during_load(upstream, peer, load, cpus, command)
        show(f"system calls per token event ({events} events)", strace_lines(out, events))
    else:
        print("strace is not installed")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variant", default="sidecar", choices=[v for v in load_variants() if v != "direct"])
    parser.add_argument("--scenario", default="s256", choices=["s64", "s256", "s1024", "step256", "unary32"])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    machine.raise_open_files()
    load_cpus, proxy_cpus = machine.cpus()
    load = LOADS[args.scenario]
    seconds = args.seconds + 2 * RAMP_SECONDS
    if load.unary:
        load = replace(load, requests=MANY, seconds=seconds)
    else:
        load = replace(load, tokens=int(seconds * load.rate))
    upstream = Upstream(load_cpus)
    try:
        with Peer(
            args.variant, load_variants()[args.variant], upstream.port, args.python, proxy_cpus
        ) as peer:
            profile(upstream, peer, load, load_cpus, args.seconds, args.python)
    finally:
        upstream.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
