"""Which request a span belongs to: a table, and a trace with five calls at once."""

from typing import Any

import pytest

from sidecar.core import span_match
from sidecar.core.server_timings import ServerTimings
from sidecar.core.span_match import MAX_ENDED, MAX_TRACE_SPANS, EngineSpan, SpanMatcher
from sidecar.engines.spans import read

KEEP = 10.0
T = "t" * 32
BOTH_AMBIGUOUS = {"A": "ambiguous", "B": "ambiguous"}
SGLANG_SAYS = ServerTimings(queue=0.1, prefill=0.3 - 0.1, decode=0.3, e2e=1.0)
SAYS = ServerTimings(queue=0.1, prefill=0.2, decode=0.3)


def vllm(
    span_id: str, parent: str | None, request_id: str = "-", trace: str = T, **more: float
) -> EngineSpan:
    seconds = {"time_in_queue": 0.1, "time_in_model_prefill": 0.2, "time_in_model_decode": 0.3, **more}
    attributes: dict[str, Any] = {f"gen_ai.latency.{name}": value for name, value in seconds.items()}
    return EngineSpan(
        trace, span_id, parent, "vllm", "llm_request", 1.0, {**attributes, "gen_ai.request.id": request_id}
    )


def other(
    span_id: str, parent: str | None, name: str = "work", seconds: float = 1.0, **attributes: Any
) -> EngineSpan:
    return EngineSpan(T, span_id, parent, "x", name, seconds, attributes)  # fmt: skip


def dynamo(span_id: str, parent: str) -> EngineSpan:
    return other(span_id, parent, "http-request", ttft_ms="300")


def sglang(span_id: str, parent: str) -> EngineSpan:
    prefill = {"gen_ai.latency.time_in_model_prefill": 0.3, "gen_ai.latency.time_in_model_decode": 0.3}
    return other(span_id, parent, " Req abc", rid="abc", **{**prefill, "gen_ai.latency.e2e": 1.0})


Requests = list[tuple[str, str, str]]  # trace, span id, request id
ONE: Requests = [(T, "A", "job")]
TWO: Requests = [(T, "A", "job"), (T, "B", "other")]
SAME_ID: Requests = [(T, "A", "job"), ("u" * 32, "B", "job")]

