"""What all dialects have in common: a payload is JSON, and reading it never raises.

A dialect says in `chunk_events` what one document of a stream means and in `body_events` what an answer in
one piece means. A dialect whose streams are hot overrides `payload` with a typed decoder of just the members
that matter, and leaves what that does not understand to `tolerant`.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from sidecar.core.events import EngineExtra, ErrorReported, Event, ModelNamed, StreamDone, Usage
from sidecar.core.request import clean_text
from sidecar.core.timeline import Timeline

DONE = b"[DONE]"
MAX_EXTRA_PAYLOAD = 16384  # engine extras of a longer payload are not kept

# Members that one engine adds: llama.cpp, vLLM, Dynamo, Groq, SGLang (engines.md 1.4). Raw, for the
# engine view; token counts are never taken from them.
ENGINE_EXTRAS = ("timings", "metrics", "nvext", "x_groq", "meta_info")
NAMED_EXTRAS = frozenset({b"trtllm.perf_metrics"})  # a typed event that TensorRT-LLM sends after `[DONE]`

NO_USAGE = Usage()
NOT_DECODABLE = (ValueError, RecursionError)  # msgspec's errors are ValueErrors

Document = dict[str, object]


class PayloadReader(Protocol):
    """Reads the payloads of one response into a timeline. No method raises on any bytes."""

    def __init__(self, timeline: Timeline) -> None: ...

    @property
    def faults(self) -> int:
        """Payloads that were not understood."""

    @property
    def recognised(self) -> bool:
        """At least one payload was of this dialect."""

    @property
    def foreign(self) -> bool:
        """Payloads came that are of no dialect known for this path: they tell nothing."""

    def payload(self, data: bytes, now: float) -> None:
        """One payload of a stream."""

    def named_payload(self, event_type: bytes, data: bytes, now: float) -> None:
        """One payload of a stream whose event has a type."""

    def body(self, data: bytes, now: float) -> None:
        """The whole body of a response that is not streamed."""


class JsonReader:
    """Decodes payloads and applies what the dialect says of them."""

    __slots__ = ("_timeline", "_tokens_received", "faults", "foreign", "recognised")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._tokens_received = timeline.tokens_received
        self.faults = 0
        self.recognised = False
        self.foreign = False

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterable[Event]:
        """What one document of a stream says, in the order in which the timeline wants it."""
        raise NotImplementedError

    def body_events(self, document: Document, *, extras: bool = True) -> Iterable[Event]:
        """What an answer in one piece says: the same as a stream of one document, if a dialect has no
        other shape for it."""
        return self.chunk_events(document, extras=extras)

    def payload(self, data: bytes, now: float) -> None:
        """One payload of a stream."""
        self.tolerant(data, now)

    def named_payload(self, event_type: bytes, data: bytes, now: float) -> None:
        """An event of a type: `error` is an error whatever its data are; most repeat the type inside."""
        if event_type == b"error":
            self.recognised = True
            self._timeline.apply(ErrorReported(), now)
        elif event_type in NAMED_EXTRAS:
            document = self.decoded(data)
            if document is not None and len(data) <= MAX_EXTRA_PAYLOAD:
                self._timeline.apply(EngineExtra(event_type.decode(), document), now)
        else:
            self.payload(data, now)

    def tolerant(self, data: bytes, now: float) -> None:
        """One payload of a stream, whatever it is."""
        if data.strip() == DONE:
            self.recognised = True
            self._timeline.apply(StreamDone(), now)
            return
        document = self.decoded(data)
        if isinstance(document, dict):
            self.recognised = True
            for event in self.chunk_events(document, extras=len(data) <= MAX_EXTRA_PAYLOAD):
                self._timeline.apply(event, now)

    def body(self, data: bytes, now: float) -> None:
        """The whole body: counts and finish reasons; it has no times of tokens. Some engines answer
        several prompts with a list."""
        document = self.decoded(data)
        extras = len(data) <= MAX_EXTRA_PAYLOAD
        for part in document if isinstance(document, list) else (document,):
            if isinstance(part, dict):
                self.recognised = True
                for event in self.body_events(part, extras=extras):
                    self._timeline.apply(event, now)

    def decoded(self, data: bytes) -> object:
        """Plain objects; None when the payload is blank or, which is counted, not JSON.

        `json` is asked last: it reads lone surrogates and, after replacement, invalid UTF-8, which
        msgspec refuses.
        """
        if not data.strip():
            return None
        try:
            return msgspec.json.decode(data)
        except NOT_DECODABLE:
            pass
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except NOT_DECODABLE:
            self.faults += 1
            return None


def general_events(document: Document, *, extras: bool) -> Iterator[Event]:
    """What a document of any dialect may say: the model, an error, members of one engine."""
    yield from model_named(document.get("model"))
    if document.get("error"):
        yield ErrorReported()
    if extras:
        for name in ENGINE_EXTRAS:
            value = document.get(name)
            if value:
                yield EngineExtra(name, value)


def model_named(model: object) -> Iterator[Event]:
    """The model, where a name is there."""
    if isinstance(model, str) and model:
        yield ModelNamed(clean_text(model))


def filled(value: object) -> bool:
    """Text with something in it."""
    return isinstance(value, str) and value != ""


def count_of(value: object) -> int | None:
    """A count as engines give it; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def index_of(document: Document) -> int:
    """Which choice a document is about."""
    index = document.get("index")
    return index if type(index) is int else 0


def member(document: Document, name: str) -> Document:
    """An object inside; empty when it is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def reason_of(value: object, otherwise: str = "stop") -> str:
    """A finish reason as text."""
    return value if isinstance(value, str) and value else otherwise
