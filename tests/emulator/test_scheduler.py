"""Which sequence is scheduled in which step, and when: every number is worked out by hand.

The costs are 1 s a step, 1/8 s a prefill token and 1/4 s a sequence, so that all times are exact.
"""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.emulator.costs import StepCosts
from sidecar.emulator.kv_cache import block_hashes
from sidecar.emulator.scheduler import Limits, Scheduler, Step
from sidecar.emulator.sequence import Sequence, Work

COSTS = StepCosts(fixed=1.0, per_prefill_token=0.125, per_sequence=0.25)
ROOMY = Limits(max_sequences=8, max_step_tokens=100, kv_blocks=100, block_size=2)
FOUR_TOKENS = Limits(max_sequences=8, max_step_tokens=4, kv_blocks=100, block_size=2)
WHOLE_PROMPTS = Limits(max_sequences=8, max_step_tokens=4, kv_blocks=100, block_size=2, chunked_prefill=False)
ONE_AT_A_TIME = Limits(max_sequences=1, max_step_tokens=100, kv_blocks=100, block_size=2)
EIGHT_TOKENS_OF_CACHE = Limits(max_sequences=8, max_step_tokens=100, kv_blocks=4, block_size=2)
SIX_TOKENS_OF_CACHE = Limits(max_sequences=8, max_step_tokens=100, kv_blocks=3, block_size=2)
FEW_BLOCKS = Limits(max_sequences=8, max_step_tokens=100, kv_blocks=5, block_size=2)

SMALL_STEPS_SIX_TOKENS = Limits(max_sequences=8, max_step_tokens=3, kv_blocks=3, block_size=2)
SMALL_STEPS_EIGHT_TOKENS = Limits(max_sequences=8, max_step_tokens=3, kv_blocks=4, block_size=2)