# (requests, batches of spans, what is certain before the deadline, what is said at the deadline)
CASES: dict[str, tuple[Requests, list[list[EngineSpan]], dict[str, Any], dict[str, Any]]] = {
    "the parent is our span": (TWO, [[vllm("1", "B")]], {"B": SAYS}, {"A": None, "B": SAYS}),
    "an ancestor is our span": (ONE, [[other("2", "A"), vllm("1", "2")]], {"A": SAYS}, {"A": SAYS}),
    "a child comes before its parent, in one export": (
        TWO,
        [[vllm("1", "2"), other("2", "B")]],
        {"B": SAYS},
        {"A": None, "B": SAYS},
    ),
    "a child comes an export before its parent": (
        TWO,
        [[vllm("1", "2")], [other("2", "B")]],
        {"B": SAYS},
        {"A": None, "B": SAYS},
    ),
    "the id of the request, as it was sent": (
        TWO,
        [[vllm("1", "x", "other")]],
        {"B": SAYS},
        {"A": None, "B": SAYS},
    ),
    "vLLM's id of a chat": (TWO, [[vllm("1", None, "chatcmpl-other")]], {"B": SAYS}, {"A": None, "B": SAYS}),
    "vLLM's id of a completion": (
        TWO,
        [[vllm("1", None, "cmpl-other-0")]],
        {"B": SAYS},
        {"A": None, "B": SAYS},
    ),
    "vLLM's id of a response": (
        TWO,
        [[vllm("1", None, "resp_other_0")]],
        {"B": SAYS},
        {"A": None, "B": SAYS},
    ),
    "the id of the request in a trace of the engine's own": (
        ONE,
        [[vllm("1", None, "job", "e" * 32)]],
        {"A": SAYS},
        {"A": SAYS},
    ),
    "a chat whose id only looks like another's": (
        TWO,
        [[vllm("1", None, "chatcmpl-other-0")]],
        {},
        BOTH_AMBIGUOUS,
    ),
    "the parent goes before the id": (TWO, [[vllm("1", "A", "other")]], {"A": SAYS}, {"A": SAYS, "B": None}),
    "only the trace, one request in it": (ONE, [[vllm("1", "x")]], {}, {"A": SAYS}),
    "only the trace, two requests in it": (TWO, [[vllm("1", "x")]], {}, BOTH_AMBIGUOUS),
    "a span of somebody else's in the trace does not spoil the sure one": (
        ONE,
        [[vllm("1", "x", time_in_queue=9.0)], [vllm("2", "A")]],
        {"A": SAYS},
        {"A": SAYS},
    ),
    "another trace": (ONE, [[vllm("1", None, "-", "e" * 32)]], {}, {"A": None}),
    "a span that is about no request": (ONE, [[other("1", "A")]], {}, {"A": None}),
    "two live requests with one id": (SAME_ID, [[vllm("1", None, "job", "e" * 32)]], {}, BOTH_AMBIGUOUS),
    "two live requests with one id, told apart by the parent": (
        SAME_ID,
        [[vllm("1", "A", "job")]],
        {"A": SAYS},
        {"A": SAYS, "B": None},
    ),
    "two choices: two spans with one parent": (
        ONE,
        [[vllm("1", "A"), vllm("2", "A")]],
        {"A": "ambiguous"},
        {"A": "ambiguous"},
    ),
    "a span that is sent again": (ONE, [[vllm("1", "A")], [vllm("1", "A")]], {"A": SAYS}, {"A": SAYS}),
    "the second span comes later": (
        ONE,
        [[vllm("1", "A")], [vllm("2", "A")]],
        {"A": "ambiguous"},
        {"A": "ambiguous"},
    ),
    "a router above the engine": (ONE, [[dynamo("1", "A"), vllm("2", "1")]], {"A": SAYS}, {"A": SAYS}),
    "the router's comes first": (ONE, [[dynamo("1", "A")], [vllm("2", "1")]], {"A": SAYS}, {"A": SAYS}),
    "a router alone is taken in the end": (ONE, [[dynamo("1", "A")]], {}, {"A": ServerTimings(ttft=0.3)}),
    "SGLang's queue is in a span below": (
        ONE,
        [[other("3", "2", "prefill_waiting", 0.1), other("2", "1", "thread"), sglang("1", "A")]],
        {"A": SGLANG_SAYS},
        {"A": SGLANG_SAYS},
    ),
    "spans that are each other's parents": (TWO, [[vllm("1", "2"), other("2", "1")]], {}, BOTH_AMBIGUOUS),
}


@pytest.mark.parametrize("spans_first", [False, True], ids=["after the end", "before the end"])
@pytest.mark.parametrize(("requests", "batches", "certain", "final"), CASES.values(), ids=CASES.keys())
def test_a_match(
    requests: Requests,
    batches: list[list[EngineSpan]],
    certain: dict[str, Any],
    final: dict[str, Any],
    spans_first: bool,
) -> None:
    matcher = SpanMatcher(read, KEEP)
    said: dict[str, Any] = {}
    for request in requests:
        matcher.opened(*request)

    def end() -> None:
        for _, span_id, _ in requests:
            said[span_id] = matcher.ended(span_id, 100.0, False).said

    def send() -> None:
        for batch in batches:
            _, found = matcher.add(batch, 101.0)
            assert not spans_first or not found, "nothing is said before a request has ended"
            said.update({known.span_id: known.said for known in found})

    for step in (send, end) if spans_first else (end, send):
        step()
    assert {span_id: what for span_id, what in said.items() if what is not None} == certain
    assert list(matcher.expire(109.9)) == []
    assert {known.span_id: known.said for known in matcher.expire(110.0)} == final
    assert len(matcher) == 0
    assert not matcher.knows(T)


def test_a_stage_that_comes_after_its_request_counts_at_the_deadline() -> None:
    matcher = SpanMatcher(read, KEEP)
    matcher.opened(*ONE[0])
    matcher.ended("A", 100.0, False)
    assert matcher.add([sglang("1", "A")], 101.0)[1] == []
    assert matcher.add([other("3", "1", "prefill_waiting", 0.1)], 102.0)[1] == []
    (known,) = matcher.expire(110.0)
    assert known.said == SGLANG_SAYS


def test_five_calls_of_an_agent_in_parallel_are_told_apart() -> None:
    """One trace; the third call has no span, and the engine exports them in its own order."""
    matcher = SpanMatcher(read, KEEP)
    for name in "ABCDE":
        matcher.opened(T, name, f"id-{name}")
    for name in "ABCDE":
        matcher.ended(name, 100.0, False)
    spans = [vllm(name.lower(), name, time_in_queue=index) for index, name in enumerate("EDBA")]
    homes, found = matcher.add(spans, 101.0)
    assert homes == [T] * 4
    assert {known.span_id: known.said.queue for known in found} == {"E": 0, "D": 1, "B": 2, "A": 3}
    assert {known.span_id: known.said for known in matcher.expire(200.0)}["C"] is None


