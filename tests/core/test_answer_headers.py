"""Counts and timings in the head of an answer."""

import pytest

from sidecar.core.answer_headers import events_of
from sidecar.core.events import EngineExtra, Event, Usage, UsageReported

CASES: dict[str, tuple[list[tuple[bytes, bytes]], list[Event]]] = {
    "TGI, in one piece": (
        [(b"x-compute-type", b"gpu"), (b"x-prompt-tokens", b"12"), (b"x-generated-tokens", b"7"),
         (b"X-Queue-Time", b"3"), (b"x-total-time", b"250")],
        [
            EngineExtra("headers", {"x-queue-time": "3", "x-total-time": "250"}),
            UsageReported(None, Usage(input=12, output=7)),
        ],
    ),
    "TensorRT-LLM": (
        [(b"Server-Timing", b"server_queue;dur=1.5, server_ttft;dur=20")],
        [EngineExtra("headers", {"server-timing": "server_queue;dur=1.5, server_ttft;dur=20"})],
    ),
    "others": ([(b"content-type", b"application/json"), (b"x-request-id", b"7")], []),
    "counts that are none": ([(b"x-prompt-tokens", b"-3"), (b"x-generated-tokens", b"9" * 10)], []),
    "a long value is cut, bytes beyond ASCII are replaced": (
        [(b"openai-processing-ms", b"\xff" * 2000)], [EngineExtra("headers", {"openai-processing-ms": "\ufffd" * 1024})],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "events"), CASES.values(), ids=CASES.keys())
def test_what_the_head_says(headers: list[tuple[bytes, bytes]], events: list[Event]) -> None:
    assert list(events_of(headers)) == events
