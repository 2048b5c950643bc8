"""What an engine is, as far as it decides by itself."""

import pytest

from sidecar.emulator.options import Fault, Options, OptionsError, fault_of
from sidecar.emulator.scheduler import Limits

SMALL = Limits(kv_blocks=10, block_size=16, max_step_tokens=100)

# options; the context
CONTEXTS = {
    "by default vLLM's usual": ({}, 32_768),
    "no more than the cache holds": ({"limits": SMALL}, 160),
    "without chunks no more than a step": (
        {"limits": Limits(kv_blocks=10, max_step_tokens=100, chunked_prefill=False)},
        100,
    ),
    "as asked for": ({"limits": SMALL, "max_model_len": 160}, 160),
}


@pytest.mark.parametrize(("given", "context"), CONTEXTS.values(), ids=CONTEXTS)
def test_the_context(given, context) -> None:
    assert Options(**given).context == context


def test_more_than_there_is_room_for_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"161 tokens .* more than the 160"):
        _ = Options(limits=SMALL, max_model_len=161).context


def test_faults_take_turns_and_the_first_wins() -> None:
    cut, error = Fault("cut", 3, every=2), Fault("error", 0, every=3)
    assert [fault_of((cut, error), number) for number in range(1, 7)] == [
        None,
        cut,
        error,
        cut,
        None,
        cut,
    ]
