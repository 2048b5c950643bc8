"""What is recorded when, from schedules that are worked out by hand in test_scheduler.py."""

import json

from prometheus_client.parser import text_string_to_metric_families

from sidecar.emulator.answers import Answer, Piece
from sidecar.emulator.asked import read_chat
from sidecar.emulator.clock import ClockError, WallClock
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.engine import Ended, Run
from sidecar.emulator.exposition import Exposition
from sidecar.emulator.kv_cache import block_hashes
from sidecar.emulator.scheduler import Limits, Scheduler
from sidecar.emulator.sequence import Sequence, Work

COSTS = StepCosts(fixed=1.0, per_prefill_token=0.125, per_sequence=0.25)
ASKED = read_chat(json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode(), ("m",), 500)


class Rig:
    """A scheduler whose steps are recorded; every sequence is a request of its own."""

    def __init__(self, limits: Limits, clock: ClockError | None = None) -> None:
        self.scheduler = Scheduler(limits, COSTS)
        wall = WallClock(5000.0, 0.0, clock or ClockError())
        self.exposition = Exposition("m", limits, 500, wall, self.scheduler)

    def advance(self, now: float) -> None:
        while (step := self.scheduler.advance(now)) is not None:
            self.exposition.stepped(step)
            for token in step.tokens:
                if token.ends:
                    self.end(token.sequence, "length")

    def end(self, sequence: Sequence, reason: str) -> None:
        answers = (Answer((Piece("content", "a"),), reason),)
        run = Run("a", "chatcmpl-a", ASKED, None, answers, (sequence,), None, None)  # type: ignore[arg-type]
        self.exposition.ended(Ended(run, 0, reason))

    def page(self) -> dict[str, float]:
        text = self.exposition.render().decode()
        return {
            " ".join(
                [
                    sample.name.removeprefix("vllm:"),
                    *(v for k, v in sorted(sample.labels.items()) if k not in ("engine", "model_name")),
                ]
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def test_a_preemption_counts_and_is_in_no_queue_time() -> None:
    """A: queue 0, prefill 2, decode 5; B, preempted: queue 0, prefill 2, decode 7.875."""
    rig = Rig(Limits(max_sequences=8, max_step_tokens=100, kv_blocks=3, block_size=2))
    rig.scheduler.submit(Work(2, 5), 0.0)
    rig.scheduler.submit(Work(2, 3), 0.0)
    rig.advance(3.25)
    page = rig.page()
    assert (page["num_requests_running"], page["num_requests_waiting"]) == (1, 1)
    assert page["num_requests_waiting_by_reason capacity"] == 1
    assert page["kv_cache_usage_perc"] == 2 / 3
    assert (page["num_preemptions_total"], page["request_num_preemptions_sum"]) == (1, 0), "live, at the end"
    rig.advance(99.0)
    page = rig.page()
    assert page["request_num_preemptions_sum"] == 1
    assert page["request_queue_time_seconds_sum"] == 0
    assert page["request_prefill_time_seconds_sum"] == 4
    assert page["request_decode_time_seconds_sum"] == 5 + 7.875
    assert page["request_inference_time_seconds_sum"] == 4 + 5 + 7.875
    assert page["inter_token_latency_seconds_sum"] == 5 + 7.875
    assert page["inter_token_latency_seconds_count"] == 4 + 2
    assert page["request_time_per_output_token_seconds_sum"] == 5 / 4 + 7.875 / 2
    assert (page["kv_cache_usage_perc"], page["num_requests_running"]) == (0, 0)
    # 2 + 2 of the prompts and their first tokens, then the rest of the tokens.
    assert (page["iteration_tokens_total_sum"], page["iteration_tokens_total_count"]) == (4 + 8, 7)


def test_live_families_are_ahead_of_those_at_the_end() -> None:
    """One sequence: first token at 12.25 after 2.25 s."""
    rig = Rig(Limits())
    rig.scheduler.submit(Work(8, 3), 10.0)
    rig.advance(12.25)
    page = rig.page()
    assert (page["prompt_tokens_total"], page["generation_tokens_total"]) == (8, 1)
    assert (page["time_to_first_token_seconds_sum"], page["time_to_first_token_seconds_count"]) == (2.25, 1)
    assert page["time_to_first_token_seconds_bucket 2.5"] == 1
    assert page["time_to_first_token_seconds_bucket 1.0"] == 0
    assert page["e2e_request_latency_seconds_count"] == page["request_success_total length"] == 0
    rig.advance(99.0)
    page = rig.page()
    assert (page["e2e_request_latency_seconds_sum"], page["request_success_total length"]) == (4.75, 1)


def test_a_clock_that_is_set_while_a_request_runs_is_in_ttft_and_e2e_alone() -> None:
    rig = Rig(Limits(), ClockError(steps=((-100.0, 11.0),)))
    rig.scheduler.submit(Work(8, 3), 10.0)
    rig.advance(99.0)
    page = rig.page()
    assert page["time_to_first_token_seconds_sum"] == 2.25 - 100
    assert page["e2e_request_latency_seconds_sum"] == 4.75 - 100
    assert page["request_prefill_time_seconds_sum"] == 2.25
    assert page["request_decode_time_seconds_sum"] == 2.5
    assert page["process_start_time_seconds"] == 5000


def test_cached_tokens_are_counted_by_where_they_came_from() -> None:
    rig = Rig(Limits(block_size=2))
    prompt = ["a", "b", "c", "d", "e"]
    for at in (0.0, 10.0):
        rig.scheduler.submit(Work(5, 1, block_hashes(prompt, 2)), at)
        rig.advance(at + 9)
    page = rig.page()
    assert (page["prefix_cache_queries_total"], page["prefix_cache_hits_total"]) == (10, 4)
    assert page["prompt_tokens_total"] == 10
    assert page["prompt_tokens_by_source_total local_compute"] == 6
    assert page["prompt_tokens_by_source_total local_cache_hit"] == 4
    assert page["prompt_tokens_cached_total"] == page["prompt_tokens_cached_by_source_total device"] == 4
    assert page["request_prefill_kv_computed_tokens_sum"] == 6


# why it ended without its last token; what is counted
ENDS = {"abort": 0, "error": 1}


def test_who_left_is_in_no_family_at_the_end_and_what_broke_by_its_reason_alone() -> None:
    for reason, count in ENDS.items():
        rig = Rig(Limits())
        sequence = rig.scheduler.submit(Work(8, 3), 10.0)
        rig.advance(12.25)
        rig.scheduler.leave(sequence)
        rig.end(sequence, reason)
        page = rig.page()
        assert page[f"request_success_total {reason}"] == count
        assert page["time_to_first_token_seconds_count"] == 1
        assert page["e2e_request_latency_seconds_count"] == page["request_params_n_count"] == 0


def test_tool_calls_are_a_stop_to_the_engine() -> None:
    rig = Rig(Limits())
    sequence = rig.scheduler.submit(Work(8, 1), 0.0)
    while (step := rig.scheduler.advance(99.0)) is not None:
        rig.exposition.stepped(step)
    rig.end(sequence, "tool_calls")
    assert rig.page()["request_success_total stop"] == 1
