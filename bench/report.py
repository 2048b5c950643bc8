#!/usr/bin/env python3
"""Tables from a run's results: goals and gates, then every variant.

python bench/report.py bench/out/TIME.jsonl [--write docs/performance.md]
"""

import argparse
import collections
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from goals import Judgement, judge_all
from results import FAULTS, Quantity, Record, Results, Rounds, cpu

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
CPU_SCENARIOS = ("s64", "s256", "s1024", "step256", "unary32")
LATENCIES = (
    ("event p50, s256", "s256", "event_us", "p50"),
    ("event p99, s256", "s256", "event_us", "p99"),
    ("event p50, step256", "step256", "event_us", "p50"),
    ("TTFT p50, ttft64", "ttft64", "ttft_us", "p50"),
    ("TTFT p99, ttft64", "ttft64", "ttft_us", "p99"),
    ("request p50, unary32", "unary32", "req_us", "p50"),
)
OWN = (
    ("lag256", "sidecar-lag", "arrival stamp late, p50, us (lag256)", "lag_us.p50"),
    ("lag256", "sidecar-lag", "arrival stamp late, p99, us (lag256)", "lag_us.p99"),
    ("lagstep256", "sidecar-lag", "arrival stamp late, p50, us (lagstep256)", "lag_us.p50"),
    ("lagstep256", "sidecar-lag", "arrival stamp late, p99, us (lagstep256)", "lag_us.p99"),
    ("scrape", "sidecar-series", "event p99, not scraped, us", "without_p99_us"),
    ("scrape", "sidecar-series", "event p99, scraped, us", "with_p99_us"),
    ("scrape", "sidecar-series", "histograms on the page", "histograms"),
    ("scrape", "sidecar-series", "page, gzip, bytes", "page_bytes"),
)


def line(record: Record) -> str:
    """One measurement, for whoever watches the run."""
    head = f"{record['round']} {record['scenario']:10} {record['variant']:14}"
    if "failed" in record:
        return f"{head} FAILED {record['failed']}"
    shown = {k: v for k, v in record.items() if k not in ("scenario", "variant", "round", "load")}
    load = record.get("load", {})
    shown |= {
        k: f"{load[k]['p50']:.0f}/{load[k]['p99']:.0f}" for k in ("event_us", "ttft_us", "req_us") if load
    }
    shown["faults"] = sum(load.get(kind, 0) for kind in FAULTS)
    problem = load.get("first_error", "")[:200]
    return " ".join([head, *(f"{k}={v}" for k, v in shown.items()), problem]).rstrip()


def version(text: str) -> str:
    """The first dotted number of a program's --version."""
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found.group() if found else "unknown"


