"""The one exception to "every byte unchanged", off by default: asking for what engines only tell when asked.

`usage.inject`: usage of streamed chat and text completions whose JSON says nothing of `stream_options`. One
member is put in as text, and the event that it causes (usage without choices) is taken out of what the
client gets. What remains different: llama.cpp moves its `timings` into the event that is taken out, and an
engine that is told to send usage always loses it for such clients.

`engine_timings.request`: TensorRT-LLM's timings, by a request header; the response fields or the event behind
`[DONE]` that it causes are taken out (engines.md 2.8.3). vLLM's come with the usage.

On any doubt nothing is edited, and a count says why.
"""

import re
from collections import Counter
from typing import Final, NamedTuple

import msgspec

from sidecar.core.dialects import route_of
from sidecar.core.request import is_encoded
from sidecar.proxy.heads import RawHeaders, RequestHead

MAX_BODY: Final = 262144
MAX_HELD: Final = 65536  # of an incomplete event; more passes, and nothing is taken out any more
_OPERATIONS = frozenset({"chat", "text_completion"})
_MEMBER = b'"stream_options":{"include_usage":true},'
_SIGNED = frozenset(
    {b"content-md5", b"digest", b"content-digest", b"signature", b"signature-input", b"x-amz-content-sha256"}
)
_TIMINGS_HEADER = b"x-trtllm-return-metrics"
_TIMINGS_EVENT = b"event: trtllm.perf_metrics\n"
TIMINGS_FIELDS = frozenset(
    {b"server-timing", b"x-trtllm-start-end-time", b"x-trtllm-step-metrics", b"x-trtllm-ctx-chunk-metrics"}
)
_CONTENT_LENGTH = re.compile(rb"(\r\ncontent-length:)[^\r\n]*", re.IGNORECASE)
_NOT_JSON = (ValueError, RecursionError)  # msgspec's errors are ValueErrors


class Asks(NamedTuple):
    """What engines are asked for in the client's stead."""

    usage: bool = False
    timings: bool = False


class _Asked(msgspec.Struct):
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def concerns(head: RequestHead) -> bool:
    """Whether a request is one that could be edited; others are not counted."""
    return route_of(head.method, head.target).operation in _OPERATIONS


def obstacle(head: RequestHead, *, complete: bool) -> str | None:
    """What in its head keeps a request from being edited; `complete`: its body came with the head."""
    if is_encoded(head.headers):
        return "compressed"
    if any(name.lower() in _SIGNED for name, _ in head.headers):
        return "signed"
    if not complete and head.first(b"expect") is not None:
        return "expects_continue"
    if (head.length or 0) > MAX_BODY:
        return "too_long"
    return None if complete or head.length else "unknown_length"


def ask_for_usage(body: bytes) -> tuple[bytes, str]:
    """The body to send, and what was done: `usage_asked`, or why it is the client's own."""
    if len(body) > MAX_BODY:
        return body, "too_long"
    try:
        asked = _decode_asked(body)
    except _NOT_JSON:
        return body, "not_json"
    if not asked.stream:
        return body, "not_streamed"
    if bytes(asked.stream_options):
        return body, "client_choice"
    brace = body.index(b"{") + 1
    return body[:brace] + _MEMBER + body[brace:], "usage_asked"


def with_length(head: bytes, length: int) -> bytes:
    """A request head as sent upstream with another Content-Length, where it has one."""
    return _CONTENT_LENGTH.sub(rb"\g<1> %d" % length, head, count=1)


def can_be_filtered(status: int, headers: RawHeaders) -> bool:
    """Whether events can be taken out of a response: a stream of unknown length, not compressed."""
    streamed = False
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-type":
            streamed = value.partition(b";")[0].strip().lower() == b"text/event-stream"
        elif lower == b"content-length":
            return False
    return status == 200 and streamed and not is_encoded(headers)


