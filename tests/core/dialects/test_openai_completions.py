"""Text completions: what in a choice is generated material."""

import json
from typing import Any

import pytest

from sidecar.core.dialects.openai_completions import CompletionsReader
from sidecar.core.events import OUTPUT, REASONING
from sidecar.core.timeline import Timeline

CHOICES: dict[str, tuple[dict[str, Any], int]] = {
    "text": ({"text": " sunny"}, OUTPUT),
    "empty text, as vLLM sends with an end token": ({"text": ""}, 0),
    "null text": ({"text": None}, 0),
    "no text": ({}, 0),
    "text of another type": ({"text": ["a"]}, 0),
    "reasoning": ({"text": "", "reasoning": "Hm"}, REASONING),
    "reasoning_content": ({"reasoning_content": "Hm"}, REASONING),
    "both": ({"text": "a", "reasoning_content": "Hm"}, REASONING | OUTPUT),
    "a chat's delta is none of its own": ({"delta": {"content": "Hi"}}, 0),
}


@pytest.mark.parametrize(("choice", "material"), CHOICES.values(), ids=CHOICES.keys())
def test_what_a_choice_carries(choice: dict[str, Any], material: int) -> None:
    assert CompletionsReader.material(choice) == material


@pytest.mark.parametrize(("choice", "material"), CHOICES.values(), ids=CHOICES.keys())
def test_the_hot_way_agrees(choice: dict[str, Any], material: int) -> None:
    timeline = Timeline()
    reader = CompletionsReader(timeline)
    reader.payload(b'{"choices":[{"index":0}]}', 0.0)  # the first chunk goes the tolerant way
    reader.payload(json.dumps({"choices": [{"index": 0, **choice}]}).encode(), 1.0)
    assert timeline.chunks == (1 if material else 0)
    assert timeline.k1 == (1.0 if material & REASONING else None)
    assert timeline.o1 == (1.0 if material & OUTPUT else None)
    assert reader.faults == 0
