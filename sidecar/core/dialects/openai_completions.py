"""OpenAI's text completions: a choice carries `text`.

Source: OpenAI's API reference, "Completions". With `echo` the prompt comes as text too; engines send it
with the first generated token (engines.md 2.1.6), so it is not told apart. Some engines add the
reasoning as chat does. llama.cpp begins two prompts with the payload `null`, which says nothing.
"""

import msgspec

from sidecar.core.dialects.json_reader import NOT_DECODABLE, filled
from sidecar.core.dialects.openai import OpenAIReader, UsageMember
from sidecar.core.events import OUTPUT, REASONING


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    text: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: UsageMember | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class CompletionsReader(OpenAIReader):
    """Reads one response of /v1/completions."""

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
        material = OUTPUT if choice.text else 0
        if choice.reasoning or choice.reasoning_content:
            material |= REASONING
        tokens = None
        if chunk.usage is not None:
            tokens = self._counted(choice.index, chunk.usage, now)
        if material:
            self._tokens_received(choice.index, material, tokens, now)
        else:
            self._timeline.choice_seen(choice.index)

    @staticmethod
    def material(choice: dict[str, object]) -> int:
        """What generated material a choice carries."""
        return (OUTPUT if filled(choice.get("text")) else 0) | (
            REASONING if filled(choice.get("reasoning")) or filled(choice.get("reasoning_content")) else 0
        )