class Edit:
    """The edit of one exchange: nothing at all, or a request that asks for more and its answer."""

    __slots__ = ("_asks", "_counted", "_filter", "_timings", "_usage", "unwanted")

    def __init__(self, asks: Asks, counted: Counter[str]) -> None:
        """`counted` counts what was done, and why not."""
        self._asks, self._counted = asks, counted
        self._usage = self._timings = False  # this request was edited to ask for it
        self._filter: EventFilter | None = None
        self.unwanted: frozenset[bytes] = frozenset()  # fields of the answer's head that the edit caused

    @property
    def filters(self) -> bool:
        """What the engine sends does not go to the client as it came."""
        return self._filter is not None

    def may(self, head: RequestHead, *, complete: bool) -> bool:
        """Whether the request may be edited, by its head; `complete`: its body came with the head."""
        if not any(self._asks) or not concerns(head):
            return False
        why_not = obstacle(head, complete=complete)
        if why_not is not None:
            self._counted[why_not] += 1
        return why_not is None

    def request(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Head and body to send."""
        if self._asks.usage:
            edited, result = ask_for_usage(body)
            self._counted[result] += 1
            self._usage = edited is not body
            if self._usage:
                head, body = with_length(head, len(edited)), edited
        if self._asks.timings and _TIMINGS_HEADER not in head.lower():
            self._timings = True
            self._counted["timings_asked"] += 1
            head = head[:-2] + _TIMINGS_HEADER + b": 1\r\n\r\n"
        return head, body

    def answer(self, status: int, headers: RawHeaders) -> None:
        """The head of the answer."""
        if self._timings:
            self.unwanted = TIMINGS_FIELDS
        if not (self._usage or self._timings):
            return
        if can_be_filtered(status, headers):
            self._filter = EventFilter(usage=self._usage, timings=self._timings)
        elif self._usage:
            self._counted["answer_passed"] += 1

    def feed(self, data: bytes) -> bytes:
        """What the client gets of the next bytes."""
        return data if self._filter is None else self._filter.feed(data)

    def end(self) -> bytes:
        """Nothing more comes: what was held of an incomplete event is the client's."""
        if self._filter is None:
            return b""
        self._counted["event_removed"] += self._filter.removed
        rest, self._filter = self._filter.end(), None
        return rest


class EventFilter:
    """Passes server-sent events and leaves out those that an edit caused: usage without choices, an engine's
    timings. An event is held until it is whole."""

    __slots__ = ("_held", "_open", "_timings", "_usage", "removed")

    def __init__(self, *, usage: bool = True, timings: bool = False) -> None:
        self._usage, self._timings = usage, timings
        self._held = b""
        self._open = True
        self.removed = 0

    def feed(self, data: bytes) -> bytes:
        """What the client gets of the next bytes."""
        if not self._open:
            return data
        data = self._held + data
        if b"\r" in data:  # no engine's line ends; what can't be told apart passes
            return self._give_up(data)
        end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self._held = data[end:]
        if len(self._held) > MAX_HELD:
            return self._give_up(data)
        whole = data[:end]
        if b'"usage"' not in whole and _TIMINGS_EVENT not in whole:
            return whole
        return b"".join(event for event in _events(whole) if not self._caused(event))

    def end(self) -> bytes:
        """What was still held."""
        held, self._held = self._held, b""
        return held

    def _give_up(self, data: bytes) -> bytes:
        self._open, self._held = False, b""
        return data

    def _caused(self, event: bytes) -> bool:
        caused = (self._usage and _is_usage_alone(event)) or (
            self._timings and event.lstrip(b"\n").startswith(_TIMINGS_EVENT)
        )
        self.removed += caused
        return caused


def _events(whole: bytes) -> list[bytes]:
    *complete, rest = whole.split(b"\n\n")  # `rest`: one LF too many
    return [part + b"\n\n" for part in complete] + [rest]


def _is_usage_alone(event: bytes) -> bool:
    line = event.strip(b"\n")
    if b'"usage"' not in line or not line.startswith(b"data:") or b"\n" in line:
        return False
    try:
        said = _decode_event(line[5:])
    except _NOT_JSON:
        return False
    return said.choices == [] and bytes(said.usage).startswith(b"{") and not bytes(said.error)
