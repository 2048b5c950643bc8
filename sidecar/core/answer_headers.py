"""What an engine says of a request in the head of its answer.

Source: TGI's `x-*` headers (engines.md 2.4.2), TensorRT-LLM's `Server-Timing` (2.8.3), OpenAI's
`openai-processing-ms`. In a stream the head comes before the work is done, so only answers in one piece
have totals there.
"""

from collections.abc import Iterator, Sequence

from sidecar.core.events import EngineExtra, Event, Usage, UsageReported

EXTRA = "headers"
MAX_VALUE = 1024

_KEPT = frozenset(
    {b"server-timing", b"openai-processing-ms"}
    | {b"x-queue-time", b"x-inference-time", b"x-validation-time", b"x-total-time"}
)
_INPUT, _OUTPUT = b"x-prompt-tokens", b"x-generated-tokens"
_KNOWN = _KEPT | {_INPUT, _OUTPUT}


def events_of(headers: Sequence[tuple[bytes, bytes]]) -> Iterator[Event]:
    """Token counts and timings, where the engine gives any."""
    said = {lower: value for name, value in headers if (lower := name.lower()) in _KNOWN}
    if not said:
        return
    kept = {
        name.decode(): value[:MAX_VALUE].decode("ascii", "replace")
        for name, value in said.items()
        if name in _KEPT
    }
    if kept:
        yield EngineExtra(EXTRA, kept)
    usage = Usage(input=_count(said.get(_INPUT)), output=_count(said.get(_OUTPUT)))
    if usage.input is not None or usage.output is not None:
        yield UsageReported(None, usage)


def _count(value: bytes | None) -> int | None:
    text = (value or b"").strip()
    return int(text) if text.isdigit() and len(text) < 10 else None
