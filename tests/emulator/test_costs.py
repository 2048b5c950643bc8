"""How long a step takes: the formula, worked out by hand."""

import pytest

from sidecar.emulator.costs import Pause, Slowdown, StepCosts, StepLoad

COSTS = {"fixed": 1.0, "per_prefill_token": 0.125, "per_sequence": 0.25, "per_context_token": 0.5}
# 1 + 2 x 0.25 + 6 x 0.5 = 4.5 for the batch, 4 x 0.125 = 0.5 for the prefill
LOAD = StepLoad(prefill_tokens=4, sequences=2, context_tokens=6)

# further parameters; start of the step; its draw; its end
ENDS = {
    "the sum of its parts": ({}, 10.0, 0.0, 15.0),
    "a slow prefill makes prefill tokens dearer": ({"slow_prefill": (Slowdown(3.0),)}, 10.0, 0.0, 16.0),
    "a slow decode makes all else dearer": ({"slow_decode": (Slowdown(2.0),)}, 10.0, 0.0, 19.5),
    "slow from its first second on": ({"slow_prefill": (Slowdown(3.0, since=10.0),)}, 10.0, 0.0, 16.0),
    "not before": ({"slow_prefill": (Slowdown(3.0, since=10.1),)}, 10.0, 0.0, 15.0),
    "not at its last second": ({"slow_prefill": (Slowdown(3.0, until=10.0),)}, 10.0, 0.0, 15.0),
    "factors of the same time multiply": (
        {"slow_prefill": (Slowdown(3.0), Slowdown(2.0))},
        10.0,
        0.0,
        17.5,
    ),
    "jitter at its longest": ({"jitter": 0.5}, 10.0, 1.0, 17.5),
    "jitter at its shortest": ({"jitter": 0.5}, 10.0, -1.0, 12.5),
    "a pause inside makes it longer": ({"pauses": (Pause(7.0, 12.0),)}, 10.0, 0.0, 22.0),
    "a pause that began before: what is left of it": ({"pauses": (Pause(7.0, 8.0),)}, 10.0, 0.0, 20.0),
    "a pause that was over": ({"pauses": (Pause(2.0, 8.0),)}, 10.0, 0.0, 15.0),
    "a pause that begins when it ends": ({"pauses": (Pause(7.0, 15.0),)}, 10.0, 0.0, 15.0),
    "the first pause moves it into the second": (
        {"pauses": (Pause(1.0, 15.5), Pause(1.0, 12.0))},
        10.0,
        0.0,
        17.0,
    ),
}


@pytest.mark.parametrize(("more", "start", "draw", "end"), ENDS.values(), ids=ENDS)
def test_a_step_ends(more, start, draw, end) -> None:
    assert StepCosts(**COSTS, **more).end(start, LOAD, draw) == pytest.approx(end)
