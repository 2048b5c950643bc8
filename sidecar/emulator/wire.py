"""Pieces of an answer -> the JSON and events that vLLM 0.32 sends, field for field.

Seen on the wire of the real server: a role event when the first token exists; one event a token, or a
few tokens in one event with a stream interval or a slow reader; finish reason `length` in the last
token's event, `stop` and `tool_calls` in an event of their own when it has no text; usage in an event with
empty `choices`; `system_fingerprint` in the last event only; with continuous usage the count of the event's
own choice in every event. Tokens held back by a parser send nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sidecar.emulator.answers import Answer, Piece
from sidecar.emulator.asked import Asked, AskedError

DONE = b"data: [DONE]\n\n"
BROKEN_BODY = (
    b'{"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", '
    b'"type": "InternalServerError", "param": null, "code": 500}}'
)
"""What vLLM answers when its engine broke."""
BROKEN = b"data: %b\n\n" % BROKEN_BODY
KEEP_ALIVE = b": keep-alive\n\n"
FINGERPRINT = "vllm-0.32.0-emulated"

Json = dict[str, Any]
TEXT_MARK = "\x01"
TEXT_MARK_JSON = msgspec.json.encode(TEXT_MARK)


@dataclass(frozen=True, slots=True)
class Reply:
    """What all parts of one response share: the request, the answers (a choice each), id and time."""

    asked: Asked
    answers: tuple[Answer, ...]
    id: str
    created: int
    """Unix seconds."""

    def envelope(self, kind: str) -> Json:
        """The fields that every body and event begins with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.asked.model}

    def usage(self, cached: int | None) -> Json:
        """Exact counts of the whole response; a prompt counts once, however many choices it has.

        `cached` are the prompt tokens that the prefix cache had; `None`: not told.
        """
        completion = sum(len(answer.pieces) for answer in self.answers)
        reasoning = sum(answer.reasoning_tokens for answer in self.answers)
        details = None if cached is None else {"cached_tokens": cached, "created_cache_tokens": 0}
        return usage(self.asked, sum(map(len, self.asked.prompts)), completion, reasoning, details)


