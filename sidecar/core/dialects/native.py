"""Engines' own generation routes: which dialect an answer has shows in its first document.

Two engines serve `/generate` and mean different things by it, so the path cannot tell. A new engine is one
file here and one row in SHAPES.
"""

import msgspec

from sidecar.core.dialects.json_reader import DONE, NOT_DECODABLE, JsonReader, PayloadReader
from sidecar.core.dialects.llama_cpp import LlamaCppReader
from sidecar.core.dialects.ollama import OllamaReader
from sidecar.core.dialects.sglang import SGLangReader
from sidecar.core.dialects.tgi import TGIReader
from sidecar.core.events import ErrorReported, StreamDone
from sidecar.core.timeline import Timeline

# The first row of which a document has a member; no document of one engine has another's.
SHAPES: tuple[tuple[frozenset[str], type[PayloadReader]], ...] = (
    (frozenset({"meta_info"}), SGLangReader),
    (frozenset({"token", "generated_text"}), TGIReader),
    (frozenset({"tokens_predicted", "tokens_evaluated", "prompt_progress"}), LlamaCppReader),
    (frozenset({"message", "response", "done", "eval_count"}), OllamaReader),
)

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_first_of_list = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class NativeReader:
    """Reads one response by the reader of its shape."""

    __slots__ = ("_by_shape", "_timeline", "_unknown")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._by_shape: PayloadReader | None = None
        self._unknown = JsonReader(timeline)  # until the shape is known

    @property
    def faults(self) -> int:
        """Payloads that were not understood."""
        return self._unknown.faults + (self._by_shape.faults if self._by_shape is not None else 0)

    @property
    def recognised(self) -> bool:
        """At least one payload had a known shape, or was an end or an error."""
        return self._unknown.recognised or (self._by_shape is not None and self._by_shape.recognised)

    @property
    def foreign(self) -> bool:
        """Payloads came, none of a known shape."""
        return self._unknown.foreign and not self.recognised

    def payload(self, data: bytes, now: float) -> None:
        """One payload of a stream."""
        reader = self._by_shape or self._choose(data, now)
        if reader is not None:
            reader.payload(data, now)

    def named_payload(self, event_type: bytes, data: bytes, now: float) -> None:
        """One payload of a stream whose event has a type."""
        if event_type == b"error":
            self._unknown.named_payload(event_type, data, now)
        else:
            self.payload(data, now)

    def body(self, data: bytes, now: float) -> None:
        """The whole body of a response that is not streamed."""
        reader = self._by_shape or self._choose(data, now)
        if reader is not None:
            reader.body(data, now)

    def _choose(self, data: bytes, now: float) -> PayloadReader | None:
        if data.strip() == DONE:
            self._unknown.recognised = True
            self._timeline.apply(StreamDone(), now)
            return None
        names = self._names(data)
        for shape, reader in SHAPES:
            if not shape.isdisjoint(names):
                self._by_shape = reader(self._timeline)
                return self._by_shape
        if "error" in names:
            self._unknown.recognised = True
            self._timeline.apply(ErrorReported(), now)
        elif names:
            self._unknown.foreign = True
        return None

    def _names(self, data: bytes) -> frozenset[str]:
        """The members of a document, or of the first of a list; none when it is neither."""
        try:
            return frozenset(_members(data))
        except NOT_DECODABLE:
            pass
        try:
            return frozenset(name for document in _first_of_list(data)[:1] for name in document)
        except NOT_DECODABLE:
            self._unknown.decoded(data)  # counts what is no JSON
            return frozenset()