# limits; (arrival, prompt tokens, output tokens) of A, B, C; steps: start, end, tokens of each
SCHEDULES = {
    "one sequence: its prompt in one step, then a token a step": (
        ROOMY,
        [(10.0, 8, 3)],
        [(10.0, 12.25, "A8"), (12.25, 13.5, "A1"), (13.5, 14.75, "A1")],
    ),
    "one token is the prompt's step alone": (ROOMY, [(0.0, 2, 1)], [(0.0, 1.5, "A2")]),
    "what comes during a step waits for the next, what finds the engine idle starts at once": (
        ROOMY,
        [(0.0, 2, 1), (1.0, 2, 1), (5.0, 2, 1)],
        [(0.0, 1.5, "A2"), (1.5, 3.0, "B2"), (5.0, 6.5, "C2")],
    ),
    "what comes at the very end of a step is in the next": (
        ROOMY,
        [(0.0, 2, 1), (1.5, 2, 1)],
        [(0.0, 1.5, "A2"), (1.5, 3.0, "B2")],
    ),
    "a prompt longer than the budget takes several steps": (
        FOUR_TOKENS,
        [(0.0, 6, 2)],
        [(0.0, 1.75, "A4"), (1.75, 3.25, "A2"), (3.25, 4.5, "A1")],
    ),
    "decodes go first, prompts get what is left": (
        FOUR_TOKENS,
        [(0.0, 2, 3), (0.5, 6, 1)],
        [(0.0, 1.5, "A2"), (1.5, 3.375, "A1 B3"), (3.375, 5.25, "A1 B3")],
    ),
    "a chunk that began goes before a prompt that waits": (
        FOUR_TOKENS,
        [(0.0, 6, 1), (0.0, 3, 1)],
        [(0.0, 1.75, "A4"), (1.75, 3.75, "A2 B2"), (3.75, 5.125, "B1")],
    ),
    "without chunks a prompt waits until all of it fits, and whoever is behind it waits too": (
        WHOLE_PROMPTS,
        [(0.0, 2, 2), (0.5, 4, 1), (0.6, 1, 1)],
        [(0.0, 1.5, "A2"), (1.5, 2.75, "A1"), (2.75, 4.5, "B4"), (4.5, 5.875, "C1")],
    ),
    "one slot: the second starts at the first's last token": (
        ONE_AT_A_TIME,
        [(0.0, 2, 2), (0.5, 4, 1)],
        [(0.0, 1.5, "A2"), (1.5, 2.75, "A1"), (2.75, 4.5, "B4")],
    ),
    "the head of the queue waits for blocks, and whoever is behind it waits too": (
        EIGHT_TOKENS_OF_CACHE,
        [(0.0, 4, 2), (0.5, 6, 1), (0.6, 2, 1)],
        [(0.0, 1.75, "A4"), (1.75, 3.0, "A1"), (3.0, 5.5, "B6 C2")],
    ),
    "no block left: the last admitted is preempted and computed anew": (
        SIX_TOKENS_OF_CACHE,
        [(0.0, 2, 5), (0.0, 2, 3)],
        [
            (0.0, 2.0, "A2 B2"),
            (2.0, 3.25, "A1"),
            (3.25, 4.5, "A1"),
            (4.5, 5.75, "A1"),
            (5.75, 7.0, "A1"),
            (7.0, 8.625, "B3"),
            (8.625, 9.875, "B1"),
        ],
    ),
    # At 3.5 B needs a second block. A first chunk of it would fit in again at once.
    "nothing is admitted in a step that preempts": (
        SMALL_STEPS_SIX_TOKENS,
        [(0.0, 2, 3), (0.0, 2, 3)],
        [
            (0.0, 1.875, "A2 B1"),
            (1.875, 3.5, "A1 B1"),
            (3.5, 4.75, "A1"),
            (4.75, 6.375, "B3"),
            (6.375, 7.625, "B1"),
        ],
    ),
    # B goes at 4.875 with three tokens given, comes back, goes again at 7.875; its fourth token is the end
    # of a second chunk, which is prefill too: 1.25 + 1/8 s.
    "a preempted sequence comes back in chunks, and may go again": (
        SMALL_STEPS_EIGHT_TOKENS,
        [(0.0, 2, 6), (0.0, 1, 6)],
        [
            (0.0, 1.875, "A2 B1"),
            (1.875, 3.375, "A1 B1"),
            (3.375, 4.875, "A1 B1"),
            (4.875, 6.125, "A1"),
            (6.125, 7.875, "A1 B2"),
            (7.875, 9.125, "A1"),
            (9.125, 10.75, "B3"),
            (10.75, 12.125, "B1"),
            (12.125, 13.375, "B1"),
            (13.375, 14.625, "B1"),
        ],
    ),
    # Three sequences of one block each; at the second step A and B need a second one and C goes. C comes
    # back before D, which waited longer than it, when A has ended.
    "the preempted is the first to come back": (
        FEW_BLOCKS,
        [(0.0, 2, 2), (0.0, 2, 2), (0.0, 2, 2), (0.5, 4, 1)],
        [
            (0.0, 2.5, "A2 B2 C2"),
            (2.5, 4.0, "A1 B1"),
            (4.0, 6.375, "C3 D4"),
        ],
    ),
}


def drain(scheduler: Scheduler, now: float) -> list[Step]:
    return list(iter(lambda: scheduler.advance(now), None))


def name(sequence: Sequence) -> str:
    return "ABCDEFGH"[sequence.number]


def shown(steps: list[Step]) -> list[tuple[float, float, str]]:
    return [
        (step.started, step.ended, " ".join(f"{name(s)}{count}" for s, count in step.scheduled))
        for step in steps
    ]


def played(scheduler: Scheduler, arrivals, look: float) -> tuple[list[Step], list[Sequence]]:
    """Submit at the arrivals, look every `look` seconds, until nothing is left."""
    steps, sequences, now = [], [], 0.0
    for at, prompt, output in arrivals:
        while now < at:
            steps += drain(scheduler, now)
            now += look
        now = at
        sequences.append(scheduler.submit(Work(prompt, output), at))
    while scheduler.next_at() is not None:
        now += look
        steps += drain(scheduler, now)
    return steps, sequences