@dataclass(slots=True)
class EventWriter:
    """Turns the tokens of one streamed response into events. `choice_of` makes the endpoint's choice."""

    reply: Reply
    object: str
    choice_of: "Callable[[EventWriter, int, Sequence[Piece], str | None], Json]"
    has_roles: bool
    _sent: dict[int, int] = field(default_factory=dict)
    _reasoned: dict[int, int] = field(default_factory=dict)
    _templates: dict[tuple[int, str], tuple[bytes, bytes]] = field(default_factory=dict)
    _open: int = 0

    def __post_init__(self) -> None:
        self._open = len(self.reply.answers)

    def tokens(self, choice: int, count: int = 1) -> list[bytes]:
        """The next `count` tokens of a choice go out together: their event, if they have one."""
        answer = self.reply.answers[choice]
        sent = self._sent.get(choice, 0)
        if count == 1 and sent and sent + 1 < len(answer.pieces):
            kind, text = answer.pieces[sent]
            template = self._templates.get((choice, kind))
            if template is not None and text:  # most tokens of most streams
                self._sent[choice] = sent + 1
                return [_filled(template, text)]
        pieces = answer.pieces[sent : sent + count]
        events = [] if self._sent or not self.has_roles else self._roles()
        self._sent[choice] = sent + count
        if self.reply.asked.continuous_usage:
            reasoned = sum(piece.kind == "reasoning" for piece in pieces)
            self._reasoned[choice] = self._reasoned.get(choice, 0) + reasoned
        pieces = tuple(piece for piece in pieces if piece.text)
        if sent + count < len(answer.pieces):
            return [*events, self._running_event(choice, pieces)] if pieces else events
        self._open -= 1
        return [*events, self._event(choice, pieces, answer.finish_reason)]

    def end(self, cached: int | None = None, metrics: Json | None = None) -> list[bytes]:
        """Usage where it was asked for, with the engine's own `metrics` if given, then `[DONE]`."""
        if not self.reply.asked.include_usage:
            return [DONE]
        tail: Json = {"choices": [], "usage": self.reply.usage(cached), "system_fingerprint": FINGERPRINT}
        if metrics is not None:
            tail["metrics"] = {name: value for name, value in metrics.items() if value is not None}
        return [_sse(self.reply.envelope(self.object) | tail), DONE]

    def _roles(self) -> list[bytes]:
        """With the first token of any choice the role of all."""
        return [self._role(choice) for choice in range(len(self.reply.answers))]

    def _role(self, choice: int) -> bytes:
        first = {"index": choice, "delta": {"role": "assistant", "content": ""}}
        body = {"choices": [first | {"logprobs": None, "finish_reason": None}]} | self._counts(choice)
        return _sse(self.reply.envelope(self.object) | body | {"prompt_token_ids": None, "prompt_text": None})

    def _running_event(self, choice: int, pieces: tuple[Piece, ...]) -> bytes:
        """As `_event`; plain text goes into an event that was encoded before."""
        kind = pieces[0].kind
        if (
            kind not in ("content", "reasoning")
            or self.reply.asked.continuous_usage
            or any(piece.kind != kind for piece in pieces)
        ):
            return self._event(choice, pieces, None)
        template = self._templates.get((choice, kind))
        if template is None:
            event = self._event(choice, (Piece(kind, TEXT_MARK),), None)
            before, _, after = event.partition(TEXT_MARK_JSON)
            template = self._templates[choice, kind] = before, after
        return _filled(template, "".join(piece.text for piece in pieces))

    def _event(self, choice: int, pieces: tuple[Piece, ...], finish_reason: str | None) -> bytes:
        body: Json = {"choices": [self.choice_of(self, choice, pieces, finish_reason)]} | self._counts(choice)
        if self._open == 0 and finish_reason is not None and not self.reply.asked.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        return _sse(self.reply.envelope(self.object) | body)

    def _counts(self, choice: int) -> Json:
        asked = self.reply.asked
        if not asked.continuous_usage:
            return {}
        prompt = len(asked.prompts[choice // asked.n])
        return {"usage": usage(asked, prompt, self._sent.get(choice, 0), self._reasoned.get(choice, 0))}


def chat_events(reply: Reply) -> EventWriter:
    """The events of a streamed chat completion."""
    return EventWriter(reply, "chat.completion.chunk", _chat_choice, has_roles=True)


def completion_events(reply: Reply) -> EventWriter:
    """The events of a streamed text completion."""
    return EventWriter(reply, "text_completion", _completion_choice, has_roles=False)


def chat_body(reply: Reply, cached: int | None = None, metrics: Json | None = None) -> bytes:
    """The body of a chat completion in one piece; the arguments are those of `EventWriter.end`."""
    choices = [
        {"index": index, "message": _message(reply, answer), "logprobs": None}
        | {"finish_reason": answer.finish_reason, "stop_reason": None}
        | {"token_ids": None, "routed_experts": None}
        for index, answer in enumerate(reply.answers)
    ]
    prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return _body(reply, "chat.completion", choices, prompt, cached, metrics)


def completion_body(reply: Reply, cached: int | None = None, metrics: Json | None = None) -> bytes:
    """The body of a text completion in one piece; the arguments are those of `EventWriter.end`."""
    choices = [
        {"index": index, "text": answer.text("content"), "logprobs": None}
        | {"finish_reason": answer.finish_reason, "stop_reason": None, "token_ids": None}
        | {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        for index, answer in enumerate(reply.answers)
    ]
    return _body(reply, "text_completion", choices, {}, cached, metrics)


def usage(
    asked: Asked, prompt: int, completion: int, reasoning: int, prompt_details: Json | None = None
) -> Json:
    """A usage object; reasoning tokens are told where a parser is at work."""
    counts: Json = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if prompt_details is not None:
        counts["prompt_tokens_details"] = prompt_details
    if asked.parsed:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


def error_body(error: AskedError) -> bytes:
    """An error in OpenAI's shape, as vLLM sends it."""
    inner = {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}
    return msgspec.json.encode({"error": inner})


def models_body(models: Sequence[str], created: int, max_model_len: int) -> bytes:
    """The body of /v1/models."""
    data = [
        {"id": name, "object": "model", "created": created, "owned_by": "vllm", "root": models[0]}
        | {"parent": None, "max_model_len": max_model_len}
        for name in models
    ]
    return msgspec.json.encode({"object": "list", "data": data})


def tool_call_id(reply: Reply, choice: int) -> str:
    """A call's id; the same in every rendering of one response."""
    return f"chatcmpl-tool-{reply.id.removeprefix('chatcmpl-')}-{choice}"


def _chat_choice(
    writer: EventWriter, choice: int, pieces: Sequence[Piece], finish_reason: str | None
) -> Json:
    if pieces:
        delta = _delta(writer.reply, choice, pieces)
    else:
        delta = {} if writer.reply.asked.parsed else {"content": ""}
    return _finishing({"index": choice, "delta": delta, "logprobs": None}, finish_reason)


def _delta(reply: Reply, choice: int, pieces: Sequence[Piece]) -> Json:
    """Content before reasoning when an event has both, and a call's name with its arguments."""
    said: dict[str, str] = {}
    for kind, text in pieces:
        said[kind] = said.get(kind, "") + text
    delta: Json = {kind: said[kind] for kind in ("content", "reasoning") if kind in said}
    function = {KEY_OF[kind]: said[kind] for kind in KEY_OF if kind in said}
    if function:
        head = {"id": tool_call_id(reply, choice), "type": "function"} if "name" in function else {}
        delta = {"content": None, "tool_calls": [head | {"index": 0, "function": function}]}
    return delta


KEY_OF = {"tool_name": "name", "tool_arguments": "arguments"}
"""Kind of a piece -> its key in a tool call's `function`."""


def _finishing(choice: Json, finish_reason: str | None) -> Json:
    """`stop_reason` is there in a finishing event only."""
    stop = {} if finish_reason is None else {"stop_reason": None}
    return choice | {"finish_reason": finish_reason} | stop | {"token_ids": None}


def _completion_choice(
    _writer: EventWriter, choice: int, pieces: Sequence[Piece], finish_reason: str | None
) -> Json:
    text = "".join(piece.text for piece in pieces)
    said = {"index": choice, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return said | {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}


def _message(reply: Reply, answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.text("content") or None, "refusal": None}
    message |= {"annotations": None, "audio": None, "function_call": None}
    if name := answer.text("tool_name"):
        function = {"name": name, "arguments": answer.text("tool_arguments")}
        call = {"id": tool_call_id(reply, reply.answers.index(answer)), "type": "function"}
        message["tool_calls"] = [call | {"function": function}]
    return message | {"reasoning": answer.text("reasoning") or None}


def _body(
    reply: Reply, kind: str, choices: list[Json], prompt: Json, cached: int | None, metrics: Json | None
) -> bytes:
    counts = reply.usage(cached)
    details = counts.pop("completion_tokens_details", None)
    of_prompt = counts.pop("prompt_tokens_details", None)
    if of_prompt is not None:
        of_prompt |= {"multimodal_tokens": None}
    counts |= {"prompt_tokens_details": of_prompt, "completion_tokens_details": details}
    shared = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": counts}
    own = None if metrics is None else metrics | {"speculative_decoding": None}
    transfer = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": own}
    return msgspec.json.encode(reply.envelope(kind) | {"choices": choices} | shared | prompt | transfer)


def _filled(template: tuple[bytes, bytes], text: str) -> bytes:
    return b"%b%b%b" % (template[0], msgspec.json.encode(text), template[1])


def _sse(payload: Json) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"
