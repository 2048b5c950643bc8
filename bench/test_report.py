"""The judgement of a run: which records count, and when a goal holds or a gate is broken."""

import pytest
import report
from goals import GOALS, judge, judge_all
from results import FAULTS, Results

CPU_S64 = next(goal for goal in GOALS if "s64" in goal.what)
STALLED = next(goal for goal in GOALS if "stalled" in goal.what)
FAULTLESS = next(goal for goal in GOALS if goal.what.startswith("lost"))
EVENT_P50 = next(goal for goal in GOALS if goal.what.startswith("event p50"))


def run(variant, cpu_us=10.0, number=0, scenario="s64", other_cores=0.0, p50=100.0, tok_per_s=2560, **faults):
    quantiles = dict.fromkeys(("p50", "p99"), p50)
    load = dict.fromkeys(FAULTS, 0) | {"tok_per_s": tok_per_s, "event_us": quantiles, "ttft_us": quantiles}
    return {
        "scenario": scenario,
        "variant": variant,
        "round": number,
        "cpu_us": cpu_us,
        "other_cores": other_cores,
        "load": load | {"req_us": quantiles} | faults,
    }


def rounds_of(ratios):
    return [
        record
        for number, ratio in enumerate(ratios)
        for record in (run("envoy", 10, number), run("sidecar", 10 * ratio, number))
    ]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        pytest.param([0.9, 1.0, 1.2], "PASS", id="the median is at the goal and no round is over the gate"),
        pytest.param([0.9, 1.1, 1.2], "GOAL MISSED", id="the median is over the goal"),
        pytest.param([0.9, 1.31, 1.4], "GATE BROKEN", id="the median is over the gate"),
        pytest.param(
            [0.9, 0.9, 1.31], "PASS (1 of 3 rounds over the gate)", id="one round is over the gate, and told"
        ),
        pytest.param([], "not measured", id="no round"),
    ],
)
def test_verdict(ratios, verdict):
    assert judge(CPU_S64, Results(rounds_of(ratios))).verdict == verdict


def test_the_quietest_attempt_counts():
    records = [run("envoy"), run("sidecar", 30, other_cores=0.3), run("sidecar", 10, other_cores=0.1)]
    assert judge(CPU_S64, Results(records)).median == 1.0


def test_a_disturbed_run_is_dropped_but_its_faults_count():
    results = Results([run("envoy"), run("sidecar", 30, other_cores=0.9, lost=2)])
    assert judge(CPU_S64, results).verdict == "not measured"
    assert judge(FAULTLESS, results).verdict == "GATE BROKEN"


def test_a_run_that_failed_is_a_fault():
    failed = {"scenario": "mem", "variant": "sidecar", "round": 0, "failed": "hangs"}
    assert judge(FAULTLESS, Results([failed])).rounds == {0: 1}


def test_ratios_compare_rounds_with_the_same_round():
    records = [run("envoy", 10, 0), run("sidecar", 10, 0), run("envoy", 20, 1), run("sidecar", 20, 1)]
    assert judge(CPU_S64, Results([*records, run("sidecar", 99, 2)])).rounds == {0: 1.0, 1: 1.0}


def test_added_latency_is_over_the_direct_path():
    latencies = {"direct": 20.0, "envoy": 120.0, "sidecar": 70.0}
    results = Results([run(variant, scenario="s256", p50=p50) for variant, p50 in latencies.items()])
    assert judge(EVENT_P50, results).median == 0.5


def test_cpu_of_an_overloaded_sidecar_is_not_compared():
    results = Results([run("direct"), run("envoy"), run("sidecar", tok_per_s=2000)])
    assert judge(CPU_S64, results).verdict.startswith("NOT COMPARABLE")


def test_an_upstream_that_is_not_paused_breaks_the_gate():
    record = {"scenario": "stalled", "variant": "sidecar", "round": 0, "mib_per_stream": 0.1, "paused": False}
    assert judge(STALLED, Results([record])).verdict == "GATE BROKEN"


def test_tables_go_between_the_markers_and_nowhere_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    results = Results(rounds_of([1.0]))
    report.write_between_markers(page, report.markdown(results, judge_all(results)))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| CPU per event x Envoy, 64 streams (s64) | 1 | 1.3 | 1.00 (1.00-1.00) | 1 | PASS |" in text


def test_a_page_without_markers_is_refused(tmp_path):
    with pytest.raises(ValueError, match="once each"):
        report.marked_page(tmp_path / "missing.md")
