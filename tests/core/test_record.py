"""The formulas of DESIGN section 2, each with its cases of "not observed". Expected values by hand."""

from typing import Any

import pytest

from sidecar.core.record import ChoiceRecord, RequestRecord, Stall

BASE: dict[str, Any] = {
    "id": "r1",
    "trace_id": "t1",
    "method": "POST",
    "operation": "chat",
    "model": "m",
    "streaming": True,
    "status": 200,
    "outcome": "completed",
    "wall": 1000.0,
    "t0": 10.0,
    "ended": 20.0,
    "observed": True,
}


def record(**fields: Any) -> RequestRecord:
    return RequestRecord(**{**BASE, **fields})


DURATIONS: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "time to headers": ("headers_time", {"h": 10.25}, 0.25),
    "no head": ("headers_time", {}, None),
    "time to first byte": ("ttfb", {"b1": 10.5}, 0.5),
    "TTFT": ("ttft", {"f1": 11.0}, 1.0),
    "TTFT without a token": ("ttft", {}, None),
    "TTFT of an answer that is not streamed": ("ttft", {"f1": 11.0, "streaming": False}, None),
    "TTFO": ("ttfo", {"f1": 11.0, "o1": 12.0}, 2.0),
    "TTFO of reasoning alone": ("ttfo", {"f1": 11.0, "k1": 11.0}, None),
    "reasoning": ("reasoning", {"k1": 11.0, "o1": 12.5}, 1.5),
    "reasoning that ends with its first chunk": ("reasoning", {"k1": 11.0, "o1": 11.0}, 0.0),
    "reasoning after output": ("reasoning", {"k1": 12.0, "o1": 11.0}, None),
    "reasoning that never ended": ("reasoning", {"k1": 11.0}, None),
    "no reasoning": ("reasoning", {"o1": 11.0}, None),
    "upload": ("upload", {"t_up": 10.75}, 0.75),
    "E2E": ("e2e", {"e": 15.0, "z": 14.0}, 5.0),
    "E2E when the client left after the terminal marker": ("e2e", {"z": 14.0}, 4.0),
    "E2E of a cut": ("e2e", {"z": 14.0, "outcome": "truncated"}, None),
    "E2E as delivered": ("delivered", {"e": 15.0, "d_end": 16.0}, 6.0),
    "waited without a token": ("waited", {}, 10.0),
    "waited, completed without a token": ("waited", {"z": 14.0}, 4.0),
    "a token came": ("waited", {"f1": 11.0}, None),
    "waited, not streamed": ("waited", {"streaming": False}, None),
    "waited, streaming not known": ("waited", {"streaming": None}, None),
    "waited, not read in depth": ("waited", {"observed": False}, None),
}


@pytest.mark.parametrize(("name", "fields", "expected"), DURATIONS.values(), ids=DURATIONS.keys())
def test_a_duration(name: str, fields: dict[str, Any], expected: float | None) -> None:
    assert getattr(record(**fields), name) == expected


# Ten chunks from 11.0 to 15.0.
GENERATED: dict[str, Any] = {"f1": 11.0, "f_last": 15.0, "chunks": 10, "reads": 10, "choices": 1}
COUNTED = {**GENERATED, "output_tokens": 41}


def choice(index: int, f1: float, f_last: float, tokens: int | None, **more: Any) -> ChoiceRecord:
    fields = {"write_wait": 0.0, "hidden_tokens": 0, "first_chunk_tokens": None, **more}
    return ChoiceRecord(index=index, f1=f1, f_last=f_last, output_tokens=tokens, **fields)


