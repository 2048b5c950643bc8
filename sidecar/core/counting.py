"""Token counts of a response, from the three shapes in which engines give usage.

One total at the end (vLLM), counts so far beside each choice's chunk (`continuous_usage_stats`; vLLM and
SGLang count the chunk's own choice there), or one usage for each choice as it finishes (llama.cpp with
n > 1 or several prompts: neither the last nor one of them is the total; they are summed). All seen on
real wires: reference/real-engines.md 2.2 and 3.2. What was not counted stays None.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from sidecar.core.events import Usage

_Count = Literal["input", "output", "cached_input", "reasoning"]
_NOTHING = Usage()


def total_usage(total: Usage | None, by_choice: Mapping[int, Usage | None], per_prompt: int | None) -> Usage:
    """The counts of the whole response.

    `total` is a usage that spoke for all choices; `by_choice` has an entry for each choice that was
    seen; `per_prompt` is how many choices each prompt has, None when the request could not be read.
    """
    if total is not None:
        return total
    usages = {index: usage for index, usage in by_choice.items() if usage is not None}
    if not usages or len(usages) < len(by_choice):
        return _NOTHING
    if len(usages) == 1:
        return next(iter(usages.values()))
    return Usage(
        input=_sum_prompts(usages, "input", per_prompt),
        output=_sum(usage.output for usage in usages.values()),
        cached_input=_sum_prompts(usages, "cached_input", per_prompt),
        reasoning=_sum(usage.reasoning for usage in usages.values()),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return sum(count for count in known if count is not None) if None not in known else None


def _sum_prompts(usages: Mapping[int, Usage], name: _Count, per_prompt: int | None) -> int | None:
    """Each choice repeats the count of its prompt: one choice of each prompt speaks for it."""
    if not per_prompt:
        return None
    prompts = {index // per_prompt: getattr(usage, name) for index, usage in usages.items()}
    return _sum(prompts.values())


def hidden_tokens(usage: Usage | None, reasoning_seen: bool) -> int:
    """Reasoning tokens that no chunk showed: they were generated before the first visible one."""
    return 0 if usage is None or reasoning_seen else usage.reasoning or 0


def first_tokens(so_far: int | None, reasoning: int | None, hidden: int) -> int | None:
    """n1 in visible tokens: what the first token-bearing chunk said, less reasoning hidden before it."""
    if so_far is None or not hidden:
        return so_far
    return None if reasoning is None else so_far - reasoning


# The signature of a buffering hop. Nothing decodes a chunk in 50 us (the fastest engines need 300), so
# chunks that are closer on average were held and let go at once. A hop that fills blocks (4 to 32 KiB,
# 15 to 128 chunks) gives many chunks a read at long intervals; a fast engine gives many at short ones, and
# one that drafts a handful of tokens a step (speculative decoding) no more than those.
BUFFERED_MIN_CHUNKS = 8
BUFFERED_CHUNK_TIME = 50e-6
BUFFERED_CHUNKS_PER_READ = 12.0
BUFFERED_READ_INTERVAL = 0.050


def looks_buffered(chunks: int, reads: int, choices: int, generation: float) -> bool:
    """Whether token-bearing chunks came as if a hop before the sidecar had held them.

    `generation` is `fL - f1` in seconds. Choices are generated side by side, a chunk of each in one
    step, so chunks are counted a choice.
    """
    chunks_of_one = chunks / max(choices, 1)
    if chunks_of_one < BUFFERED_MIN_CHUNKS:
        return False
    if generation < BUFFERED_CHUNK_TIME * (chunks_of_one - 1):
        return True
    blocks = chunks_of_one / reads >= BUFFERED_CHUNKS_PER_READ and reads > 1
    return blocks and generation / (reads - 1) >= BUFFERED_READ_INTERVAL
