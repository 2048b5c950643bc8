"""Events with times become stamps, gaps, stalls and counts."""

from typing import Any

import pytest

from sidecar.core import timeline as timeline_module
from sidecar.core.events import (
    OUTPUT,
    REASONING,
    TOOL_CALL,
    ChoiceFinished,
    ChoiceSeen,
    EngineExtra,
    ErrorReported,
    Event,
    ModelNamed,
    StreamDone,
    TokensReceived,
    Usage,
    UsageReported,
)
from sidecar.core.record import Stall
from sidecar.core.timeline import Timeline


def token(choice: int = 0, material: int = OUTPUT, so_far: int | None = None) -> Event:
    return TokensReceived(choice, material, so_far)


def stop(choice: int = 0, reason: str = "stop") -> Event:
    return ChoiceFinished(choice, reason)


def counted(choice: int | None, output: int, given: int = 7) -> Event:
    return UsageReported(choice, Usage(given, output))


Story = list[tuple[float, Event]]


def told(story: Story, *, expected: int = 1, per_prompt: int | None = 1) -> tuple[Timeline, list[Any]]:
    gaps: list[Any] = []
    timeline = Timeline(lambda gap, tokens: gaps.append((gap, tokens)))
    timeline.expected, timeline.per_prompt = expected, per_prompt
    for at, event in story:
        timeline.apply(event, at)
    return timeline, gaps


