"""The records of one run: the quietest attempt of each measurement, and quantities taken from them."""

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Rounds = dict[int, float]  # round -> value
Quantity = Callable[[Record], float]

MAX_OTHER_CORES = 0.4  # above it a run is dropped: something else measured itself
OVERLOADED = 0.95  # below this share of direct's tokens/s, events come several to a read: CPU not comparable
FAULTS = ("errors", "unfinished", "seq_errors", "altered", "lost")


class Results:
    def __init__(self, records: Iterable[Record]) -> None:
        self.meta: Record = {}
        self.failed: list[Record] = []
        self.dropped: list[Record] = []
        self._attempts: list[Record] = []
        self._best: dict[tuple[str, str], dict[int, Record]] = {}
        for record in records:
            self._take(record)
        self._drop_disturbed()

    @classmethod
    def read(cls, path: Path) -> "Results":
        return cls(json.loads(line) for line in path.read_text().splitlines())

    def _take(self, record: Record) -> None:
        if "meta" in record:
            self.meta = record["meta"]
        elif "failed" in record:
            self.failed.append(record)
        else:
            self._attempts.append(record)
            rounds = self._best.setdefault((record["scenario"], record["variant"]), {})
            known = rounds.get(record["round"])
            if known is None or _other(record) < _other(known):
                rounds[record["round"]] = record

    def _drop_disturbed(self) -> None:
        for rounds in self._best.values():
            for number in [n for n, record in rounds.items() if _other(record) > MAX_OTHER_CORES]:
                self.dropped.append(rounds.pop(number))

    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(scenario for scenario, _ in self._best))

    def variants(self, scenario: str) -> list[str]:
        return [variant for name, variant in self._best if name == scenario]

    def rounds(self, scenario: str, variant: str) -> dict[int, Record]:
        return self._best.get((scenario, variant), {})

    def values(self, scenario: str, variant: str, quantity: Quantity) -> Rounds:
        return {number: quantity(record) for number, record in self.rounds(scenario, variant).items()}

    def ratios(self, scenario: str, variant: str, to: str, quantity: Quantity) -> Rounds:
        """The variant's value over that of `to` in the same round; rounds without both are left out."""
        ours = self.values(scenario, variant, quantity)
        theirs = self.values(scenario, to, quantity)
        return {n: value / theirs[n] for n, value in ours.items() if theirs.get(n, 0) > 0}

    def added(self, scenario: str, kind: str, quantile: str) -> Quantity | None:
        """Latency over the direct path's (median of its rounds), us; None without a direct run."""

        def latency(record: Record) -> float:
            return record["load"][kind][quantile]

        direct = self.values(scenario, "direct", latency)
        if not direct:
            return None
        baseline = statistics.median(direct.values())
        return lambda record: latency(record) - baseline

    def throughput(self, scenario: str, variant: str) -> float | None:
        """Tokens a second as a share of the direct run's, median of rounds."""
        shares = self.ratios(scenario, variant, "direct", lambda record: record["load"]["tok_per_s"])
        return statistics.median(shares.values()) if shares else None

    def overloaded(self, scenario: str, variant: str) -> bool:
        share = self.throughput(scenario, variant)
        return scenario != "unary32" and share is not None and share < OVERLOADED

    def faults(self, variant: str) -> int:
        """Lost, reordered, truncated or altered, in every attempt of every run, disturbed or not."""
        seen = [record for record in self._attempts if record["variant"] == variant]
        in_loads = sum(record["load"][kind] for record in seen if "load" in record for kind in FAULTS)
        failed = sum(record["variant"] == variant for record in self.failed)
        return in_loads + sum(record.get("incomplete", 0) for record in seen) + failed

    def runs(self, variant: str) -> int:
        return sum(record["variant"] == variant for record in self._attempts + self.failed)


def _other(record: Record) -> float:
    return record.get("other_cores", 0.0)


def cpu(record: Record) -> float:
    return record["cpu_us"]
