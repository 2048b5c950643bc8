"""The shell around the scheduler. Steps that take no time end at once, whatever the machine does."""

import json

import pytest

from sidecar.emulator.asked import Asked, read_chat
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.engine import Ended, Engine, Watchers
from sidecar.emulator.options import Options
from sidecar.emulator.scheduler import Limits, Step

AT_ONCE = StepCosts(fixed=0.0, per_prefill_token=0.0, per_sequence=0.0)
NEVER = StepCosts(fixed=3600.0)


class Seen:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.ended: list[Ended] = []


def engine(costs: StepCosts, **others) -> tuple[Engine, Seen]:
    seen = Seen()
    return Engine(Options(costs=costs, **others), Watchers(seen.steps.append, seen.ended.append)), seen


def asked(**extra) -> Asked:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3} | extra
    return read_chat(json.dumps(body).encode(), ("m",), 1000)


def submitted(engine: Engine, wants: Asked, limit: int | None = None):
    delivered: list[list[int]] = []
    answers = engine.answers(wants)
    return engine.submit(wants, answers, "a", "chatcmpl-a", None, delivered.append, limit), delivered


async def test_all_that_is_due_in_a_turn_is_delivered_at_once() -> None:
    running, seen = engine(AT_ONCE)
    run, delivered = submitted(running, asked(n=2))
    # The first choice's prompt and the second's are one step, then two tokens a step.
    assert delivered == [[0, 1, 0, 1, 0, 1]]
    assert run.done.done()
    assert [(e.choice, e.finish_reason) for e in seen.ended] == [(0, "length"), (1, "length")]
    assert len(seen.steps) == 3
    running.leave(run)
    assert len(seen.ended) == 2, "who finished can't leave"


@pytest.mark.parametrize("limit", [0, 2])
async def test_no_more_than_the_limit_is_delivered_and_the_engine_goes_on(limit) -> None:
    running, seen = engine(AT_ONCE)
    run, delivered = submitted(running, asked(), limit)
    assert [len(choices) for choices in delivered] == ([limit] if limit else [])
    assert run.done.done()
    assert run.given == limit
    assert seen.ended[0].sequence.tokens == 3


async def test_who_leaves_is_told_as_such_once_and_frees_the_place() -> None:
    running, seen = engine(NEVER, limits=Limits(max_sequences=1))
    first, _ = submitted(running, asked())
    second, _ = submitted(running, asked(n=2))
    running.leave(second)
    running.leave(second)
    running.leave(first, "error")
    assert [(e.run, e.choice, e.finish_reason) for e in seen.ended] == [
        (second, 0, "abort"),
        (second, 1, "abort"),
        (first, 0, "error"),
    ]
    assert (running.scheduler.running, running.scheduler.queued) == ([], 0)
    running.close()


async def test_the_same_seed_says_the_same_words() -> None:
    said = [[engine(NEVER, seed=seed)[0].answers(asked())[0].text("content")] for seed in (1, 1, 2)]
    assert said[0] == said[1] != said[2]


async def test_the_front_end_takes_its_time() -> None:
    running, _ = engine(NEVER, frontend_time=0.5, frontend_per_token=0.1)
    run, _ = submitted(running, asked())
    (sequence,) = run.sequences
    assert sequence.queued - sequence.arrived == pytest.approx(0.5 + 5 * 0.1)
    running.close()
