"""What a request body asks for, or the error that vLLM 0.32 answers.

Tokens are exact by definition: a word is a token, and the chat template puts four around each message.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

Prompt = tuple[str | int, ...]
"""The tokens of one prompt."""


class AskedError(Exception):
    """The request is refused: `status`, and what goes into the error body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param


@dataclass(frozen=True, slots=True)
class Asked:
    """A valid request. `limit` is the most output tokens a sequence, `None` when the model decides."""

    model: str
    prompts: tuple[Prompt, ...]
    """Chat has one."""
    stream: bool
    n: int
    limit: int | None
    max_tokens: int
    """The limit, or what the context has room for."""
    temperature: float
    top_p: float
    include_usage: bool
    continuous_usage: bool
    thinks: bool
    shows_reasoning: bool
    tool: str | None
    """Name of the function to call."""
    tool_is_named: bool
    """The request names it, so that the call ends with `stop`."""

    @property
    def parsed(self) -> bool:
        """A reasoning or tool parser works on the answer."""
        return self.thinks or self.tool is not None


def read_chat(body: bytes, models: tuple[str, ...], max_model_len: int) -> Asked:
    """A body of /v1/chat/completions. Raises AskedError."""
    fields = _decode(body)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise _invalid("messages must be a non-empty list of messages", "messages")
    tool = _tool(fields)
    thinks = tool is None and _thinks(fields, messages)
    return _common(fields, models, (_chat_prompt(fields, messages),), max_model_len, thinks=thinks, tool=tool)


def read_completion(body: bytes, models: tuple[str, ...], max_model_len: int) -> Asked:
    """A body of /v1/completions: a text, a list of texts, token ids or a list of those. Raises AskedError."""
    fields = _decode(body)
    prompt = fields.get("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt or not all(isinstance(p, str | list) for p in prompt):
        raise _invalid("prompt must be a text, token ids or a non-empty list of them", "prompt")
    prompts = tuple(tuple(p.split() if isinstance(p, str) else p) or ("<|bos|>",) for p in prompt)
    return _common(fields, models, prompts, max_model_len, thinks=False, tool=None)


def _common(
    fields: Mapping[str, Any],
    models: tuple[str, ...],
    prompts: tuple[Prompt, ...],
    max_model_len: int,
    *,
    thinks: bool,
    tool: str | None,
) -> Asked:
    model = fields.get("model") or models[0]
    if model not in models:
        raise AskedError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    temperature = _number(fields, "temperature")
    if temperature < 0:
        raise _invalid(f"temperature must be non-negative, got {temperature}.", "temperature")
    longest = max(map(len, prompts))
    limit = _limit(fields, longest, max_model_len)
    options = fields.get("stream_options") or {}
    return Asked(
        model=model,
        prompts=prompts,
        stream=bool(fields.get("stream")),
        n=_positive(fields, "n") or 1,
        limit=limit,
        max_tokens=limit or max_model_len - longest,
        temperature=temperature,
        top_p=_number(fields, "top_p"),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        thinks=thinks,
        shows_reasoning=fields.get("include_reasoning") is not False,
        tool=tool,
        tool_is_named=tool is not None and isinstance(fields.get("tool_choice"), dict),
    )


def _limit(fields: Mapping[str, Any], prompt: int, max_model_len: int) -> int | None:
    limit = _positive(fields, "max_completion_tokens") or _positive(fields, "max_tokens")
    if prompt + (limit or 1) > max_model_len:
        raise _invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{limit or 1} output tokens and your prompt contains {prompt} input tokens.",
            "input_tokens",
        )
    return limit


def _decode(body: bytes) -> Mapping[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as wrong:
        raise AskedError(400, f"JSON decode error: {wrong}", "Bad Request", "body") from wrong
    if not isinstance(fields, dict):
        raise AskedError(400, "Input should be a valid dictionary", "Bad Request", "body")
    return fields


def _positive(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise _invalid(f"{name} must be at least 1, got {value}.", name)
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    """vLLM's default for temperature and top_p is 1."""
    value = fields.get(name)
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"{name} must be a number.", name)
    return float(value)


def _invalid(message: str, param: str) -> AskedError:
    return AskedError(400, message, "BadRequestError", param)


def _chat_prompt(fields: Mapping[str, Any], messages: list[dict[str, Any]]) -> Prompt:
    prompt = str(fields.get("tools") or "").split()
    for message in messages:
        prompt += ("<|start|>", str(message.get("role")), *_text(message).split(), "<|end|>", "\n")
    return tuple(prompt)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _thinks(fields: Mapping[str, Any], messages: list[dict[str, Any]]) -> bool:
    wanted = (fields.get("chat_template_kwargs") or {}).get("enable_thinking")
    if isinstance(wanted, bool):
        return wanted
    effort = fields.get("reasoning_effort")
    return effort not in (None, "none") or "think" in _text(messages[-1]).lower()


def _tool(fields: Mapping[str, Any]) -> str | None:
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice == "none":
        return None
    for chosen in (choice, tools[0]):
        if isinstance(chosen, dict) and isinstance(chosen.get("function"), dict):
            return str(chosen["function"].get("name") or "function")
    return "function"
