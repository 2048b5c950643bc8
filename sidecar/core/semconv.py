"""Names of span attributes: the one place where they are written.

Those of OpenTelemetry are pinned to the package `opentelemetry-semantic-conventions` by a test. The GenAI
ones are in development and have been renamed before, so a version is a choice: code uses the names of
`latest`, and `spelled` puts them into those of an older version or leaves out what it does not know.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

Version = Literal["latest", "1.36"]

SCHEMA_URLS: Final[dict[Version, str]] = {
    "latest": "https://opentelemetry.io/schemas/1.44.0",
    "1.36": "https://opentelemetry.io/schemas/1.36.0",
}

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"

ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_METHOD: Final = "http.request.method"
HTTP_STATUS: Final = "http.response.status_code"

STANDARD: Final = (
    OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, REQUEST_STREAM, REQUEST_CHOICES, FINISH_REASONS,
    TIME_TO_FIRST_CHUNK, INPUT_TOKENS, OUTPUT_TOKENS, CACHED_INPUT_TOKENS, REASONING_TOKENS, ERROR_TYPE,
    SERVER_ADDRESS, SERVER_PORT, HTTP_METHOD, HTTP_STATUS,
)  # fmt: skip

# Our own: what no convention has a name for. Seconds, unless the name says otherwise.
REQUEST_ID: Final = "llm.request.id"
OUTCOME: Final = "llm.outcome"
TTFT: Final = "llm.time_to_first_token"
TTFO: Final = "llm.time_to_first_output"
TPOT: Final = "llm.time_per_output_token"
LONGEST_GAP: Final = "llm.longest_gap"
STALLS: Final = "llm.stalls"
WRITE_WAIT: Final = "llm.client_write_wait"
BUFFERED: Final = "llm.buffered"
STALL_DURATION: Final = "llm.stall.duration"
STALL_DURING: Final = "llm.stall.during"
ENGINE_MATCH: Final = "llm.engine.match"
ENGINE_QUEUE: Final = "llm.engine.queue"
ENGINE_PREFILL: Final = "llm.engine.prefill"
ENGINE_DECODE: Final = "llm.engine.decode"
ENGINE_TTFT: Final = "llm.engine.time_to_first_token"
ENGINE_E2E: Final = "llm.engine.duration"

UNKNOWN_PROVIDER: Final = "_OTHER"

OPERATIONS: Final[dict[str, str]] = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "text_completion": "text_completion",
    "generate": "text_completion",
    "embeddings": "embeddings",
}
"""Operation of a record -> `gen_ai.operation.name`; a request of none is no GenAI span."""

_OLDER: Final[dict[Version, dict[str, str | None]]] = {
    "latest": {},
    "1.36": {  # None: that version has no such attribute
        PROVIDER_NAME: "gen_ai.system",
        REQUEST_STREAM: None,
        TIME_TO_FIRST_CHUNK: None,
        CACHED_INPUT_TOKENS: None,
        REASONING_TOKENS: None,
    },
}

V = TypeVar("V")


def spelled(attributes: Mapping[str, V], version: Version) -> dict[str, V]:
    """The attributes under the names that `version` has for them."""
    names = _OLDER[version]
    if not names:
        return dict(attributes)
    renamed = ((names.get(name, name), value) for name, value in attributes.items())
    return {name: value for name, value in renamed if name is not None}