TPOT: dict[str, tuple[dict[str, Any], float | None, str | None]] = {
    "by usage: 4 s for 40 further tokens": (COUNTED, 0.1, "usage"),
    "by usage, 9 tokens in the first chunk: 4 s for 32": (
        {**COUNTED, "first_chunk_tokens": 9},
        0.125,
        "usage",
    ),
    "reasoning that no chunk showed came before: 4 s for 20": (
        {**COUNTED, "hidden_tokens": 20},
        0.2,
        "usage",
    ),
    "both: 41 less 20 hidden less 5": (
        {**COUNTED, "hidden_tokens": 20, "first_chunk_tokens": 5},
        0.25,
        "usage",
    ),
    "without usage: 4 s for 9 further chunks": (GENERATED, 4 / 9, "chunks"),
    "write wait is subtracted": ({**COUNTED, "write_wait_generation": 0.4}, 0.09, "usage"),
    "write wait over a tenth": ({**COUNTED, "write_wait_generation": 0.41}, None, None),
    "not streamed": ({**COUNTED, "streaming": False}, None, None),
    "buffered by a hop": ({**COUNTED, "buffered": True}, None, None),
    "not read to the end": ({**COUNTED, "observed": False}, None, None),
    "no token": ({"output_tokens": 41, "choices": 1}, None, None),
    "one chunk": ({**COUNTED, "f_last": 11.0, "chunks": 1}, None, None),
    "all chunks at one time": ({**GENERATED, "f_last": 11.0}, None, None),
    "one visible token": ({**COUNTED, "output_tokens": 21, "hidden_tokens": 20}, None, None),
    "one visible token that the first chunk did not count": (
        {**COUNTED, "output_tokens": 1, "first_chunk_tokens": 0},
        None,
        None,
    ),
    "all tokens in the first chunk": ({**COUNTED, "first_chunk_tokens": 41}, None, None),
    "more hidden tokens than tokens": ({**COUNTED, "hidden_tokens": 50}, None, None),
    "without usage, a payload was missed": ({**GENERATED, "missed": 1}, None, None),
    "with usage, a payload was missed": ({**COUNTED, "missed": 1}, 0.1, "usage"),
    "one chunk without usage": ({**GENERATED, "chunks": 1}, None, None),
    "two choices, a total only": (
        {**COUNTED, "choices": 2, "per_choice": (choice(0, 11, 15, None), choice(1, 11, 15, None))},
        None,
        None,
    ),
    "two choices, no usage": (
        {**GENERATED, "choices": 2, "per_choice": (choice(0, 11, 15, None), choice(1, 11, 15, None))},
        None,
        None,
    ),
    "two choices with counts: 4 s for 20 and 3 s for 8": (
        {**COUNTED, "choices": 2, "per_choice": (choice(0, 11, 15, 21), choice(1, 12, 15, 9))},
        7 / 28,
        "usage",
    ),
    "two choices with counts, one of a single token": (
        {**COUNTED, "choices": 2, "per_choice": (choice(0, 11, 15, 21), choice(1, 12, 12, 1))},
        0.2,
        "usage",
    ),
    "two choices with counts, waits and first chunks": (
        {
            **COUNTED,
            "choices": 2,
            "per_choice": (
                choice(0, 11, 15, 21, write_wait=0.4, first_chunk_tokens=3),
                choice(1, 11, 15, 31, hidden_tokens=10),
            ),
        },
        (3.6 + 4) / (18 + 20),
        "usage",
    ),
    "two choices, both of one token": (
        {**COUNTED, "choices": 2, "per_choice": (choice(0, 11, 11, 1), choice(1, 12, 12, 1))},
        None,
        None,
    ),
}


@pytest.mark.parametrize(("fields", "tpot", "basis"), TPOT.values(), ids=TPOT.keys())
def test_time_per_output_token(fields: dict[str, Any], tpot: float | None, basis: str | None) -> None:
    one = record(**fields)
    assert one.tpot == (None if tpot is None else pytest.approx(tpot))
    assert one.tpot_basis == basis


def test_ten_chunks_of_five_tokens_cost_as_much_as_fifty_of_one() -> None:
    """T-16: 50 tokens, 20 ms each; the coalesced stream's first chunk holds 5 of them."""
    single = record(f1=11.0, f_last=11.98, chunks=50, choices=1, output_tokens=50, first_chunk_tokens=1)
    fives = record(f1=11.08, f_last=11.98, chunks=10, choices=1, output_tokens=50, first_chunk_tokens=5)
    assert single.tpot == pytest.approx(0.02)
    assert fives.tpot == pytest.approx(0.02)


def test_the_row_of_the_admin_page() -> None:
    row = record(b1=10.5, f1=11.0, o1=11.0, e=15.0, stalls=(Stall(2.0, "output"),), longest_gap=2.0).as_json()
    assert row == {
        "id": "r1", "model": "m", "operation": "chat", "streaming": True, "outcome": "completed",
        "status": 200, "ttfb": 0.5, "ttft": 1.0, "ttfo": 1.0, "reasoning": None, "tpot": None,
        "tpot_basis": None, "e2e": 5.0, "longest_gap": 2.0, "stalls": 1, "input_tokens": None,
        "output_tokens": None, "client_write_wait": 0.0, "trace_id": "t1", "waited": None,
        "buffered": None,
    }  # fmt: skip
