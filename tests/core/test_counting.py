"""Token counts out of the shapes in which engines give usage; the signature of a buffering hop."""

import pytest

from sidecar.core.counting import first_tokens, hidden_tokens, looks_buffered, total_usage
from sidecar.core.events import Usage

ONE = Usage(input=31, output=24, cached_input=26, reasoning=3)
SHAPES: dict[str, tuple[Usage | None, dict[int, Usage | None], int | None, Usage]] = {
    "a total speaks for all": (Usage(17, 48), {0: Usage(17, 24), 1: None}, 2, Usage(17, 48)),
    "one choice's usage is the total": (None, {0: ONE}, 1, ONE),
    "the usages of two choices of one prompt": (None, {0: ONE, 1: ONE}, 2, Usage(31, 48, 26, 6)),
    "of two prompts": (None, {0: Usage(3, 12, 1), 1: Usage(4, 12, 1)}, 1, Usage(7, 24, 2)),
    "of two prompts with two choices each": (
        None,
        {0: Usage(3, 1), 1: Usage(3, 2), 2: Usage(5, 3), 3: Usage(5, 4)},
        2,
        Usage(8, 10),
    ),
    "the request could not be read: whose prompt it was is not known": (
        None,
        {0: Usage(3, 12), 1: Usage(3, 12)},
        None,
        Usage(None, 24),
    ),
    "a choice without usage: the sum is not known": (None, {0: ONE, 1: None}, 2, Usage()),
    "no usage at all": (None, {0: None}, 1, Usage()),
    "no choices": (None, {}, 1, Usage()),
    "a count that one choice lacks": (None, {0: Usage(3, 1, None, 2), 1: Usage(3, 1)}, 2, Usage(3, 2)),
}


@pytest.mark.parametrize(("total", "by_choice", "per_prompt", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_the_counts_of_a_response(
    total: Usage | None, by_choice: dict[int, Usage | None], per_prompt: int | None, expected: Usage
) -> None:
    assert total_usage(total, by_choice, per_prompt) == expected


def test_reasoning_is_hidden_only_when_no_chunk_showed_it() -> None:
    assert hidden_tokens(Usage(output=9, reasoning=5), reasoning_seen=False) == 5
    assert hidden_tokens(Usage(output=9, reasoning=5), reasoning_seen=True) == 0
    assert hidden_tokens(Usage(output=9), reasoning_seen=False) == 0
    assert hidden_tokens(None, reasoning_seen=False) == 0


FIRST = [
    (1, 0, 0, 1),  # one token
    (50, 49, 49, 1),  # 49 hidden ones before it
    (50, None, 49, None),  # hidden ones, but the first chunk does not say how many
    (None, None, 0, None),
    (9, 9, 0, 9),  # reasoning that was shown counts
]


@pytest.mark.parametrize(("so_far", "reasoning", "hidden", "expected"), FIRST)
def test_the_visible_tokens_of_the_first_chunk(
    so_far: int | None, reasoning: int | None, hidden: int, expected: int | None
) -> None:
    assert first_tokens(so_far, reasoning, hidden) == expected


BUFFERED = {
    "one chunk a read at 10 ms": (100, 100, 1, 0.99, False),
    "everything in one read": (100, 1, 1, 0.0, True),
    "everything at once, in several reads": (100, 5, 1, 0.001, True),
    "llama.cpp's smallest model, 0.2 ms a token, reads merged": (502, 372, 1, 0.1, False),
    "a very fast engine, ten chunks a read": (1000, 100, 1, 0.2, False),
    "blocks of 4 KiB: 16 chunks a read, 160 ms apart": (160, 10, 1, 1.44, True),
    "bursts of five by speculative decoding": (100, 20, 1, 1.9, False),
    "bursts of eight, of a large model at 50 ms a step": (160, 20, 1, 0.95, False),
    "bursts of eleven at 100 ms a step": (220, 20, 1, 1.9, False),
    "16 choices side by side, a chunk of each in a read": (1600, 100, 16, 0.99, False),
    "16 choices, buffered": (1600, 1, 16, 0.0, True),
    "too few chunks to tell": (7, 1, 1, 0.0, False),
    "nothing": (0, 0, 0, 0.0, False),
}


@pytest.mark.parametrize(
    ("chunks", "reads", "choices", "generation", "expected"), BUFFERED.values(), ids=BUFFERED.keys()
)
def test_the_signature_of_a_buffering_hop(
    chunks: int, reads: int, choices: int, generation: float, expected: bool
) -> None:
    assert looks_buffered(chunks, reads, choices, generation) is expected
