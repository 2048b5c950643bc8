"""When tokens fall: every expected time is worked out by hand from the model in `schedule.py`."""

import pytest

from sidecar.emulator.schedule import Schedule, Sequence, TimeModel, Work

MODEL = TimeModel(prefill_time=1.0, prefill_per_token=0.1, token_time=0.5, slots=1)
TWO_SLOTS = TimeModel(prefill_time=1.0, token_time=0.5, slots=2)

# model; (arrival, prompt tokens, output tokens) each; the times of the tokens of each
PLANS = {
    "one sequence: prefill by its length, then a token each token time": (
        MODEL,
        [(10.0, 5, 3)],
        [[11.5, 12.0, 12.5]],
    ),
    "a sequence of one token": (MODEL, [(0.0, 0, 1)], [[1.0]]),
    "one slot: the second starts at the first's last token": (
        MODEL,
        [(0.0, 0, 2), (0.2, 10, 2)],
        [[1.0, 1.5], [3.5, 4.0]],
    ),
    "one slot: the queue is first come first served, whatever the lengths": (
        MODEL,
        [(0.0, 0, 1), (0.1, 0, 3), (0.2, 0, 1)],
        [[1.0], [2.0, 2.5, 3.0], [4.0]],
    ),
    "two slots: the third waits for the first that ends": (
        TWO_SLOTS,
        [(0.0, 0, 5), (0.1, 0, 1), (0.2, 0, 2)],
        [[1.0, 1.5, 2.0, 2.5, 3.0], [1.1], [2.1, 2.6]],
    ),
    "an idle engine starts at the arrival, not at the end of the one before": (
        MODEL,
        [(0.0, 0, 1), (5.0, 0, 1)],
        [[1.0], [6.0]],
    ),
}


def times_of(fell: list, sequences: list[Sequence]) -> list[list[float]]:
    return [[token.at for token in fell if token.sequence is sequence] for sequence in sequences]


@pytest.mark.parametrize(("model", "arrivals", "expected"), PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("step", [0.05, 0.7, 100.0], ids=["looked at often", "seldom", "once, late"])
def test_tokens_fall_when_the_model_says_however_late_one_looks(model, arrivals, expected, step) -> None:
    schedule = Schedule(model)
    fell, sequences, now = [], [], 0.0
    for at, prompt, output in arrivals:
        while now < at:
            fell += schedule.advance(now)
            now += step
        now = at
        sequences.append(schedule.submit(Work(prompt, output), at))
    while schedule.next_at() is not None:
        now += step
        fell += schedule.advance(now)
    assert times_of(fell, sequences) == [pytest.approx(times) for times in expected]
    assert [token.at for token in fell] == sorted(token.at for token in fell)


def test_next_at_is_when_something_happens_and_nothing_happens_before() -> None:
    schedule = Schedule(MODEL)
    assert schedule.next_at() is None
    schedule.submit(Work(5, 2), 10.0)
    assert schedule.next_at() == 10.0
    assert schedule.advance(10.0) == []
    assert schedule.next_at() == pytest.approx(11.5)
    assert schedule.advance(11.49) == []
    assert [token.index for token in schedule.advance(11.5)] == [0]


def test_stamps_and_gaps_of_a_sequence_that_had_to_wait() -> None:
    schedule = Schedule(MODEL)
    schedule.submit(Work(0, 2), 0.0)
    waiting = schedule.submit(Work(0, 3), 0.5)
    schedule.advance(0.5)
    assert (len(schedule.running), len(schedule.waiting)) == (1, 1)
    tokens = [token for token in schedule.advance(10.0) if token.sequence is waiting]
    assert (waiting.arrived, waiting.started, waiting.first, waiting.last) == pytest.approx(
        (0.5, 1.5, 2.5, 3.5)
    )
    assert [token.gap for token in tokens] == [None, pytest.approx(0.5), pytest.approx(0.5)]
    assert [token.ends for token in tokens] == [False, False, True]
    assert (len(schedule.running), len(schedule.waiting)) == (0, 0)


# who leaves, when; the times of the tokens of both
LEAVING = {
    "while running: the slot is the next one's from that moment": (0, 1.2, [[1.0], [2.2, 2.7]]),
    "while waiting: it never starts": (1, 0.7, [[1.0, 1.5, 2.0], []]),
    "after its last token: nothing changes": (0, 2.1, [[1.0, 1.5, 2.0], [3.0, 3.5]]),
}


@pytest.mark.parametrize(("who", "when", "expected"), LEAVING.values(), ids=LEAVING)
def test_a_client_that_leaves(who, when, expected) -> None:
    schedule = Schedule(MODEL)
    sequences = [schedule.submit(Work(0, 3), 0.0), schedule.submit(Work(0, 2), 0.5)]
    fell = schedule.advance(when)
    schedule.leave(sequences[who], when)
    fell += schedule.advance(100.0)
    assert times_of(fell, sequences) == [pytest.approx(times) for times in expected]
    assert schedule.next_at() is None


def test_jitter_stays_in_its_bounds_and_repeats_with_the_seed() -> None:
    def gaps(seed: int) -> list[float]:
        schedule = Schedule(TimeModel(token_time=0.1, jitter=0.5), seed)
        schedule.submit(Work(0, 200), 0.0)
        return [token.gap for token in schedule.advance(100.0) if token.gap is not None]

    assert gaps(1) == gaps(1) != gaps(2)
    assert 0.05 <= min(gaps(1)) < 0.06
    assert 0.14 < max(gaps(1)) <= 0.15


def test_the_cache_holds_prompts_and_outputs_of_what_runs() -> None:
    schedule = Schedule(MODEL)
    schedule.submit(Work(7, 3), 0.0)
    schedule.submit(Work(100, 3), 0.0)
    schedule.advance(1.8)
    assert schedule.tokens_held() == 7 + 1
