"""The goals and gates, as a table, and the judgement of a run by them.

A goal holds when the median of the rounds is at most the goal; a gate is broken when the median is over it,
and one whose goal is the same number (lost bytes, unbounded memory) by a single round. One round of a ratio
is a coin toss on a virtual machine: the same commit gave 0.93 to 1.39 x Envoy in four rounds of s256. How
many rounds were over the gate stands beside the verdict.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from results import Results, Rounds, cpu

SIDECARS = ("sidecar", "sidecar-series", "sidecar-lag")


@dataclass(frozen=True)
class Goal:
    what: str
    goal: float
    gate: float | None  # None: no gate, the number is a goal only
    measure: Callable[[Results], Rounds]
    overload: str = ""  # the scenario whose CPU is not comparable when the sidecar can't keep up


@dataclass(frozen=True)
class Judgement:
    goal: Goal
    rounds: Rounds
    verdict: str

    @property
    def median(self) -> float | None:
        return statistics.median(self.rounds.values()) if self.rounds else None


def _cpu(scenario: str, to: str = "envoy") -> Callable[[Results], Rounds]:
    return lambda results: results.ratios(scenario, "sidecar", to, cpu)


def _added(scenario: str, kind: str) -> Callable[[Results], Rounds]:
    def measure(results: Results) -> Rounds:
        added = results.added(scenario, kind, "p50")
        return results.ratios(scenario, "sidecar", "envoy", added) if added else {}

    return measure


def _stalled(results: Results) -> Rounds:
    """MiB a stalled stream; infinite where the upstream was not paused."""
    return results.values(
        "stalled", "sidecar", lambda record: record["mib_per_stream"] if record["paused"] else float("inf")
    )


def _memory(results: Results) -> Rounds:
    return results.values("mem", "sidecar", lambda record: record["kib_per_stream"])


def _scrape(results: Results) -> Rounds:
    return results.values(
        "scrape", "sidecar-series", lambda record: record["with_p99_us"] / record["without_p99_us"]
    )


def _faults(results: Results) -> Rounds:
    measured = sum(results.runs(variant) for variant in SIDECARS)
    return {0: sum(map(results.faults, SIDECARS))} if measured else {}


GOALS = (
    Goal("CPU per event x Envoy, 64 streams (s64)", 1.0, 1.3, _cpu("s64"), "s64"),
    Goal("CPU per event x Envoy, 256 streams (s256)", 1.0, 1.3, _cpu("s256"), "s256"),
    Goal("CPU per event x Envoy, engine steps (step256)", 1.0, 1.3, _cpu("step256"), "step256"),
    Goal("CPU per event x Envoy, 1,024 streams (s1024)", 1.1, 1.4, _cpu("s1024"), "s1024"),
    Goal("event p50 added x Envoy's (s256)", 1.0, 1.25, _added("s256", "event_us")),
    Goal("TTFT p50 added x Envoy's (ttft64)", 1.3, 2.0, _added("ttft64", "ttft_us")),
    Goal("CPU per tiny unary request x Envoy (unary32)", 2.5, 4.0, _cpu("unary32")),
    Goal("CPU per tiny unary request x Starlette (unary32)", 0.6, None, _cpu("unary32", "starlette")),
    Goal("KiB an open stream (mem)", 32, 40, _memory),
    Goal("MiB a stalled stream, upstream paused (stalled)", 0.5, 0.5, _stalled),
    Goal("event p99 while 1,000 histograms are scraped x without (scrape)", 1.2, 2.0, _scrape),
    Goal("lost, reordered, truncated or altered, all runs", 0, 0, _faults),
)


def judge(goal: Goal, results: Results) -> Judgement:
    rounds = goal.measure(results)
    return Judgement(goal, rounds, _verdict(goal, rounds, results))


def _verdict(goal: Goal, rounds: Rounds, results: Results) -> str:
    if not rounds:
        return "not measured"
    median = statistics.median(rounds.values())
    worst = max(rounds.values()) if goal.goal == goal.gate else median
    if goal.gate is not None and worst > goal.gate:
        return "GATE BROKEN"
    if goal.overload and results.overloaded(goal.overload, "sidecar"):
        return "NOT COMPARABLE (sidecar overloaded)"
    verdict = "PASS" if median <= goal.goal else "GOAL MISSED"
    over = sum(ratio > goal.gate for ratio in rounds.values()) if goal.gate is not None else 0
    return f"{verdict} ({over} of {len(rounds)} rounds over the gate)" if over else verdict


def judge_all(results: Results) -> list[Judgement]:
    return [judge(goal, results) for goal in GOALS]
