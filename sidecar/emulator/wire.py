"""Pieces of an answer -> the JSON and events that vLLM 0.32 sends, field for field.

Seen on the wire of the real server: a role event when the first token exists; one event a token; finish
reason `length` in the last token's event, `stop` and `tool_calls` in an event of their own; usage in an
event with empty `choices`; `system_fingerprint` in the last event only; with continuous usage the count
of the event's own choice in every event. Tokens held back by a parser send nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sidecar.emulator.answers import Answer, Piece
from sidecar.emulator.asked import Asked, AskedError

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-0.32.0-emulated"

Json = dict[str, Any]


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

    def usage(self) -> Json:
        """Exact counts of the whole response; a prompt counts once, however many choices it has."""
        completion = sum(len(answer.pieces) for answer in self.answers)
        reasoning = sum(answer.reasoning_tokens for answer in self.answers)
        return usage(self.asked, sum(self.asked.prompts), completion, reasoning)


@dataclass(slots=True)
class EventWriter:
    """Turns the tokens of one streamed response into events. `choice_of` makes the endpoint's choice."""

    reply: Reply
    object: str
    choice_of: "Callable[[EventWriter, int, Piece | None, str | None], Json]"
    has_roles: bool
    _sent: dict[int, int] = field(default_factory=dict)
    _reasoned: dict[int, int] = field(default_factory=dict)
    _open: int = 0

    def __post_init__(self) -> None:
        self._open = len(self.reply.answers)

    def token(self, choice: int) -> list[bytes]:
        """The next token of a choice fell: the events that go out for it."""
        answer = self.reply.answers[choice]
        count = self._sent.get(choice, 0)
        piece = answer.pieces[count]
        events = [] if self._sent or not self.has_roles else self._roles()
        self._sent[choice] = count + 1
        self._reasoned[choice] = self._reasoned.get(choice, 0) + (piece.kind == "reasoning")
        if count + 1 < len(answer.pieces):
            return [*events, self._event(choice, piece, None)] if piece.text else events
        self._open -= 1
        return [*events, self._event(choice, piece if piece.text else None, answer.finish_reason)]

    def end(self) -> list[bytes]:
        """Usage where it was asked for, then `[DONE]`."""
        if not self.reply.asked.include_usage:
            return [DONE]
        tail: Json = {"choices": [], "usage": self.reply.usage(), "system_fingerprint": FINGERPRINT}
        return [_sse(self.reply.envelope(self.object) | tail), DONE]

    def _roles(self) -> list[bytes]:
        """With the first token of any choice the role of all."""
        return [self._role(choice) for choice in range(len(self.reply.answers))]

    def _role(self, choice: int) -> bytes:
        first = {"index": choice, "delta": {"role": "assistant", "content": ""}}
        body = {"choices": [first | {"logprobs": None, "finish_reason": None}]} | self._counts(choice)
        return _sse(self.reply.envelope(self.object) | body | {"prompt_token_ids": None, "prompt_text": None})

    def _event(self, choice: int, piece: Piece | None, finish_reason: str | None) -> bytes:
        body: Json = {"choices": [self.choice_of(self, choice, piece, finish_reason)]} | self._counts(choice)
        if self._open == 0 and finish_reason is not None and not self.reply.asked.include_usage:
            body["system_fingerprint"] = FINGERPRINT
        return _sse(self.reply.envelope(self.object) | body)

    def _counts(self, choice: int) -> Json:
        asked = self.reply.asked
        if not asked.continuous_usage:
            return {}
        prompt = asked.prompts[choice // asked.n]
        return {"usage": usage(asked, prompt, self._sent.get(choice, 0), self._reasoned.get(choice, 0))}


def chat_events(reply: Reply) -> EventWriter:
    """The events of a streamed chat completion."""
    return EventWriter(reply, "chat.completion.chunk", _chat_choice, has_roles=True)


def completion_events(reply: Reply) -> EventWriter:
    """The events of a streamed text completion."""
    return EventWriter(reply, "text_completion", _completion_choice, has_roles=False)


def chat_body(reply: Reply) -> bytes:
    """The body of a chat completion in one piece."""
    choices = [
        {"index": index, "message": _message(reply, answer), "logprobs": None}
        | {"finish_reason": answer.finish_reason, "stop_reason": None}
        | {"token_ids": None, "routed_experts": None}
        for index, answer in enumerate(reply.answers)
    ]
    prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return _body(reply, "chat.completion", choices, prompt)


def completion_body(reply: Reply) -> bytes:
    """The body of a text completion in one piece."""
    choices = [
        {"index": index, "text": answer.text("content"), "logprobs": None}
        | {"finish_reason": answer.finish_reason, "stop_reason": None, "token_ids": None}
        | {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        for index, answer in enumerate(reply.answers)
    ]
    return _body(reply, "text_completion", choices, {})


def usage(asked: Asked, prompt: int, completion: int, reasoning: int) -> Json:
    """A usage object; reasoning tokens are told where a parser is at work."""
    counts: Json = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
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


def _chat_choice(writer: EventWriter, choice: int, piece: Piece | None, finish_reason: str | None) -> Json:
    reply = writer.reply
    if piece is not None:
        delta = DELTAS[piece.kind](reply, choice, piece.text)
    else:
        delta = {} if reply.asked.parsed else {"content": ""}
    return _finishing({"index": choice, "delta": delta, "logprobs": None}, finish_reason)


def _finishing(choice: Json, finish_reason: str | None) -> Json:
    """`stop_reason` is there in a finishing event only."""
    stop = {} if finish_reason is None else {"stop_reason": None}
    return choice | {"finish_reason": finish_reason} | stop | {"token_ids": None}


def _completion_choice(
    _writer: EventWriter, choice: int, piece: Piece | None, finish_reason: str | None
) -> Json:
    text = "" if piece is None else piece.text
    said = {"index": choice, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return said | {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}


def _named(reply: Reply, choice: int, text: str) -> Json:
    call = {"id": tool_call_id(reply, choice), "type": "function", "index": 0, "function": {"name": text}}
    return {"content": None, "tool_calls": [call]}


def _argued(_reply: Reply, _choice: int, text: str) -> Json:
    return {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}


DELTAS: Mapping[str, Callable[[Reply, int, str], Json]] = {
    "content": lambda _reply, _choice, text: {"content": text},
    "reasoning": lambda _reply, _choice, text: {"reasoning": text},
    "tool_name": _named,
    "tool_arguments": _argued,
}


def _message(reply: Reply, answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.text("content") or None, "refusal": None}
    message |= {"annotations": None, "audio": None, "function_call": None}
    if name := answer.text("tool_name"):
        function = {"name": name, "arguments": answer.text("tool_arguments")}
        call = {"id": tool_call_id(reply, reply.answers.index(answer)), "type": "function"}
        message["tool_calls"] = [call | {"function": function}]
    return message | {"reasoning": answer.text("reasoning") or None}


def _body(reply: Reply, kind: str, choices: list[Json], prompt: Json) -> bytes:
    counts = reply.usage()
    details = counts.pop("completion_tokens_details", None)
    counts |= {"prompt_tokens_details": None, "completion_tokens_details": details}
    shared = {"service_tier": None, "system_fingerprint": FINGERPRINT, "usage": counts}
    transfer = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    return msgspec.json.encode(reply.envelope(kind) | {"choices": choices} | shared | prompt | transfer)


def _sse(payload: Json) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"
