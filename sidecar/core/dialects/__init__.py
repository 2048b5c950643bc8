"""The APIs that are understood: which path is which operation, and who reads its response.

An operation without a reader is counted and timed by its head and body, not observed in depth. A new
API is one file here and one row in READERS.
"""

import re

from sidecar.core.dialects.openai import PayloadReader
from sidecar.core.dialects.openai_chat import ChatReader
from sidecar.core.dialects.openai_completions import CompletionsReader
from sidecar.core.timeline import Timeline

# First match wins. A path may have any prefix (a gateway's, Azure's deployments); llama.cpp's and TGI's
# native routes are whole paths, since `/v1/completions` ends like `/completions`.
_ROUTES: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("chat", re.compile(rb"(?:.*)/chat/completions")),
    ("text_completion", re.compile(rb"(?:.*)/(?:v1|openai/deployments/[^/]+)/completions")),
    ("responses", re.compile(rb"(?:.*)/v1/responses")),
    ("messages", re.compile(rb"(?:.*)/v1/messages")),
    ("embeddings", re.compile(rb"(?:.*)/v1/embeddings|/embeddings?|/v2/embed")),
    ("generate", re.compile(rb"/(?:generate|generate_stream|completions?|infill|api/generate|api/chat)")),
)

READERS: dict[str, type[PayloadReader]] = {
    "chat": ChatReader,
    "text_completion": CompletionsReader,
}


def operation_of(method: str, path: bytes) -> str:
    """The operation that a request asks for: `other` unless it is a POST to a known path.

    `path` is the request target as received; a query is ignored.
    """
    if method != "POST":
        return "other"
    target = path.partition(b"?")[0]
    return next((operation for operation, route in _ROUTES if route.fullmatch(target)), "other")


def reader_of(operation: str, timeline: Timeline) -> PayloadReader | None:
    """What reads the response of an operation, None when it is not read in depth."""
    reader = READERS.get(operation)
    return None if reader is None else reader(timeline)
