"""One recorded stream in every tool's words: docs/definitions.md says it, the record's stamps give it.

The numbers in the page were worked out by hand from the nanoseconds of the recording.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.core.record import RequestRecord
from tests.core.test_recordings import replayed

PAGE = Path(__file__).parents[2] / "docs" / "definitions.md"
RECORDING = "vllm/parsers/chat_stream_reasoning"
CHOICES_CHUNKS = 78  # role, 76 token-bearing, finish

Formula = Callable[["Stamps"], float]


class Stamps:
    """A record's stamps as seconds since t0, all of them observed."""

    def __init__(self, record: RequestRecord) -> None:
        def since(stamp: float | None) -> float:
            assert stamp is not None
            return stamp - record.t0

        self.b1, self.f1, self.o1 = since(record.b1), since(record.f1), since(record.o1)
        self.last, self.z, self.u, self.e = (
            since(record.f_last), since(record.z), since(record.u), since(record.e),
        )  # fmt: skip
        assert record.output_tokens is not None
        assert record.ttft is not None
        assert record.ttfo is not None
        assert record.tpot is not None
        assert record.e2e is not None
        self.n = record.output_tokens
        self.ours = record.ttft, record.ttfo, record.tpot, record.e2e


FORMULAS: dict[tuple[str, str], Formula] = {
    ("sidecar", "TTFT"): lambda s: s.ours[0],
    ("sidecar", "TTFO"): lambda s: s.ours[1],
    ("sidecar", "TPOT"): lambda s: s.ours[2],
    ("sidecar", "E2E"): lambda s: s.ours[3],
    ("AIPerf", "time to first token"): lambda s: s.f1,
    ("AIPerf", "time to first output token"): lambda s: s.o1,
    ("AIPerf", "inter token latency"): lambda s: (s.last - s.f1) / (s.n - 1),
    ("vLLM bench serve", "TTFT"): lambda s: s.b1,
    ("vLLM bench serve", "TPOT"): lambda s: (s.u - s.b1) / (s.n - 1),
    ("vLLM bench serve", "ITL, mean"): lambda s: (s.z - s.b1) / (CHOICES_CHUNKS - 1),
    ("GuideLLM", "time to first token"): lambda s: s.f1,
    ("GuideLLM", "inter-token latency"): lambda s: (s.last - s.f1) / (s.n - 1),
    ("GuideLLM", "time per output token"): lambda s: s.last / s.n,
    ("inference-perf", "TTFT"): lambda s: s.o1,
    ("inference-perf", "TPOT"): lambda s: (s.e - s.o1) / (s.n - 1),
    ("inference-perf", "normalised TPOT"): lambda s: s.e / s.n,
    ("NVIDIA NIM", "TTFT"): lambda s: s.f1,
    ("NVIDIA NIM", "ITL"): lambda s: (s.last - s.f1) / (s.n - 1),
    ("OpenTelemetry client", "`gen_ai.client.operation.time_to_first_chunk`"): lambda s: s.b1,
    ("OpenTelemetry server", "`gen_ai.server.time_per_output_token`"): lambda s: (s.e - s.f1) / (s.n - 1),
    ("Envoy AI Gateway", "time to first token"): lambda s: s.b1,
    ("Envoy AI Gateway", "inter token latency"): lambda s: (s.e - s.b1) / (s.n - 1),
}


def documented() -> dict[tuple[str, str], float]:
    """(tool, quantity) -> milliseconds, of the page's last table."""
    *_, table = PAGE.read_text().split("| Tool |")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {(tool, quantity): float(milliseconds) for tool, quantity, _, milliseconds in rows}


def test_the_page_has_a_row_for_each_formula() -> None:
    assert set(documented()) == set(FORMULAS)


@pytest.mark.parametrize(("tool", "quantity"), FORMULAS)
def test_the_recording_in_this_tools_words(tool: str, quantity: str) -> None:
    record, _ = replayed(RECORDING)
    computed = FORMULAS[tool, quantity](Stamps(record)) * 1e3
    assert computed == pytest.approx(documented()[tool, quantity], abs=1e-6)
