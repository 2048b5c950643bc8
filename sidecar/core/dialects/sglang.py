"""SGLang's own API, `/generate`: `text` so far in every chunk, counts in `meta_info`.

Source: SGLang's docs (native API, sampling parameters) and engines.md 2.2.6. The text is cumulative, unless
the server runs with `--incremental-streaming-output`; only its growth is a token. Which of the two it is
shows with the second text: it begins as the first did, or it does not. `index` tells the prompts of a
batch apart. `meta_info` counts what was generated so far and holds wall-clock stamps of the engine's host,
which are never compared with ours.
"""

from collections.abc import Iterator

from sidecar.core.dialects.json_reader import (
    Document,
    JsonReader,
    count_of,
    filled,
    general_events,
    index_of,
    member,
    model_named,
    reason_of,
)
from sidecar.core.events import (
    OUTPUT,
    ChoiceFinished,
    ChoiceSeen,
    Event,
    TokensReceived,
    Usage,
    UsageReported,
)
from sidecar.core.timeline import MAX_CHOICES, Timeline

_HEAD = 16  # characters by which a text is known again


class _Text:
    """How long the text of one choice was, and how it began: never the text itself."""

    __slots__ = ("cumulative", "head", "head_length", "length")

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self.head_length = min(len(text), _HEAD)
        self.head = hash(text[:_HEAD])
        self.cumulative: bool | None = None  # not known before the second text

    def grown(self, text: str) -> bool:
        """Whether this text has something new."""
        if self.cumulative is None:
            same_start = hash(text[: self.head_length]) == self.head
            self.cumulative = same_start and len(text) >= self.length
        if not self.cumulative:
            return True
        longer = len(text) > self.length
        self.length = max(self.length, len(text))
        return longer


class SGLangReader(JsonReader):
    """Reads one response of /generate."""

    __slots__ = ("_texts",)

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self._texts: dict[int, _Text] = {}

    def chunk_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What one chunk says."""
        yield from general_events(document, extras=extras)
        index, meta = index_of(document), member(document, "meta_info")
        yield from model_named(meta.get("model"))
        if self._new_text(index, document.get("text")) or _new_ids(document):
            yield TokensReceived(index, OUTPUT, count_of(meta.get("completion_tokens")) or None)
        else:
            yield ChoiceSeen(index)
        yield from _ended(index, meta)

    def body_events(self, document: Document, *, extras: bool = True) -> Iterator[Event]:
        """What an answer in one piece says."""
        yield from general_events(document, extras=extras)
        yield from _ended(index_of(document), member(document, "meta_info"))

    def _new_text(self, index: int, text: object) -> bool:
        if not isinstance(text, str) or not text:
            return False
        known = self._texts.get(index)
        if known is not None:
            return known.grown(text)
        if len(self._texts) < MAX_CHOICES:
            self._texts[index] = _Text(text)
        return True


def _new_ids(document: Document) -> bool:
    """Without a detokenizer (`--skip-tokenizer-init`) there is no text, and ids come with every chunk."""
    ids = document.get("output_ids")
    return "text" not in document and isinstance(ids, list) and bool(ids)


def _ended(index: int, meta: Document) -> Iterator[Event]:
    reason = meta.get("finish_reason")
    reason = member(meta, "finish_reason").get("type") if isinstance(reason, dict) else reason
    if not filled(reason):
        return
    usage = Usage(
        input=count_of(meta.get("prompt_tokens")),
        output=count_of(meta.get("completion_tokens")),
        cached_input=count_of(meta.get("cached_tokens")),
        reasoning=count_of(meta.get("reasoning_tokens")) or None,
    )
    yield UsageReported(index, usage)
    yield ChoiceFinished(index, reason_of(reason))