STAMPS: dict[str, tuple[Story, dict[str, float | None]]] = {
    "role, reasoning, output, end": (
        [
            (1, ChoiceSeen(0)), (2, token(material=REASONING)), (3, token(material=REASONING)),
            (5, token()), (6, token()), (7, stop()), (8, counted(None, 4)), (9, StreamDone()),
        ],
        {"f1": 2, "k1": 2, "o1": 5, "last_token_at": 6, "z": 7, "u": 8},
    ),
    "reasoning and output in one chunk": (
        [(2, token(material=REASONING)), (4, token(material=REASONING | OUTPUT)), (5, token())],
        {"f1": 2, "k1": 2, "o1": 4, "last_token_at": 5, "z": None},
    ),
    "both in the first chunk": ([(2, token(material=REASONING | OUTPUT))], {"f1": 2, "k1": 2, "o1": 2}),
    "output first, reasoning later": (
        [(2, token()), (4, token(material=REASONING)), (5, token())],
        {"f1": 2, "k1": 4, "o1": 2},
    ),
    "a tool call is output": ([(3, token(material=TOOL_CALL))], {"f1": 3, "k1": None, "o1": 3}),
    "nothing generated": (
        [(1, ChoiceSeen(0)), (2, stop()), (3, StreamDone())],
        {"f1": None, "k1": None, "o1": None, "last_token_at": None, "z": 2},
    ),
    "[DONE] alone ends": ([(1, token()), (4, StreamDone())], {"z": 4}),
    "the first of two choices ends nothing": ([(1, token(0)), (1, token(1)), (4, stop(0))], {"z": None}),
    "the last of two choices ends": ([(1, token(0)), (1, token(1)), (4, stop(0)), (5, stop(1))], {"z": 5}),
    "a choice that begins after another's end takes the end back": (
        [(1, token(1)), (2, stop(1)), (3, token(0)), (4, token(0))],
        {"z": None},
    ),
    "and its own end is the end": ([(1, token(1)), (2, stop(1)), (3, token(0)), (4, stop(0))], {"z": 4}),
    "a second finish reason changes nothing": ([(1, token()), (2, stop()), (3, stop())], {"z": 2}),
    "what comes after [DONE] does not take it back": (
        [(1, token()), (2, StreamDone()), (3, ChoiceSeen(1))],
        {"z": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("story", "stamps"), STAMPS.values(), ids=STAMPS.keys())
def test_stamps(story: Story, stamps: dict[str, float | None]) -> None:
    timeline, _ = told(story)
    assert {name: getattr(timeline, name) for name in stamps} == stamps
    assert timeline.terminal is (timeline.z is not None)


def test_with_more_choices_asked_for_the_end_waits_for_them() -> None:
    story: Story = [(1, token(1)), (2, stop(1))]
    assert told(story, expected=2)[0].z is None
    timeline, _ = told([*story, (3, token(0)), (4, stop(0))], expected=2)
    assert timeline.z == 4


def test_an_engine_that_ignores_n_has_ended_with_the_body() -> None:
    timeline, _ = told([(1, token()), (2, stop())], expected=3)
    timeline.conclude_choices()
    assert (timeline.z, timeline.terminal) == (2, True)


GAPS: dict[str, tuple[Story, list[tuple[float, int | None]]]] = {
    "the first chunk has none": ([(1, token())], []),
    "between token-bearing chunks only": (
        [(1, token()), (2, ChoiceSeen(0)), (3, token()), (4, counted(None, 2)), (5, stop())],
        [(2, None)],
    ),
    "of the same choice": (
        [(1, token(0)), (2, token(1)), (4, token(0)), (7, token(1))],
        [(3, None), (5, None)],
    ),
    "with the tokens of the chunk": (
        [(1, token(so_far=1)), (3, token(so_far=9)), (4, token(so_far=10))],
        [(2, 8), (1, 1)],
    ),
    "tokens without text in between belong to the gap": (
        [(1, token(so_far=1)), (2, counted(0, 2)), (3, token(so_far=3))],
        [(2, 2)],
    ),
    "two chunks of one token": ([(1, token(so_far=1)), (2, token(so_far=1))], [(1, 0)]),
    "a count in the last chunk alone is a total, not this chunk's": (
        [(1, token()), (2, token()), (3, token(so_far=50))],
        [(1, None), (1, None)],
    ),
    "a count that goes back is none": (
        [(1, token(so_far=5)), (2, token(so_far=3)), (3, token(so_far=4))],
        [(1, None), (1, 1)],
    ),
    "counts that stop": ([(1, token(so_far=5)), (2, token()), (3, token(so_far=7))], [(1, None), (1, None)]),
}


@pytest.mark.parametrize(("story", "expected"), GAPS.values(), ids=GAPS.keys())
def test_gaps_are_given_live(story: Story, expected: list[tuple[float, int | None]]) -> None:
    assert told(story)[1] == expected


LONGEST: dict[str, tuple[Story, float | None, list[Stall]]] = {
    "no token": ([(1, ChoiceSeen(0)), (9, StreamDone())], None, []),
    "one token, then the end": ([(1, token()), (1.5, stop())], 0.5, []),
    "a gap of the threshold is no stall": ([(1, token()), (2, token()), (2, stop())], 1.0, []),
    "a longer one is": (
        [(1, token()), (3.5, token()), (4, stop())],
        2.5,
        [Stall(2.5, "output")],
    ),
    "it is named after what came before it": (
        [
            (1, token(material=REASONING)), (3, token(material=REASONING | OUTPUT)),
            (6, token(material=TOOL_CALL)), (10, token()), (10, stop()),
        ],
        4.0,
        [Stall(2.0, "reasoning"), Stall(3.0, "output"), Stall(4.0, "tool_call")],
    ),
    "the open gap to the finish reason counts": ([(1, token()), (4, stop())], 3.0, [Stall(3.0, "output")]),
    "to [DONE] where there is none": ([(1, token()), (4, StreamDone())], 3.0, [Stall(3.0, "output")]),
    "a choice that has finished has no open gap": (
        [(1, token(0)), (1, token(1)), (1.5, stop(0)), (2, token(1)), (2.5, stop(1)), (9, StreamDone())],
        1.0,
        [],
    ),
    "each choice stalls for itself": (
        [(1, token(0)), (1, token(1)), (4, token(0)), (4, token(1)), (4, StreamDone())],
        3.0,
        [Stall(3.0, "output"), Stall(3.0, "output")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("story", "longest", "stalls"), LONGEST.values(), ids=LONGEST.keys())
def test_the_longest_gap_and_stalls(story: Story, longest: float | None, stalls: list[Stall]) -> None:
    timeline, _ = told(story)
    assert timeline.longest_gap == longest
    assert [(stall.duration, stall.during) for stall in timeline.stalls] == [
        (stall.duration, stall.during) for stall in stalls
    ]


def test_the_end_of_the_exchange_closes_an_open_gap_once() -> None:
    timeline, _ = told([(1, token())])
    assert timeline.open_gap(120.0) == 119.0
    timeline.close(121.0)
    timeline.close(200.0)
    assert (timeline.longest_gap, timeline.stalls) == (120.0, [Stall(120.0, "output", 121.0)])
    assert timeline.open_gap(300.0) is None


def test_stalls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "MAX_STALLS", 3)
    timeline, _ = told([(float(2 * at), token()) for at in range(10)])
    assert len(timeline.stalls) == 3


USAGE: dict[str, tuple[Story, int, int | None, Usage]] = {
    "one total at the end, as vLLM sends it": (
        [(1, token(0)), (1, token(1)), (2, stop(0)), (2, stop(1)), (3, counted(None, 48)), (4, StreamDone())],
        2, 2, Usage(7, 48),
    ),
    "one usage a choice, as llama.cpp sends it: neither the last nor one of them": (
        [
            (1, token(1)), (1, token(0)), (2, stop(1)), (2, counted(None, 24)), (3, token(0)), (4, stop(0)),
            (4, counted(None, 20)), (5, StreamDone()),
        ],
        2, 2, Usage(7, 44),
    ),
    "the same before the other choice has begun": (
        [
            (1, token(1)), (2, stop(1)), (2, counted(None, 24)), (3, token(0)), (4, stop(0)),
            (4, counted(None, 20)),
        ],
        2, 2, Usage(7, 44),
    ),
    "the same where the request could not be read": (
        [
            (1, token(1)), (1, token(0)), (2, stop(1)), (2, counted(None, 24)), (4, stop(0)),
            (4, counted(None, 20)),
        ],
        1, None, Usage(None, 44),
    ),
    "beside the finish reason of each choice": (
        [
            (1, token(0)), (1, token(1)), (2, counted(0, 12, 3)), (2, stop(0)),
            (3, counted(1, 12, 4)), (3, stop(1)),
        ],
        2, 1, Usage(7, 24),
    ),
    "counts so far and a total: the total": (
        [
            (1, counted(0, 1)), (1, token(so_far=1)), (2, counted(0, 2)), (2, token(so_far=2)),
            (3, counted(None, 3)),
        ],
        1, 1, Usage(7, 3),
    ),
    "counts so far of a stream that was cut": (
        [(1, counted(0, 1)), (1, token(so_far=1)), (2, counted(0, 5)), (2, token(so_far=5))],
        1, 1, Usage(7, 5),
    ),
    "a total that is said again: the latest": (
        [(1, token()), (2, counted(None, 3)), (3, stop()), (4, counted(None, 5)), (5, counted(None, 6))],
        1, 1, Usage(7, 6),
    ),
    "one of two choices was cut: the sum is not known": (
        [(1, token(1)), (1, token(0)), (2, stop(1)), (2, counted(None, 24)), (3, token(0))],
        2, 2, Usage(),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("story", "expected", "per_prompt", "usage"), USAGE.values(), ids=USAGE.keys())
def test_token_counts(story: Story, expected: int, per_prompt: int | None, usage: Usage) -> None:
    summary = told(story, expected=expected, per_prompt=per_prompt)[0].summary()
    assert Usage(summary["input_tokens"], summary["output_tokens"]) == usage


def test_the_first_chunk_of_hidden_reasoning_holds_what_is_visible() -> None:
    """49 tokens of reasoning were left out; the first chunk says 50 so far, 49 of them reasoning."""
    summary = told([
        (1, UsageReported(0, Usage(7, 0, None, 0))), (1, ChoiceSeen(0)),
        (5, UsageReported(0, Usage(7, 50, None, 49))), (5, token(so_far=50)),
        (6, UsageReported(0, Usage(7, 60, None, 49))), (6, token(so_far=60)),
    ])[0].summary()  # fmt: skip
    assert (summary["first_chunk_tokens"], summary["hidden_tokens"], summary["output_tokens"]) == (1, 49, 60)


def test_chunks_and_the_reads_they_came_in() -> None:
    timeline, _ = told(
        [(1, token()), (1, token()), (2, ChoiceSeen(0)), (3, token()), (3, token()), (4, token())]
    )
    assert (timeline.chunks, timeline.reads) == (5, 3)


def test_a_response_that_comes_at_once_was_buffered() -> None:
    assert told([(5, token()) for _ in range(20)])[0].summary()["buffered"] is True
    assert told([(5 + at / 100, token()) for at in range(20)])[0].summary()["buffered"] is False


def test_several_choices_are_recorded_one_by_one() -> None:
    story: Story = [
        (1, counted(0, 1)), (1, token(0, so_far=1)), (2, counted(1, 3)), (2, token(1, so_far=3)),
        (4, counted(0, 9)), (4, token(0, so_far=9)), (5, counted(1, 4)), (5, token(1, so_far=4)),
    ]  # fmt: skip
    first, second = told(story, expected=2, per_prompt=2)[0].summary()["per_choice"]
    assert (first.f1, first.f_last, first.output_tokens, first.first_chunk_tokens) == (1, 4, 9, 1)
    assert (second.f1, second.f_last, second.output_tokens, second.first_chunk_tokens) == (2, 5, 4, 3)


def test_reasons_are_kept_only_if_they_are_known() -> None:
    timeline, _ = told([(1, stop(0, "tool_calls")), (1, stop(1, "<script>")), (1, stop(2, "abort"))])
    assert timeline.finish_reasons == ["tool_calls", "other", "abort"]
    assert timeline.failed_reason() == "abort"


def test_errors_models_and_extras() -> None:
    timeline, _ = told([
        (1, ModelNamed("a")), (2, ModelNamed("b")), (3, ErrorReported()),
        (4, EngineExtra("timings", 1)), (5, EngineExtra("timings", 2)),
    ])  # fmt: skip
    assert (timeline.model, timeline.error_reported, timeline.extras) == ("a", True, {"timings": 2})


def test_the_number_of_choices_is_bounded() -> None:
    timeline, _ = told([(1, token(index)) for index in range(2000)])
    assert timeline.chunks == timeline_module.MAX_CHOICES
    assert timeline.ignored == 2000 - timeline_module.MAX_CHOICES
    for event in (stop(5000), ChoiceSeen(5000), counted(5000, 1)):
        timeline.apply(event, 2.0)
    assert timeline.finish_reasons == []


def waited(
    waits: list[tuple[float, float]], tokens: list[float], *, announced: bool
) -> tuple[Timeline, list[float]]:
    """Tokens at these times, while the client would not take bytes in these intervals."""
    gaps: list[float] = []
    timeline = Timeline(lambda gap, _: gaps.append(gap))
    steps = [(at, 1, "token", at) for at in tokens] + [(end, 0, "over", start) for start, end in waits]
    if announced:
        steps += [(start, 2, "opened", start) for start, _ in waits]
    for at, _, what, start in sorted(steps):
        if what == "token":
            timeline.tokens_received(0, OUTPUT, None, at)
        elif what == "opened":
            timeline.waits.opened(start)
        else:
            timeline.write_wait(start, at)
    return timeline, gaps


# waits, tokens, gaps given, longest gap, wait inside f1..fL, all wait
WAITS: dict[str, tuple[list[tuple[float, float]], list[float], list[float], float, float, float]] = {
    "before the first token": ([(1, 2)], [3, 4, 5], [1, 1], 1, 0, 1),
    "after the last": ([(6, 8)], [3, 4, 5], [1, 1], 1, 0, 2),
    "inside one gap, which is not given": ([(4.25, 4.5)], [3, 4, 5], [1], 1, 0.25, 0.25),
    "a gap is longer than the wait in it: the rest of it counts": ([(5, 6)], [3, 4, 9], [1], 4, 1, 1),
    "over two tokens": ([(3.5, 5.5)], [3, 4, 5, 6, 7], [1], 1, 2, 2),
    "over the last token": ([(4.5, 9)], [3, 4, 5], [1], 1, 0.5, 4.5),
    "over the first token": ([(2, 3.5)], [3, 4, 5], [1], 1, 0.5, 1.5),
    "two of them": ([(3.25, 3.5), (4.25, 4.5)], [3, 4, 5, 6], [1], 1, 0.5, 0.5),
}


@pytest.mark.parametrize(
    ("waits", "tokens", "gaps", "longest", "inside", "total"), WAITS.values(), ids=WAITS.keys()
)
def test_write_wait_is_never_a_gap(
    waits: list[tuple[float, float]],
    tokens: list[float],
    gaps: list[float],
    longest: float,
    inside: float,
    total: float,
) -> None:
    timeline, given = waited(waits, tokens, announced=True)
    summary = timeline.summary()
    assert given == gaps
    assert summary["longest_gap"] == longest
    assert summary["write_wait_generation"] == pytest.approx(inside)
    assert summary["client_write_wait"] == pytest.approx(total)


@pytest.mark.parametrize(
    ("waits", "tokens", "inside"), [(w[0], w[1], w[4]) for w in WAITS.values()], ids=WAITS.keys()
)
def test_a_wait_that_is_told_only_when_it_is_over_counts_the_same(
    waits: list[tuple[float, float]], tokens: list[float], inside: float
) -> None:
    timeline, _ = waited(waits, tokens, announced=False)
    assert timeline.summary()["write_wait_generation"] == pytest.approx(inside)


def test_each_choice_has_the_wait_inside_its_own_time() -> None:
    timeline = Timeline()
    for at, choice in ((1.0, 0), (2.0, 0), (6.0, 1), (7.0, 1), (9.0, 0)):
        if at == 6.0:
            timeline.write_wait(2.5, 3.0)
        timeline.tokens_received(choice, OUTPUT, None, at)
    summary = timeline.summary()
    assert [choice.write_wait for choice in summary["per_choice"]] == [0.5, 0.0]
    assert summary["write_wait_generation"] == 0.5


def test_the_open_gap_of_a_stalled_reader_is_its_own_not_the_engines() -> None:
    timeline = Timeline()
    timeline.tokens_received(0, OUTPUT, None, 1.0)
    timeline.waits.opened(1.0)
    assert timeline.open_gap(31.0) == 0.0
    timeline.close(31.0)
    assert timeline.stalls == []


def test_a_response_held_back_by_a_slow_client_is_not_called_buffered() -> None:
    timeline = Timeline()
    timeline.tokens_received(0, OUTPUT, None, 1.0)
    timeline.write_wait(1.0, 9.0)
    for _ in range(50):
        timeline.tokens_received(0, OUTPUT, None, 9.0)
    assert timeline.summary()["buffered"] is False
