"""What an emulated engine is and does wrong. One frozen value, in groups; the command line fills it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sidecar.emulator.clock import ClockError
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.scheduler import Limits

DEFAULT_MODEL_LEN = 32_768
FaultKind = Literal["cut", "error", "hang"]


class OptionsError(ValueError):
    """Options that contradict each other; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Api:
    """How the server speaks; the names are those of vLLM's flags."""

    stream_interval: int = 1
    per_request_metrics: bool = False
    prompt_tokens_details: bool = False
    force_include_usage: bool = False
    request_id_headers: bool = False
    keep_alive_interval: float | None = None
    """Seconds between `: keep-alive` comments while a stream has sent nothing."""
    max_queued: int | None = None
    """Requests that may wait; a further one is refused with 503."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Every `every`-th request breaks after `tokens` tokens.

    `cut` closes the connection without an end; `error` ends the stream as vLLM does when its engine breaks,
    or answers 500 where nothing was sent yet; `hang` leaves the connection open and silent.
    """

    kind: FaultKind
    tokens: int
    every: int = 1


@dataclass(frozen=True, slots=True)
class Options:
    """An engine. Times in seconds."""

    models: tuple[str, ...] = ("emulated",)
    limits: Limits = field(default_factory=Limits)
    costs: StepCosts = field(default_factory=StepCosts)
    seed: int = 0
    natural_tokens: int = 64
    """Output tokens of a request without a limit, without the end token."""
    max_model_len: int | None = None
    """Prompt and output; `None`: 32,768, or less where the engine has no room for that."""
    frontend_time: float = 0.0
    """From the arrival to the queue: rendering and tokenisation."""
    frontend_per_token: float = 0.0
    api: Api = field(default_factory=Api)
    hold_back: float = 0.0
    """Bytes of a stream go out together this long after the first of them was ready."""
    faults: tuple[Fault, ...] = ()
    clock: ClockError = field(default_factory=ClockError)
    otlp: str | None = None
    """URL that spans are posted to."""
    otlp_delay: float = 5.0
    truth: str | None = None
    """File that a line for each finished sequence is appended to."""

    @property
    def context(self) -> int:
        """The most tokens of prompt and output together. Raises OptionsError."""
        room = self.limits.longest_sequence
        if self.max_model_len is None:
            return min(DEFAULT_MODEL_LEN, room)
        if self.max_model_len > room:
            raise OptionsError(
                f"a request of {self.max_model_len} tokens (--max-model-len) needs more than the {room} that "
                "the KV cache (--kv-blocks x --block-size) or, without chunked prefill, a step has room for"
            )
        return self.max_model_len


def fault_of(faults: Iterable[Fault], number: int) -> Fault | None:
    """What goes wrong with the `number`-th request (from 1): the first fault whose turn it is."""
    return next((fault for fault in faults if number % fault.every == 0), None)
