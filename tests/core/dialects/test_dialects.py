"""Which path is which operation."""

import pytest

from sidecar.core.dialects import READERS, operation_of, reader_of
from sidecar.core.timeline import Timeline

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
    assert operation_of(method, path) == operation


def test_only_operations_with_a_reader_are_observed_in_depth() -> None:
    assert set(READERS) == {"chat", "text_completion"}
    assert reader_of("embeddings", Timeline()) is None
