"""OpenAI's chat completions: a choice carries a `delta`.

Token-bearing are non-empty `content`, `refusal`, `audio`, a tool call's name or arguments (or the older
`function_call`), and reasoning in both spellings: `reasoning` (vLLM since 0.11.1) and
`reasoning_content` (the others). A role, an empty string or null is structural. `content` may be a list
of parts (Mistral: `text` and `thinking`); that is read the tolerant way.

Sources: OpenAI's API reference, "The chat completion chunk object"; reference/engines.md 1.5.
"""

import msgspec

from sidecar.core.dialects.json_reader import NOT_DECODABLE, filled
from sidecar.core.dialects.openai import OpenAIReader, UsageMember
from sidecar.core.events import OUTPUT, REASONING, TOOL_CALL


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    refusal: str | None = None
    audio: object = None
    function_call: object = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: UsageMember | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatReader(OpenAIReader):
    """Reads one response of /v1/chat/completions."""

    __slots__ = ()

    def payload(self, data: bytes, now: float) -> None:
        """Hot: one payload of a stream."""
        try:
            chunk = _decode(data)
        except NOT_DECODABLE:
            self.tolerant(data, now)
            return
        choices = chunk.choices
        if self._fresh or chunk.error is not None or len(choices) != 1 or choices[0].finish_reason:
            self.tolerant(data, now)
            return
        choice = choices[0]
        delta = choice.delta
        if delta is None or delta.refusal or delta.audio is not None or delta.function_call is not None:
            self.tolerant(data, now)
            return
        material = OUTPUT if delta.content else 0
        if delta.reasoning or delta.reasoning_content:
            material |= REASONING
        if delta.tool_calls:
            called = _tool_material(delta.tool_calls)
            if not called:  # perhaps a `custom` tool
                self.tolerant(data, now)
                return
            material |= called
        tokens = None
        if chunk.usage is not None:
            tokens = self._counted(choice.index, chunk.usage, now)
        if material:
            self._tokens_received(choice.index, material, tokens, now)
        else:
            self._timeline.choice_seen(choice.index)

    @staticmethod
    def material(choice: dict[str, object]) -> int:
        """What generated material a choice carries in its `delta`."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return 0
        material = _content_material(delta.get("content"))
        if any(filled(delta.get(name)) for name in ("reasoning", "reasoning_content")):
            material |= REASONING
        if filled(delta.get("refusal")) or _has_any(delta.get("audio"), ("data", "transcript")):
            material |= OUTPUT
        calls = delta.get("tool_calls")
        if _has_any(delta.get("function_call"), ("name", "arguments")) or (
            isinstance(calls, list) and any(_is_called(call) for call in calls)
        ):
            material |= TOOL_CALL
        return material


def _tool_material(calls: list[_ToolCall]) -> int:
    for call in calls:
        function = call.function
        if function is not None and (function.name or function.arguments):
            return TOOL_CALL
    return 0


def _has_any(value: object, names: tuple[str, ...]) -> bool:
    """Whether an object has text, or an object of its own (Ollama's arguments), in one of these members."""
    return isinstance(value, dict) and any(
        isinstance(value.get(name), str | dict) and value.get(name) for name in names
    )


def _is_called(call: object) -> bool:
    """`function` with a name or arguments; `custom` (free-form tools) with a name or input."""
    return isinstance(call, dict) and (
        _has_any(call.get("function"), ("name", "arguments"))
        or _has_any(call.get("custom"), ("name", "input"))
    )


def _content_material(content: object) -> int:
    if isinstance(content, str):
        return OUTPUT if content else 0
    material = 0
    if isinstance(content, list):
        for part in content:
            material |= _part_material(part)
    return material


def _part_material(part: object) -> int:
    """A part is a string, or an object whose text is named after its type."""
    if not isinstance(part, dict):
        return OUTPUT if filled(part) else 0
    thinking = part.get("thinking") or part.get("reasoning")
    text = part.get("text") or part.get("refusal")
    thinks = filled(thinking) or (isinstance(thinking, list) and any(_part_material(p) for p in thinking))
    return (REASONING if thinks else 0) | (OUTPUT if filled(text) else 0)
