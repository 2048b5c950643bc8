"""The APIs that are understood: which path is which operation, and who reads its response.

An operation without a reader is counted and timed by its head and body, not observed in depth. A new
API is one file here and one row in ROUTES.
"""

import re
from typing import NamedTuple

from sidecar.core.dialects.json_reader import PayloadReader
from sidecar.core.dialects.messages import MessagesReader
from sidecar.core.dialects.native import NativeReader
from sidecar.core.dialects.openai_chat import ChatReader
from sidecar.core.dialects.openai_completions import CompletionsReader
from sidecar.core.dialects.responses import ResponsesReader


class Route(NamedTuple):
    """What is known of a request by its path."""

    operation: str
    path: re.Pattern[bytes]
    reader: type[PayloadReader] | None = None  # None: not read in depth
    streams: bool = False  # also when the request doesn't say so


# First match wins. A path may have any prefix (a gateway's, Azure's deployments); native routes are whole
# paths, since `/v1/completions` ends like `/completions`.
ROUTES: tuple[Route, ...] = (
    Route("chat", re.compile(rb"(?:.*)/chat/completions"), ChatReader),
    Route(
        "text_completion",
        re.compile(rb"(?:.*)/(?:v1|openai/deployments/[^/]+)/completions"),
        CompletionsReader,
    ),
    Route("responses", re.compile(rb"(?:.*)/v1/responses"), ResponsesReader),
    Route("messages", re.compile(rb"(?:.*)/v1/messages"), MessagesReader),
    Route("embeddings", re.compile(rb"(?:.*)/v1/embeddings|/embeddings?|/v2/embed|/api/embed(?:dings)?")),
    Route("generate", re.compile(rb"/(?:generate_stream|api/generate|api/chat)"), NativeReader, streams=True),
    Route("generate", re.compile(rb"/(?:generate|completions?|infill)"), NativeReader),
)
OTHER = Route("other", re.compile(rb"(?s:.*)"))


def route_of(method: str, path: bytes) -> Route:
    """The row of ROUTES that a request asks for: OTHER unless it is a POST to a known path.

    `path` is the request target as received; a query is ignored.
    """
    if method != "POST":
        return OTHER
    target = path.partition(b"?")[0]
    for route in ROUTES:
        if route.path.fullmatch(target):
            return route
    return OTHER