def test_five_calls_whose_spans_name_no_parent_are_ambiguous_all_of_them() -> None:
    matcher = SpanMatcher(read, KEEP)
    for name in "ABCDE":
        matcher.opened(T, name, f"id-{name}")
        matcher.ended(name, 100.0, False)
    assert matcher.add([vllm(name, None) for name in "12345"], 101.0)[1] == []
    assert [known.said for known in matcher.expire(200.0)] == ["ambiguous"] * 5


def test_an_open_question_is_not_the_last_requests_answer() -> None:
    """A span that fitted two requests does not become the second's when the first is forgotten."""
    matcher = SpanMatcher(read, KEEP)
    for _, name, request_id in TWO:
        matcher.opened(T, name, request_id)
    matcher.ended("A", 100.0, False)
    matcher.add([vllm("1", "x")], 101.0)
    assert [known.said for known in matcher.expire(110.0)] == ["ambiguous"]
    matcher.ended("B", 130.0, False)
    matcher.add([other("2", None)], 131.0)
    assert [known.said for known in matcher.expire(140.0)] == [None]


def test_several_prompts_or_choices_are_ambiguous_even_with_one_span() -> None:
    matcher = SpanMatcher(read, KEEP)
    matcher.opened(*ONE[0])
    matcher.ended("A", 100.0, True)
    (known,) = matcher.add([vllm("1", "A")], 101.0)[1]
    assert known.said == "ambiguous"


def test_a_span_after_the_deadline_belongs_to_nobody() -> None:
    matcher = SpanMatcher(read, KEEP)
    matcher.opened(*ONE[0])
    matcher.ended("A", 100.0, False)
    assert [known.said for known in matcher.expire(110.0)] == [None]
    assert matcher.add([vllm("1", "A")], 110.0) == ([None], [])


HOMES = [
    ("of a known trace", other("1", None), T),
    ("of a known trace, about a request", vllm("1", "A"), T),
    ("of another trace, with the id of a request", vllm("1", None, "job", "e" * 32), T),
    ("of another trace", vllm("1", None, "-", "e" * 32), None),
]


@pytest.mark.parametrize(("span", "home"), [row[1:] for row in HOMES], ids=[row[0] for row in HOMES])
def test_the_trace_that_a_span_is_part_of(span: EngineSpan, home: str | None) -> None:
    matcher = SpanMatcher(read, KEEP)
    matcher.opened(*ONE[0])
    assert matcher.add([span], 1.0)[0] == [home]


def test_a_trace_that_never_ends_is_bounded() -> None:
    matcher = SpanMatcher(read, KEEP)
    for _, name, request_id in TWO:
        matcher.opened(T, name, request_id)
    for number in range(MAX_TRACE_SPANS + 500):
        matcher.add([vllm(str(number), f"x{number}")], 1.0)
    trace = matcher._traces[T]
    assert len(trace.spans) == MAX_TRACE_SPANS
    assert len(trace.undecided) == 100


def test_all_traces_together_are_bounded_and_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_match, "MAX_SPANS", 10)
    matcher = SpanMatcher(read, KEEP)
    for trace in ("a" * 32, "b" * 32):
        matcher.opened(trace, trace[:16], "r")
        spans = [vllm(str(number), "x", trace=trace) for number in range(8)]
        matcher.add(spans + spans, 1.0)
    assert [len(trace.spans) for trace in matcher._traces.values()] == [8, 2]
    matcher.ended("a" * 16, 1.0, False)
    assert len(list(matcher.expire(100.0))) == 1
    matcher.add([vllm(str(number), "x", trace="b" * 32) for number in range(20, 30)], 1.0)
    assert len(matcher._traces["b" * 32].spans) == 10


def test_more_ended_requests_than_there_is_room_for_are_given_up_early() -> None:
    matcher = SpanMatcher(read, KEEP)
    for number in range(MAX_ENDED + 5):
        matcher.opened(T, str(number), "one id for all")
        matcher.ended(str(number), 100.0, False)
    assert [known.span_id for known in matcher.expire(100.0)] == ["0", "1", "2", "3", "4"]
    assert len(matcher) == MAX_ENDED
