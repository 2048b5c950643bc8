"""Which path is which operation."""

import pytest

from sidecar.core.dialects import ROUTES, route_of

PATHS = [
    ("POST", b"/v1/chat/completions", "chat"),
    ("POST", b"/v1/chat/completions?api-version=1", "chat"),
    ("POST", b"/chat/completions", "chat"),
    ("POST", b"/gateway/a/v1/chat/completions", "chat"),
    ("POST", b"/openai/deployments/gpt/chat/completions?api-version=1", "chat"),
    ("POST", b"http://engine:8000/v1/chat/completions", "chat"),
    ("POST", b"/v1/completions", "text_completion"),
    ("POST", b"/team/v1/completions", "text_completion"),
    ("POST", b"/openai/deployments/gpt/completions", "text_completion"),
    ("POST", b"/v1/responses", "responses"),
    ("POST", b"/v1/messages", "messages"),
    ("POST", b"/v1/embeddings", "embeddings"),
    ("POST", b"/generate", "generate"),
    ("POST", b"/completion", "generate"),
    ("POST", b"/completions", "generate"),
    ("POST", b"/infill", "generate"),
    ("POST", b"/generate_stream", "generate"),
    ("POST", b"/api/generate", "generate"),
    ("POST", b"/api/embed", "embeddings"),
    ("POST", b"/rerank", "other"),
    ("POST", b"/tokenize", "other"),
    ("POST", b"/v1/audio/transcriptions", "other"),
    ("POST", b"/api/chat", "generate"),
    ("GET", b"/v1/chat/completions", "other"),
    ("POST", b"/v1/chat/completions/batch", "other"),
    ("POST", b"/v1/messages/count_tokens", "other"),
    ("POST", b"/x?to=/v1/chat/completions", "other"),
    ("POST", b"/v1/chat/completionsX", "other"),
    ("POST", b"/\xff\x00\n/v1/chat/completions", "other"),
    ("GET", b"/v1/models", "other"),
    ("POST", b"", "other"),
]


@pytest.mark.parametrize(("method", "path", "operation"), PATHS)
def test_a_path_names_an_operation(method: str, path: bytes, operation: str) -> None:
    assert route_of(method, path).operation == operation


def test_only_operations_with_a_reader_are_observed_in_depth() -> None:
    read = {route.operation for route in ROUTES if route.reader is not None}
    assert read == {"chat", "text_completion", "responses", "messages", "generate"}


@pytest.mark.parametrize(
    ("path", "streams"),
    [(b"/api/chat", True), (b"/api/generate", True), (b"/generate_stream", True), (b"/generate", False)],
)
def test_some_paths_stream_without_being_asked(path: bytes, streams: bool) -> None:
    assert route_of("POST", path).streams is streams