@pytest.mark.parametrize(("limits", "arrivals", "expected"), SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("look", [0.05, 0.7, 100.0], ids=["looked at often", "seldom", "once, late"])
def test_schedules(limits, arrivals, expected, look) -> None:
    steps, sequences = played(Scheduler(limits, COSTS), arrivals, look)
    assert shown(steps) == expected
    assert all(sequence.finished for sequence in sequences)


def test_next_at_is_when_something_happens_and_nothing_happens_before() -> None:
    scheduler = Scheduler(ROOMY, COSTS)
    assert scheduler.next_at() is None
    scheduler.submit(Work(8, 2), 10.0, frontend=0.5)
    assert scheduler.next_at() == 10.5
    assert scheduler.advance(10.5) is None
    assert scheduler.next_at() == 12.75
    assert scheduler.advance(12.74) is None
    step = scheduler.advance(12.75)
    assert step is not None
    assert [(token.number, token.gap, token.ends) for token in step.tokens] == [(0, None, False)]
    assert scheduler.next_at() == 12.75, "the next step begins where this one ended"


def test_stamps_of_a_sequence_that_went_through_the_front_end_and_had_to_wait() -> None:
    """A's steps: 0 to 1.5 and to 2.75; B is queued at 0.75 and starts at 2.75."""
    scheduler = Scheduler(ONE_AT_A_TIME, COSTS)
    scheduler.submit(Work(2, 2), 0.0)
    waiting = scheduler.submit(Work(4, 3), 0.5, frontend=0.25)
    drain(scheduler, 1.0)
    assert (len(scheduler.running), len(scheduler.waiting), scheduler.queued) == (1, 1, 1)
    assert waiting.phases is None
    tokens = [t for step in drain(scheduler, 99.0) for t in step.tokens if t.sequence is waiting]
    assert (waiting.arrived, waiting.queued, waiting.started) == (0.5, 0.75, 2.75)
    assert waiting.phases == (4.5, 7.0, 2.0, 1.75, 2.5)
    assert [(token.number, token.gap, token.ends) for token in tokens] == [
        (0, None, False),
        (1, 1.25, False),
        (2, 1.25, True),
    ]


def test_the_wait_after_a_preemption_is_decode_and_the_queue_time_stays() -> None:
    """As the real vLLM's spans say (queue 0, the wait in the decode time)."""
    limits, arrivals, _ = SCHEDULES["no block left: the last admitted is preempted and computed anew"]
    steps, (first, preempted) = played(Scheduler(limits, COSTS), arrivals, 100.0)
    assert [step.preempted for step in steps] == [0, 1, 0, 0, 0, 0, 0]
    assert (first.preemptions, preempted.preemptions) == (0, 1)
    assert preempted.phases == (2.0, 9.875, 0.0, 2.0, 7.875)
    assert preempted.longest_gap == 6.625
    assert steps[5].load == (3, 1, 3), "prompt and the token that it had: all prefill again"
    assert [step.queried for step in steps] == [4, 0, 0, 0, 0, 0, 0], "a second look is not counted"


def test_context_tokens_are_those_in_the_cache_when_the_step_ends() -> None:
    costs = StepCosts(fixed=1.0, per_prefill_token=0.0, per_sequence=0.0, per_context_token=0.5)
    steps, _ = played(Scheduler(ROOMY, costs), [(0.0, 3, 3)], 100.0)
    assert [step.load.context_tokens for step in steps] == [3, 4, 5]
    assert [step.ended for step in steps] == [2.5, 5.5, 9.0]


def words(text: str, output: int = 1) -> Work:
    prompt = text.split()
    return Work(len(prompt), output, block_hashes(prompt, 2))


# prompts, each after the one before has ended; cached tokens and prefilled tokens of each
PREFIXES = {
    "another prompt": (["a b c d", "e f g h"], [(0, 4), (0, 4)]),
    "a longer prompt finds all full blocks": (["a b c d", "a b c d e"], [(0, 4), (4, 1)]),
    "the same prompt computes its last block, for the next token": (["a b c d", "a b c d"], [(0, 4), (2, 2)]),
    "a block that is not full is not found": (["a b c", "a b c d"], [(0, 3), (2, 2)]),
    "the same words after others are another block": (["a b c d", "x y c d"], [(0, 4), (0, 4)]),
}


@pytest.mark.parametrize(("prompts", "expected"), PREFIXES.values(), ids=PREFIXES)
def test_what_is_in_the_prefix_cache_costs_nothing(prompts, expected) -> None:
    scheduler = Scheduler(ROOMY, COSTS)
    found = []
    for at, prompt in enumerate(prompts):
        sequence = scheduler.submit(words(prompt), 100.0 * at)
        (step,) = drain(scheduler, 100.0 * at + 99)
        found.append((sequence.cached_tokens, step.load.prefill_tokens))
        assert (step.queried, step.hit) == (len(prompt.split()), sequence.cached_tokens)
        assert step.ended - step.started == 1.25 + step.load.prefill_tokens / 8
    assert found == expected


def test_without_prefix_caching_nothing_is_found() -> None:
    limits = Limits(kv_blocks=100, block_size=2, prefix_caching=False)
    scheduler = Scheduler(limits, COSTS)
    for at in (0.0, 100.0):
        sequence = scheduler.submit(words("a b c d e"), at)
        drain(scheduler, at + 99)
        assert sequence.cached_tokens == 0


def test_two_of_the_same_prompt_in_one_step_share_its_blocks() -> None:
    scheduler = Scheduler(ROOMY, COSTS)
    first, second = (scheduler.submit(words("a b c d e", 2), 0.0) for _ in "AB")
    drain(scheduler, 0.0)
    assert second.cached_tokens == 4
    assert second.blocks[:2] == first.blocks[:2]
    assert scheduler.cache.used == 4


# who leaves, when; what of the schedule remains
LEAVING = {
    "while running: the step ends without its token, the next begins without it": (
        0,
        1.0,
        [(0.0, 1.5, "A2"), (1.5, 3.25, "B4")],
    ),
    "while waiting: it never starts": (1, 1.0, [(0.0, 1.5, "A2"), (1.5, 2.75, "A1")]),
    "in the front end: it never waits": (2, 1.0, [(0.0, 1.5, "A2"), (1.5, 2.75, "A1"), (2.75, 4.5, "B4")]),
    "after its last token: nothing changes": (
        0,
        2.75,
        [(0.0, 1.5, "A2"), (1.5, 2.75, "A1"), (2.75, 4.5, "B4")],
    ),
}


@pytest.mark.parametrize(("who", "when", "expected"), LEAVING.values(), ids=LEAVING)
def test_a_client_that_leaves(who, when, expected) -> None:
    scheduler = Scheduler(ONE_AT_A_TIME, COSTS)
    sequences = [scheduler.submit(Work(2, 2), 0.0), scheduler.submit(Work(4, 1), 0.5)]
    if who == 2:
        sequences.append(scheduler.submit(Work(1, 1), 0.6, frontend=50.0))
    steps = drain(scheduler, when)
    scheduler.leave(sequences[who])
    steps += drain(scheduler, 99.0)
    assert shown(steps) == expected
    assert all(t.sequence is not sequences[who] or t.sequence.finished for s in steps for t in s.tokens)
    assert scheduler.cache.used == 0
    assert scheduler.next_at() is None


# limits; prompt and output tokens that can never be served
TOO_MUCH = {
    "more than the cache": (SIX_TOKENS_OF_CACHE, 3, 5),
    "without chunks, more than a step": (WHOLE_PROMPTS, 4, 2),
    "no prompt": (ROOMY, 0, 1),
    "no output": (ROOMY, 1, 0),
}


@pytest.mark.parametrize(("limits", "prompt", "output"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_can_never_be_served_is_refused(limits, prompt, output) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Scheduler(limits, COSTS).submit(Work(prompt, output), 0.0)


def test_jitter_repeats_with_the_seed() -> None:
    def ends(seed: int) -> list[float]:
        costs = StepCosts(fixed=0.1, per_prefill_token=0.0, per_sequence=0.0, jitter=0.5)
        steps, _ = played(Scheduler(ROOMY, costs, seed), [(0.0, 1, 150)], 100.0)
        return [step.ended - step.started for step in steps]

    assert ends(1) == ends(1) != ends(2)
    assert 0.05 <= min(ends(1)) < 0.06
    assert 0.14 < max(ends(1)) <= 0.15 + 1e-9


@st.composite
def engines(draw):
    limits = Limits(
        max_sequences=draw(st.integers(1, 4)),
        max_step_tokens=draw(st.integers(1, 12)),
        kv_blocks=draw(st.integers(4, 10)),
        block_size=draw(st.integers(1, 4)),
        prefix_caching=draw(st.booleans()),
    )
    costs = StepCosts(0.1, 0.01, 0.003, 0.001, draw(st.sampled_from((0.0, 0.4))))
    room = limits.longest_sequence
    arrivals = []
    for gap in draw(st.lists(st.floats(0, 1), min_size=1, max_size=8)):
        prompt = draw(st.integers(1, room))
        output = draw(st.integers(1, min(6, room + 1 - prompt)))
        # Few words, so that prompts have prefixes in common.
        text = draw(st.lists(st.sampled_from("ab"), min_size=prompt, max_size=prompt))
        arrivals.append((gap, text, output))
    return limits, costs, arrivals


def simulated(limits: Limits, costs: StepCosts, arrivals, look: float, seed: int = 1):
    scheduler = Scheduler(limits, costs, seed)
    steps, sequences, now = [], [], 0.0
    for gap, text, output in arrivals:
        now += gap
        work = Work(len(text), output, block_hashes(text, limits.block_size))
        sequences.append(scheduler.submit(work, now))
    now = 0.0
    while scheduler.next_at() is not None:
        now += look
        for step in drain(scheduler, now):
            steps.append(step)
            assert sum(count for _, count in step.scheduled) <= limits.max_step_tokens
            assert 1 <= len(step.scheduled) <= limits.max_sequences
        held = {block for sequence in scheduler.running for block in sequence.blocks}
        assert scheduler.cache.used == len(held) <= limits.kv_blocks
        assert len(scheduler.running) <= limits.max_sequences
        assert not any(sequence.blocks for sequence in scheduler.waiting)
        assert now < 1000
    assert scheduler.cache.used == 0
    return steps, sequences


@settings(max_examples=150, deadline=None)
@given(engines())
def test_every_token_is_given_once_and_every_second_is_in_one_phase(engine) -> None:
    steps, sequences = simulated(*engine, look=0.05)
    for sequence in sequences:
        tokens = [
            (token, step.ended) for step in steps for token in step.tokens if token.sequence is sequence
        ]
        assert [token.number for token, _ in tokens] == list(range(sequence.work.output_tokens))
        assert [token.ends for token, _ in tokens] == [False] * (len(tokens) - 1) + [True]
        phases = sequence.phases
        assert (phases.first, phases.last) == (tokens[0][1], tokens[-1][1])
        total = phases.queue + phases.prefill + phases.decode
        assert math.isclose(total, phases.last - sequence.queued, abs_tol=1e-9)
        assert min(phases.queue, phases.prefill, phases.decode) >= 0
        gaps = [token.gap for token, _ in tokens[1:]]
        assert math.isclose(sum(gaps), phases.decode, abs_tol=1e-9)
        assert sequence.cached_tokens < sequence.work.prompt_tokens
    assert all(a.ended <= b.started for a, b in itertools.pairwise(steps))
    assert sum(step.preempted for step in steps) == sum(sequence.preemptions for sequence in sequences)


@settings(max_examples=50, deadline=None)
@given(engines(), st.floats(0.01, 3.0))
def test_the_schedule_depends_on_the_seed_alone_and_not_on_who_looks_when(engine, look) -> None:
    assert shown(simulated(*engine, look=0.05)[0]) == shown(simulated(*engine, look=look)[0])