def span(rounds: Rounds, digits: int) -> str:
    """median (min-max)"""
    if not rounds:
        return "-"
    values = list(rounds.values())
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; nothing when it has no rows."""
    columns, body = list(head), list(map(list, rows))
    lines = [columns, ["---"] * len(columns), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) if body else ""


def machine_text(results: Results) -> str:
    meta = results.meta
    if not meta:
        return ""
    versions = ", ".join(f"{name} {number}" for name, number in meta["versions"].items())
    return (
        f"Measured {meta['date']} at commit {meta['commit']} on {meta['cpus']} CPUs ({meta['cpu']}), "
        f"{meta['memory_gib']} GiB, Linux {meta['kernel']}, Python {meta['python']}; {versions}. "
        f"Runs dropped as disturbed: {len(results.dropped)}; failed: {len(results.failed)}."
    )


def goals_table(judgements: list[Judgement]) -> str:
    rows = [
        (j.goal.what, f"{j.goal.goal:g}", "-" if j.goal.gate is None else f"{j.goal.gate:g}",
         span(j.rounds, 2), str(len(j.rounds)), j.verdict)
        for j in judgements
    ]  # fmt: skip
    return table(("measured", "goal", "gate", "median (min-max)", "rounds", "verdict"), rows)


def cpu_table(results: Results) -> str:
    """us of CPU per token event, in unary32 per request; * where a variant could not keep up."""

    def cell(scenario: str, variant: str) -> str:
        mark = " *" if results.overloaded(scenario, variant) else ""
        return span(results.values(scenario, variant, cpu), 1) + mark

    def ratio(scenario: str, variant: str) -> str:
        found = results.ratios(scenario, variant, "envoy", cpu)
        return f"{statistics.median(found.values()):.2f}" if found else "-"

    used = [s for s in CPU_SCENARIOS if results.variants(s)]
    head = ["CPU us", *(text for s in used for text in (s, "x Envoy"))]
    rows = [
        [v, *(text for s in used for text in (cell(s, v), ratio(s, v)))]
        for v in _variants(results, used)
        if v != "direct"
    ]
    return table(head, rows)


def latency_table(results: Results) -> str:
    """us over the direct path."""
    used = [row for row in LATENCIES if results.added(*row[1:]) is not None]

    def cell(variant: str, scenario: str, quantity: Quantity | None) -> str:
        return span(results.values(scenario, variant, quantity), 0) if quantity else "-"

    rows = [
        [v, *(cell(v, scenario, results.added(scenario, kind, q)) for _, scenario, kind, q in used)]
        for v in _variants(results, [row[1] for row in used])
        if v != "direct"
    ]
    return table(["added us", *(row[0] for row in used)], rows)


def memory_table(results: Results) -> str:
    def row(variant: str) -> list[str]:
        mem, stalled = results.rounds("mem", variant), results.rounds("stalled", variant)
        paused = all(record["paused"] for record in stalled.values()) if stalled else None
        return [
            variant,
            span({n: r["rest_kib"] / 1024 for n, r in mem.items()}, 1),
            span({n: r["kib_per_stream"] for n, r in mem.items()}, 1),
            span({n: r["mib_per_stream"] for n, r in stalled.items()}, 2),
            "-" if paused is None else "yes" if paused else "no",
        ]

    head = ("private memory", "MiB at rest", "KiB an open stream", "MiB a stalled stream", "upstream paused")
    return table(head, map(row, _variants(results, ["mem", "stalled"])))


def own_table(results: Results) -> str:
    """What concerns the sidecar alone: its stamps, and what a scrape does to its streams."""
    rounds = {name: results.rounds(name, variant) for name, variant, *_ in OWN}
    rows = [
        (what, span({n: _at(r, path) for n, r in rounds[name].items()}, 0))
        for name, _, what, path in OWN
        if rounds[name]
    ]
    return table(("sidecar", "median (min-max)"), rows)


def _at(record: Record, path: str) -> float:
    value: Any = record
    for key in path.split("."):
        value = value[key]
    return value


def faults_table(results: Results, variants: list[str]) -> str:
    return table(
        ("all runs", "runs", "lost, reordered, truncated or altered"),
        ([v, str(results.runs(v)), str(results.faults(v))] for v in variants),
    )


def _variants(results: Results, scenarios: list[str]) -> list[str]:
    return sorted({v for scenario in scenarios for v in results.variants(scenario)}, key=_order)


def _order(variant: str) -> tuple[bool, str]:
    return not variant.startswith("sidecar"), variant


def markdown(results: Results, judgements: list[Judgement]) -> str:
    everything = _variants(results, results.scenarios())
    parts = (
        machine_text(results),
        goals_table(judgements),
        cpu_table(results),
        latency_table(results),
        memory_table(results),
        own_table(results),
        faults_table(results, everything),
    )
    return "\n\n".join(part for part in parts if part)


def marked_page(path: Path) -> str:
    """The page that tables are to go into; ValueError when they can't."""
    page = path.read_text() if path.exists() else ""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{path} needs {BEGIN} and {END}, once each")
    return page


def write_between_markers(path: Path, text: str) -> None:
    head, rest = marked_page(path).split(BEGIN)
    path.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")


def summary(judgements: list[Judgement]) -> str:
    counts = collections.Counter(j.verdict for j in judgements)
    return "verdict: " + ", ".join(f"{number} x {verdict}" for verdict, number in counts.items())


def show(results_file: Path, write: Path | None) -> int:
    """Prints the tables; returns 1 when a gate is broken, else 0."""
    results = Results.read(results_file)
    judgements = judge_all(results)
    text = markdown(results, judgements)
    print(f"{text}\n\n{summary(judgements)}")
    if write is not None:
        write_between_markers(write, text)
    return int(any(j.verdict == "GATE BROKEN" for j in judgements))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="put the tables between this file's markers"
    )
    args = parser.parse_args()
    return show(args.results, args.write)


if __name__ == "__main__":
    sys.exit(main())
