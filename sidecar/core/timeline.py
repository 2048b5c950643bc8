"""Events with times become the record of a request.

One timeline a request. It is told what the response said and when (`apply`, or for the commonest event
`tokens_received` without an object around it) and when the client would not take bytes (`waiting`,
`write_wait`); it never asks a clock. Formulas: DESIGN section 2.

A *gap* is the time between two token-bearing chunks of one choice. Time in which the client would not
take bytes is never a gap's: a gap that overlaps such a wait is not given to the gap sink at all, and for
stalls and the longest gap the wait is subtracted.

Which choice a usage belongs to is decided here, what the counts add up to in `counting`.
"""

from collections.abc import Callable
from typing import Any

from sidecar.core.choice import Choice, choice_records, first_chunk_tokens, wait_inside
from sidecar.core.counting import hidden_tokens, looks_buffered, total_usage
from sidecar.core.events import (
    DURING,
    OUTPUT,
    REASONING,
    TOOL_CALL,
    ChoiceFinished,
    ChoiceSeen,
    EngineExtra,
    ErrorReported,
    Event,
    GapSink,
    ModelNamed,
    StreamDone,
    TokensReceived,
    Usage,
    UsageReported,
)
from sidecar.core.outcome import FAILED_REASONS
from sidecar.core.record import RequestRecord, Stall
from sidecar.core.waits import WriteWaits

__all__ = ["STALL_THRESHOLD", "RequestRecord", "Stall", "Timeline"]

STALL_THRESHOLD = 1.0
MAX_CHOICES = 1024  # a stream that names more is not an LLM's answer; the rest is ignored
MAX_STALLS = 1000

# Finish reasons are text of the body: only known ones are kept (OpenAI, vLLM, TGI, Mistral,
# Anthropic, Ollama).
FINISH_REASONS = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error"}
    | {"eos_token", "stop_sequence", "model_length", "repetition", "max_tokens", "end_turn", "tool_use"}
    | {"pause_turn", "refusal", "load", "unload"}
)

_OUTPUT_OR_TOOL = OUTPUT | TOOL_CALL


def _drop_gap(_gap: float, _tokens: int | None) -> None: ...


