"""The demo's output as text and as a table."""

import io

import pytest
from rich.console import Console

from sidecar.emulator import table
from sidecar.emulator.readings import Row, View

VIEW = View(
    rows=(
        Row("TTFT", (0.0123, 0.25, None), 5, "exact, latest requests"),
        Row("ITL", (0.02, 0.033, 0.039), 100, "histogram, whole run"),
        Row("E2E", (1.0, 2.0, 2.5), 4, "exact, latest requests"),
    ),
    outcomes={"completed": 4, "client_disconnected": 1},
    in_flight=3,
    lag=Row("TTFT", (0.001, 0.002, 0.003), 5, "measured less planned"),
)


def test_lines_hold_the_times_the_load_and_the_outcomes(capsys) -> None:
    table.Lines().show(VIEW)
    line = capsys.readouterr().out
    assert "TTFT 12.3/250/-  ITL 20.0/33.0/39.0 ms  in flight 3  completed 4, client_disconnected 1" in line


def test_the_summary_sets_the_clients_beside_the_sidecar() -> None:
    lines = table.summary(VIEW, {"finished": 4, "left": 1}).splitlines()
    assert lines[2] == "TTFT      12.3 ms     250 ms          -        5  exact, latest requests"
    assert "TTFT       1.0 ms     2.0 ms     3.0 ms        5  measured less planned" in lines
    assert lines[-2:] == [
        "The clients say: 5 requests, finished 4, left 1.",
        "The sidecar says: 5 requests, completed 4, client_disconnected 1.",
    ]


@pytest.mark.parametrize(("words", "width"), [(1, 80), (2, 122)], ids=["80 columns", "122 columns"])
def test_the_table_fits(words, width) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(table._drawn(["head"], VIEW, words))
    rows = [line for line in out.getvalue().splitlines() if "│ ITL" in line]
    assert len(rows) == 1
    assert "…" not in out.getvalue()
    assert ("inter-token latency" in rows[0]) is (words == 2)


def test_a_terminal_without_rich_gets_lines_and_is_told_what_to_install(capsys, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with table.screen(["head"], terminal=True, color=True) as screen:
        assert isinstance(screen, table.Lines)
    assert "pip install 'inference-sidecar[demo]'" in capsys.readouterr().out
