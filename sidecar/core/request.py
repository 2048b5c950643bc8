"""What the request says: model, streaming, how many choices, whether usage was asked for.

A JSON body of at most KEPT_BODY bytes is kept and decoded once, typed. A longer one is scanned as it
passes (`scanning`). Anything unreadable (compressed, not a JSON object, cut off) gives facts with
`readable` False, never an error: what a client sent must not hurt its request.
"""

import json
from collections.abc import Mapping, Sequence

import msgspec

from sidecar.core.scanning import ObjectScanner

KEPT_BODY = 262144
MAX_MODEL = 256  # characters of a model's name that are kept
MAX_COUNT = 100_000  # a larger n or prompt count is no real request's

Headers = Sequence[tuple[bytes, bytes]]


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a request's body said; None where it said nothing."""

    model: str | None = None
    stream: bool | None = None
    n: int = 1
    prompts: int = 1
    max_tokens: int | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    readable: bool = False


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stream_options: _StreamOptions | None = None
    prompt: msgspec.Raw = msgspec.Raw()


_WANTED = frozenset(name.encode() for name in _Body.__struct_fields__ if name != "prompt")
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_NOT_JSON = (ValueError, RecursionError)  # msgspec's errors are ValueErrors
_UNREADABLE = RequestFacts()


class RequestReader:
    """Reads one request body as it passes. Never raises, holds at most KEPT_BODY bytes."""

    def __init__(self, headers: Headers = ()) -> None:
        self._kept: bytearray | None = bytearray()
        self._scanner: ObjectScanner | None = None
        self._closed = is_encoded(headers)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        if self._closed:
            return
        if self._scanner is not None:
            self._scanner.feed(data)
            return
        assert self._kept is not None
        self._kept += data
        if len(self._kept) > KEPT_BODY:
            self._scanner = ObjectScanner(_WANTED, counted=b"prompt")
            self._scanner.feed(bytes(self._kept))
            self._kept = None

    def end(self) -> RequestFacts:
        """The body is complete: what it said."""
        if self._closed:
            return _UNREADABLE
        self._closed = True
        if self._scanner is not None:
            return _scanned_facts(self._scanner)
        body, self._kept = bytes(self._kept or b""), None
        return _kept_facts(body)


def is_encoded(headers: Headers) -> bool:
    """Whether a body is compressed."""
    return any(
        name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity")
        for name, value in headers
    )


def clean_text(text: str, limit: int = MAX_MODEL) -> str:
    """Text of the wire that can be written out again: bounded, no lone surrogates."""
    return text[:limit].encode("utf-8", "replace").decode()


def _kept_facts(body: bytes) -> RequestFacts:
    try:
        said = _decode_body(body)
    except _NOT_JSON:
        return _tolerant_facts(body)
    options = said.stream_options or _StreamOptions()
    limits = (said.max_completion_tokens, said.max_tokens, said.max_output_tokens)
    return RequestFacts(
        model=None if said.model is None else clean_text(said.model),
        stream=said.stream,
        n=_count(said.n) or 1,
        prompts=_prompts(bytes(said.prompt)),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.continuous_usage_stats),
        readable=True,
    )


def _tolerant_facts(body: bytes) -> RequestFacts:
    """A member has a type that nobody expects: the others still count."""
    try:
        members = {name.encode("utf-8", "replace"): bytes(raw) for name, raw in _decode_members(body).items()}
    except _NOT_JSON:
        return _UNREADABLE
    return _facts_of(members, _prompts(members.get(b"prompt", b"")))


def _scanned_facts(scanner: ObjectScanner) -> RequestFacts:
    if not scanner.complete:
        return _UNREADABLE
    return _facts_of(scanner.members, min(scanner.elements or 1, MAX_COUNT))


def _facts_of(members: Mapping[bytes, bytes], prompts: int) -> RequestFacts:
    said = {name.decode(): _value(raw) for name, raw in members.items() if name in _WANTED}
    model, stream, options = said.get("model"), said.get("stream"), said.get("stream_options")
    limits = (said.get("max_completion_tokens"), said.get("max_tokens"), said.get("max_output_tokens"))
    options = options if isinstance(options, dict) else {}
    return RequestFacts(
        model=clean_text(model) if isinstance(model, str) else None,
        stream=stream if isinstance(stream, bool) else None,
        n=_count(said.get("n")) or 1,
        prompts=prompts,
        max_tokens=next((limit for limit in limits if type(limit) is int), None),
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        readable=True,
    )


def _value(raw: bytes) -> object:
    """A member's value; None when it is not JSON. `json` reads the lone surrogates that msgspec refuses."""
    try:
        return json.loads(raw.decode("utf-8", "replace"))
    except _NOT_JSON:
        return None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= MAX_COUNT else None


def _prompts(raw: bytes) -> int:
    """How many prompts a completions request has: a list of strings or of token lists holds several."""
    if raw[:1] != b"[" or raw[1:65].lstrip()[:1] not in (b'"', b"["):
        return 1
    try:
        return min(len(_decode_elements(raw)) or 1, MAX_COUNT)
    except _NOT_JSON:
        return 1
