"""The record of one finished request: its stamps, its counts, and every number derived from them.

The formulas are those of DESIGN section 2; where it says "not observed" the property is None, and a
missing value is never 0. All stamps are seconds of one monotonic clock (`wall` alone is Unix time, to
place spans); all durations are seconds.
"""

from typing import Literal

import msgspec

from sidecar.core.outcome import Outcome

Basis = Literal["usage", "chunks"]

# A response of which more than this share was spent waiting for the client says nothing of the engine.
MAX_WAIT_SHARE = 0.10


class Stall(msgspec.Struct, frozen=True):
    """A gap over the threshold; `during` is what the stream was doing: reasoning, output, tool_call."""

    duration: float
    during: str
    ended: float | None = None  # when the next token, or the end, came


class ChoiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a response that has several: what TPOT needs of it."""

    index: int
    f1: float
    f_last: float
    write_wait: float
    output_tokens: int | None
    hidden_tokens: int  # reasoning tokens that no chunk showed: they came before f1
    first_chunk_tokens: int | None


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one request. `None` is "not observed", never 0."""

    id: str
    trace_id: str
    method: str
    operation: str
    model: str | None  # as requested, else as answered: not a label
    streaming: bool | None
    status: int | None
    outcome: Outcome
    wall: float  # Unix seconds at t0

    t0: float  # request head received
    t_up: float | None = None  # last byte of the request body received
    t_conn: float | None = None  # upstream connection ready
    t_sent: float | None = None  # last request byte written upstream
    h: float | None = None  # response head received
    b1: float | None = None  # first response body byte
    k1: float | None = None  # first chunk with reasoning
    o1: float | None = None  # first chunk with output
    f1: float | None = None  # first token-bearing chunk
    f_last: float | None = None  # last token-bearing chunk
    u: float | None = None  # last usage
    z: float | None = None  # terminal marker
    e: float | None = None  # end of the response body
    d_end: float | None = None  # the sidecar's kernel had taken the last byte for the client
    ended: float  # when the exchange was over, however it ended

    reused: bool | None = None  # the upstream connection came from the pool
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_tokens: int = 0  # reasoning tokens that no chunk showed
    first_chunk_tokens: int | None = None  # n1, known only with usage in each chunk
    chunks: int = 0  # token-bearing, counted for each choice
    reads: int = 0  # socket reads with a token-bearing chunk
    choices: int = 0
    per_choice: tuple[ChoiceRecord, ...] = ()  # only when there are several
    finish_reasons: tuple[str, ...] = ()
    observed: bool = False  # the response's dialect was read, to its end
    missed: int = 0  # payloads that were skipped or not understood
    buffered: bool = False  # the signature of a buffering hop before the sidecar

    client_write_wait: float = 0.0
    write_wait_generation: float = 0.0  # the part of it inside f1..f_last
    stalls: tuple[Stall, ...] = ()
    longest_gap: float | None = None
    error: str | None = None  # a kind, never text of the body
    bytes_in: int = 0
    bytes_out: int = 0
    engine: dict[str, object] = {}  # what only this engine says, raw (`timings`, `metrics`)

    @property
    def headers_time(self) -> float | None:
        """Time to response headers, `h - t0`."""
        return _between(self.t0, self.h)

    @property
    def ttfb(self) -> float | None:
        """Time to first byte, `b1 - t0`."""
        return _between(self.t0, self.b1)

    @property
    def ttft(self) -> float | None:
        """Time to first token, `f1 - t0`; of streamed responses only."""
        return _between(self.t0, self.f1) if self.streaming else None

    @property
    def ttfo(self) -> float | None:
        """Time to first output, `o1 - t0`; of streamed responses only."""
        return _between(self.t0, self.o1) if self.streaming else None

    @property
    def waited(self) -> float | None:
        """The censored TTFT: how long was waited for a token that never came, of streamed requests only."""
        if not self.streaming or self.f1 is not None or not self.observed:
            return None
        return (self.ended if self.z is None else self.z) - self.t0

    @property
    def reasoning(self) -> float | None:
        """Reasoning time, `o1 - k1`; None without reasoning or when output came before it."""
        time = _between(self.k1, self.o1)
        return time if self.streaming and time is not None and time >= 0 else None

    @property
    def upload(self) -> float | None:
        """`t_up - t0`."""
        return _between(self.t0, self.t_up)

    @property
    def e2e(self) -> float | None:
        """Request duration: `e - t0`, or `z - t0` when the client left after the terminal marker."""
        if self.e is None and self.outcome == "completed":
            return _between(self.t0, self.z)
        return _between(self.t0, self.e)

    @property
    def delivered(self) -> float | None:
        """Request duration as delivered, `d_end - t0`."""
        return _between(self.t0, self.d_end)

    @property
    def tpot(self) -> float | None:
        """Time per output token, one value a request; see `_tpot`."""
        return _tpot(self)[0]

    @property
    def tpot_basis(self) -> Basis | None:
        """`usage` when the tokens were counted by the engine, `chunks` when one a chunk was assumed."""
        return _tpot(self)[1]

    @property
    def buffered_because(self) -> str | None:
        """Why a hop before the sidecar is thought to have held the response back; None when none is."""
        if not self.buffered or self.f1 is None or self.f_last is None:
            return None
        spread = (self.f_last - self.f1) * 1e3
        return (
            f"{self.chunks} token-bearing chunks came in {self.reads} reads within {spread:.1f} ms, the "
            f"first {(self.f1 - self.t0) * 1e3:.0f} ms after the request: a hop before the sidecar holds "
            f"them back"
        )

    def as_json(self) -> dict[str, object]:
        """The row of `/api/requests`: seconds and tokens, null where not observed."""
        return {
            "id": self.id,
            "model": self.model,
            "operation": self.operation,
            "streaming": self.streaming,
            "outcome": self.outcome,
            "status": self.status,
            "ttfb": self.ttfb,
            "ttft": self.ttft,
            "ttfo": self.ttfo,
            "reasoning": self.reasoning,
            "tpot": self.tpot,
            "tpot_basis": self.tpot_basis,
            "e2e": self.e2e,
            "longest_gap": self.longest_gap,
            "stalls": len(self.stalls),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "client_write_wait": self.client_write_wait,
            "trace_id": self.trace_id,
            "waited": self.waited,
            "buffered": self.buffered_because,
        }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _tpot(record: RequestRecord) -> tuple[float | None, Basis | None]:
    """TPOT and its basis (DESIGN section 2).

    `(fL - f1 - w) / (n_vis - n1)`, `/(n_vis - 1)` when n1 is unknown, without usage
    `(fL - f1 - w) / (chunks - 1)`. Not observed when not streamed, when `fL = f1`, with fewer than two
    visible tokens, when a hop buffered the response, when w is over 10 % of the interval, and for
    several choices without counts of each. With such counts the choices' times and tokens are added up:
    the mean over the tokens.
    """
    if not record.streaming or not record.observed or record.buffered:
        return None, None
    if record.choices > 1:
        return _tpot_of_choices(record.per_choice)
    if record.f1 is None or record.f_last is None:
        return None, None
    time = _generation_time(record.f1, record.f_last, record.write_wait_generation)
    basis: Basis = "usage"
    tokens: int | None
    if record.output_tokens is not None:
        tokens = _later_tokens(record.output_tokens - record.hidden_tokens, record.first_chunk_tokens)
    else:
        basis = "chunks"
        tokens = record.chunks - 1 if record.chunks > 1 and not record.missed else None
    return (None, None) if time is None or tokens is None else (time / tokens, basis)


def _tpot_of_choices(choices: tuple[ChoiceRecord, ...]) -> tuple[float | None, Basis | None]:
    times, tokens = 0.0, 0
    for choice in choices:
        if choice.output_tokens is None:
            return None, None
        time = _generation_time(choice.f1, choice.f_last, choice.write_wait)
        later = _later_tokens(choice.output_tokens - choice.hidden_tokens, choice.first_chunk_tokens)
        if time is not None and later is not None:
            times, tokens = times + time, tokens + later
    return (times / tokens, "usage") if tokens else (None, None)


def _generation_time(f1: float, f_last: float, wait: float) -> float | None:
    interval = f_last - f1
    return interval - wait if interval > 0 and wait <= MAX_WAIT_SHARE * interval else None


def _later_tokens(visible: int, first: int | None) -> int | None:
    """Tokens that came after the first chunk; None when that is not known or none did."""
    later = visible - (1 if first is None else first)
    return later if visible >= 2 and later > 0 else None