class Timeline:
    """The response of one request, as it happens. All times are seconds of one monotonic clock."""

    __slots__ = (
        "_by_choice", "_choices", "_done", "_last_finished", "_longest", "_open_choices", "_read_at",
        "_total", "chunks", "error_reported", "expected", "extras", "f1", "finish_reasons", "ignored", "k1",
        "last_token_at", "model", "o1", "on_gap", "per_prompt", "reads", "stall_threshold", "stalls",
        "terminal", "u", "waits", "z",
    )  # fmt: skip

    def __init__(self, on_gap: GapSink = _drop_gap, stall_threshold: float = STALL_THRESHOLD) -> None:
        self.on_gap = on_gap
        self.stall_threshold = stall_threshold
        self.expected = 1  # choices asked for, over all prompts
        self.per_prompt: int | None = None  # choices of each prompt, None when that is not known
        self.waits = WriteWaits()
        self.k1: float | None = None
        self.o1: float | None = None
        self.f1: float | None = None
        self.last_token_at: float | None = None
        self.u: float | None = None
        self.z: float | None = None
        self.chunks = self.reads = self.ignored = 0
        self._longest = 0.0
        self.stalls: list[Stall] = []
        self.finish_reasons: list[str] = []
        self.error_reported = False
        self.terminal = False
        self.model: str | None = None
        self.extras: dict[str, object] = {}
        self._choices: dict[int, Choice] = {}
        self._open_choices = 0
        self._last_finished: Choice | None = None
        self._total: Usage | None = None
        self._by_choice = False  # usage without a choice beside it belongs to the one that finished last
        self._read_at: float | None = None
        self._done = False

    def apply(self, event: Event, now: float) -> None:
        """Take one event that was seen at `now`."""
        _APPLY[type(event)](self, event, now)

    # --- what the response says

    def tokens_received(self, index: int, material: int, tokens_so_far: int | None, now: float) -> None:
        """Hot: a token-bearing chunk of choice `index`."""
        choice = self._choices.get(index)
        if choice is None or not choice.chunks:
            self._first_tokens(index, material, tokens_so_far, now)
            return
        previous = choice.last
        gap = now - previous
        tokens = None
        if tokens_so_far is not None:
            if choice.tokens is not None and tokens_so_far >= choice.tokens:
                tokens = tokens_so_far - choice.tokens
            choice.tokens = tokens_so_far
        elif choice.tokens is not None:
            choice.tokens = None
        during = choice.material
        choice.material = material
        choice.chunks += 1
        choice.last = self.last_token_at = now
        self.chunks += 1
        if now != self._read_at:
            self._read_at = now
            self.reads += 1
        if material != during:
            self._stamp(material, now)
        if self.waits.mark > previous:
            self._gap_with_wait(choice, during, gap, now)
            return
        if gap > self._longest:
            self._longest = gap
        if gap > self.stall_threshold:
            self._stalled(gap, during, now)
        self.on_gap(gap, tokens)

    def _first_tokens(self, index: int, material: int, tokens_so_far: int | None, now: float) -> None:
        choice = self._choice(index)
        if choice is None:
            return
        choice.chunks = 1
        choice.first = choice.last = self.last_token_at = now
        choice.material = material
        choice.tokens = choice.first_tokens = tokens_so_far
        choice.first_reasoning = choice.usage.reasoning if choice.usage is not None else None
        choice.wait_first = choice.wait_last = self.waits.until(now)
        self.chunks += 1
        if now != self._read_at:
            self._read_at = now
            self.reads += 1
        if self.f1 is None:
            self.f1 = now
        self._stamp(material, now)

    def _stamp(self, material: int, now: float) -> None:
        if self.o1 is None and material & _OUTPUT_OR_TOOL:
            self.o1 = now
        if self.k1 is None and material & REASONING:
            self.k1 = now

    def choice_seen(self, index: int) -> None:
        """A structural chunk: the choice exists."""
        self._choice(index)

    def choice_finished(self, index: int, reason: str, now: float) -> None:
        """A finish reason: the choice's open gap ends here; with the last of them, the response."""
        choice = self._choice(index)
        if choice is None or choice.finished is not None:
            return
        self._close_gap(choice, now)
        choice.finished = now
        self._last_finished = choice
        self._open_choices -= 1
        self.finish_reasons.append(reason if reason in FINISH_REASONS else "other")
        if not self._open_choices and len(self._choices) >= self.expected:
            self._ended(now)

    def stream_done(self, now: float) -> None:
        """`[DONE]`: the end of every choice."""
        self.close(now)
        self._ended(now)
        self._done = True

    def usage_reported(self, index: int | None, usage: Usage, now: float) -> None:
        """Counts beside a choice's chunk, or without one: see the head of this file."""
        self.u = now
        if index is None:
            self._usage_alone(usage)
            return
        choice = self._choice(index)
        if choice is not None:
            choice.usage = usage

    def _usage_alone(self, usage: Usage) -> None:
        # It belongs to the choice that just finished if others are still to finish: a total comes last.
        finished = self._last_finished
        unfinished = self._open_choices > 0 or len(self._choices) < self.expected
        several = max(self.expected, len(self._choices)) > 1
        if finished is not None and several and (unfinished or self._by_choice):
            self._by_choice = True
            finished.usage = usage
        else:
            self._total = usage

    def close(self, now: float) -> None:
        """End the open gap of every choice: nothing more will come."""
        for choice in self._choices.values():
            if choice.finished is None:
                self._close_gap(choice, now)
                choice.finished = now
        self._open_choices = 0

    def error_seen(self) -> None:
        """An error inside the response."""
        self.error_reported = True

    def model_named(self, model: str) -> None:
        """The model that answered, as the response calls it; the first name stays."""
        self.model = self.model or model

    def extra_seen(self, name: str, value: object) -> None:
        """Something only this engine says; the latest stays."""
        self.extras[name] = value

    def _ended(self, now: float) -> None:
        self.terminal = True
        if self.z is None:
            self.z = now

    def _choice(self, index: int) -> Choice | None:
        choice = self._choices.get(index)
        if choice is None:
            if len(self._choices) >= MAX_CHOICES:
                self.ignored += 1
                return None
            choice = self._choices[index] = Choice(index)
            self._open_choices += 1
            if self.terminal and not self._done:
                self.z, self.terminal = None, False  # a further choice: it was not the last finish reason
        return choice

    # --- what the client does

    def write_wait(self, start: float, end: float) -> None:
        """The client would not take bytes from `start` to `end`; it may have been announced as open."""
        if not self.waits.announced:
            self._wait_told_late(start, end)
        self.waits.over(start, end)

    def _wait_told_late(self, start: float, end: float) -> None:
        """Chunks that came inside the wait did not know of it: correct what they read."""
        for choice in self._choices.values():
            choice.wait_first += max(min(end, choice.first) - start, 0.0)
            choice.wait_last += max(min(end, choice.last) - start, 0.0)

    # --- gaps

    @property
    def longest_gap(self) -> float | None:
        """The largest gap that ended so far, less write wait; None before a token."""
        return None if self.f1 is None else self._longest

    def open_gap(self, now: float) -> float | None:
        """The largest gap that is still open, less write wait; None when no choice is generating."""
        gaps = [
            now - choice.last - (self.waits.until(now) - choice.wait_last)
            for choice in self._choices.values()
            if choice.chunks and choice.finished is None
        ]
        return max(gaps, default=None)

    def _gap_with_wait(self, choice: Choice, during: int, gap: float, now: float) -> None:
        waited = self.waits.until(now)
        self._measure(gap - (waited - choice.wait_last), during, now)
        choice.wait_last = waited

    def _close_gap(self, choice: Choice, now: float) -> None:
        if choice.chunks:
            waited = self.waits.until(now) - choice.wait_last
            self._measure(now - choice.last - waited, choice.material, now)

    def _measure(self, gap: float, during: int, now: float) -> None:
        if gap > self._longest:
            self._longest = gap
        if gap > self.stall_threshold:
            self._stalled(gap, during, now)

    def _stalled(self, gap: float, during: int, now: float) -> None:
        if len(self.stalls) < MAX_STALLS:
            self.stalls.append(Stall(gap, DURING[during], now))

    # --- the result

    def conclude_choices(self) -> None:
        """The body ended: an engine that made fewer choices than asked for has finished them all."""
        if self._choices and not self._open_choices and not self.terminal and self._last_finished is not None:
            self._ended(self._last_finished.finished or 0.0)

    def failed_reason(self) -> str | None:
        """A finish reason that says the generation did not finish."""
        return next((reason for reason in self.finish_reasons if reason in FAILED_REASONS), None)

    def summary(self) -> dict[str, Any]:
        """The fields of `RequestRecord` that the response decides."""
        choices = self._choices
        usage = total_usage(self._total, {i: c.usage for i, c in choices.items()}, self.per_prompt)
        hidden = hidden_tokens(usage, self.k1 is not None)
        token_bearing = [choice for choice in choices.values() if choice.chunks]
        first = token_bearing[0] if len(choices) == 1 and token_bearing else None
        wait = wait_inside(token_bearing)
        return {
            "k1": self.k1,
            "o1": self.o1,
            "f1": self.f1,
            "f_last": self.last_token_at,
            "u": self.u,
            "z": self.z,
            "input_tokens": usage.input,
            "cached_input_tokens": usage.cached_input,
            "output_tokens": usage.output,
            "reasoning_tokens": usage.reasoning,
            "hidden_tokens": hidden,
            "first_chunk_tokens": first_chunk_tokens(first, hidden),
            "chunks": self.chunks,
            "reads": self.reads,
            "choices": len(choices),
            "per_choice": choice_records(token_bearing, self.k1 is not None) if len(choices) > 1 else (),
            "finish_reasons": tuple(self.finish_reasons),
            "buffered": not wait and self._buffered(len(token_bearing)),
            "client_write_wait": self.waits.total,
            "write_wait_generation": wait,
            "stalls": tuple(self.stalls),
            "longest_gap": self.longest_gap,
            "engine": self.extras,
        }

    def _buffered(self, choices: int) -> bool:
        if self.f1 is None or self.last_token_at is None:
            return False
        return looks_buffered(self.chunks, self.reads, choices, self.last_token_at - self.f1)


# One row an event: what the timeline does with it.
_APPLY: dict[type[Event], Callable[[Timeline, Any, float], None]] = {
    ChoiceSeen: lambda t, e, _: t.choice_seen(e.choice),
    TokensReceived: lambda t, e, now: t.tokens_received(e.choice, e.material, e.tokens_so_far, now),
    ChoiceFinished: lambda t, e, now: t.choice_finished(e.choice, e.reason, now),
    UsageReported: lambda t, e, now: t.usage_reported(e.choice, e.usage, now),
    StreamDone: lambda t, _, now: t.stream_done(now),
    ErrorReported: lambda t, _e, _: t.error_seen(),
    ModelNamed: lambda t, e, _: t.model_named(e.model),
    EngineExtra: lambda t, e, _: t.extra_seen(e.name, e.value),
}
