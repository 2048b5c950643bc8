"""How a request ended, in the closed list of outcomes that the metrics use.

Two views meet here: what the transport saw (`End`) and what the response itself said (its status, its
terminal marker, an error inside a stream). A 200 alone is no success: a stream that ends cleanly
without a finish reason or `[DONE]` is truncated, one that carried an error event failed
(DESIGN section 7; reference/known-failures.md theme 6).
"""

from collections.abc import Callable
from typing import Literal

import msgspec

End = Literal["clean", "cut", "reset", "unreachable", "client_left", "timeout", "rejected"]
"""What the transport saw: the body's own end; FIN too early; RST; no connection; the client went away;
a time limit of the sidecar; refused by the sidecar before the engine was asked."""

Outcome = Literal[
    "completed",
    "client_disconnected_before_output",
    "client_disconnected",
    "client_error",
    "overloaded",
    "upstream_error",
    "upstream_unreachable",
    "upstream_reset",
    "truncated",
    "error_in_stream",
    "timeout",
]

# Finish reasons that say the generation did not finish (vLLM sends `abort` when it is told to stop).
FAILED_REASONS = frozenset({"abort", "error"})


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a request ends."""

    end: End
    status: int | None = None  # the engine's
    own_status: int | None = None  # what the sidecar answered where the engine did not
    terminal: bool = False  # every choice has its finish reason, or the dialect's end marker came
    needs_terminal: bool = False  # a stream whose dialect is known and of which nothing was missed
    error_reported: bool = False
    failed_reason: bool = False  # a finish reason out of FAILED_REASONS
    output: bool = False  # something generated reached the client's side


def _refusal(seen: Seen) -> int:
    """The status with which the engine, or the sidecar before it, may have refused."""
    return (seen.own_status if seen.end == "rejected" else seen.status) or 0


# The first row that applies gives the outcome. A refusal by status comes before the way the bytes
# ended: who got a 503 was refused, however the connection was closed after it.
RULES: tuple[tuple[Outcome, Callable[[Seen], bool]], ...] = (
    ("upstream_unreachable", lambda s: s.end == "unreachable"),
    ("timeout", lambda s: s.end == "timeout"),
    ("timeout", lambda s: s.end == "rejected" and s.own_status == 504),
    ("upstream_unreachable", lambda s: s.end == "rejected" and s.own_status == 502),
    ("overloaded", lambda s: _refusal(s) in (429, 503)),
    ("client_error", lambda s: 400 <= _refusal(s) < 500),
    ("upstream_error", lambda s: _refusal(s) >= 500),
    ("error_in_stream", lambda s: s.error_reported),
    ("truncated", lambda s: s.failed_reason),
    ("completed", lambda s: s.end == "client_left" and s.terminal),
    ("client_disconnected", lambda s: s.end == "client_left" and s.output),
    ("client_disconnected_before_output", lambda s: s.end == "client_left"),
    ("upstream_reset", lambda s: s.end == "reset" or s.status is None),
    ("truncated", lambda s: s.end == "cut"),
    ("truncated", lambda s: s.needs_terminal and not s.terminal),
    ("completed", lambda _: True),
)


def conclude(seen: Seen) -> Outcome:
    """The outcome of a request."""
    for outcome, applies in RULES:
        if applies(seen):
            return outcome
    raise AssertionError("the last row always applies")
