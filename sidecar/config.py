"""The settings: their grammar, their defaults, and the only reader of files and environment.

A flag goes before an environment variable, that before the file, that before the default beside the field.
What is wrong is said all at once, one `path: what is wrong; what to write` a line. A key that is not known
here is an error, and so is one given twice. `docs/configuration.md` is printed from the classes below.
A secret is a `SecretStr`: it prints as stars.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from sidecar.config_errors import line
from sidecar.config_values import (
    HEADER_NAME,
    Address,
    Count,
    Duration,
    HeaderName,
    LabelName,
    MaybeAddress,
    MaybeCollector,
    Names,
    PageUrls,
    Positive,
    Ratio,
    Url,
    VariableName,
    split_address,
)

ENVIRONMENT = {"SIDECAR_UPSTREAM": "upstream", "SIDECAR_LISTEN": "listen", "SIDECAR_ADMIN": "admin"}

MIN_SERIES = 5000  # a page that knows no model by its name needs up to half of it


class ConfigError(Exception):
    """What is wrong, one `path: message` a line."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


# --- settings


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: object) -> object:
        return {} if value is None else value  # `limits:` with every line below it commented out


class Limits(_Section):
    """Bounds of the data plane. What takes longer, or comes in excess, gets an error of the sidecar's own."""

    max_connections: Count = Field(default=10_000, description="client connections; more are answered 503")
    head_timeout: Positive = Field(
        default=10.0, description="for a request head, from its first byte; then 408"
    )
    idle_timeout: Positive = Field(
        default=75.0, description="for a client connection without a request; then closed"
    )
    body_timeout: Positive = Field(default=60.0, description="for the next byte of a request body; then 408")
    client_write_timeout: Positive = Field(
        default=300.0, description="for a client that takes no byte; then closed"
    )
    connect_timeout: Positive = Field(default=5.0, description="to connect to the engine; then 504")
    response_head_timeout: Duration = Field(
        default=0.0,
        description="for the engine's response head, then 504; `0s` waits for ever, since engines queue",
    )
    upstream_idle: Duration = Field(
        default=4.0,
        description="how long an idle engine connection is kept; vLLM and llama.cpp close theirs at 5s",
    )


class Drain(_Section):
    """What happens on SIGTERM and on `POST /-/drain`."""

    grace: Duration = Field(default=0.0, description="between readiness off and closing the listener")
    limit: Duration = Field(default=30.0, description="for running streams and uploads to finish")


class MetricsConfig(_Section):
    """The store behind `/metrics`."""

    detail: Literal["basic", "full"] = Field(
        default="basic", description="`full` adds families that are seldom needed"
    )
    max_series: Annotated[int, Field(ge=MIN_SERIES, le=1_000_000)] = Field(
        default=30_000, description="samples on the page; near it, further series of models go to `other`"
    )
    max_models: Count = Field(
        default=50, description="served names that become labels; further ones are `other`"
    )


class Usage(_Section):
    """Token counts of engines that only give them when asked."""

    inject: bool = Field(
        default=False,
        description="ask for usage in streamed chat and text completions that say nothing about it, and take "
        "the extra event out of the answer",
    )


class EngineTimings(_Section):
    """The engine's own timings of each request, of engines that only tell when asked."""

    request: bool = Field(
        default=False,
        description="ask TensorRT-LLM for its timings and take them out of the answer; and ask for usage as "
        "`usage.inject` does, with which vLLM's come; see engines.md",
    )


class RequestLabel(_Section):
    """A further label on the counters of requests and tokens (no histogram has it), from a request header."""

    header: HeaderName = Field(description="whose value is the label; without it the label is empty")
    allow: Names = Field(default=(), description="values that become labels; others are `other`")
    max: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=50, description="without `allow`: so many different values, further ones are `other`"
    )


class EngineConfig(_Section):
    """The engine's own metrics page, from which the engine view is read."""

    enabled: bool = Field(default=True, description="`false` leaves the page alone and the engine view empty")
    kind: Literal[
        "auto",
        "vllm",
        "sglang",
        "llama.cpp",
        "tensorrt_llm",
        "tgi",
        "lmdeploy",
        "dynamo",
        "triton",
        "nim",
        "ollama",
    ] = Field(default="auto", description="where the page is looked for; what is on it tells the rest")
    metrics: PageUrls = Field(
        default=(),
        description="URLs of the pages; none: looked for at `upstream`; a name of several addresses is "
        "so many pages",
    )
    interval: Duration = Field(
        default=0.0,
        description="between two readings; `0s`: 5s, or 100 times what a reading takes if that is longer",
    )
    timeout: Positive = Field(default=10.0, description="for one reading")
    api_key_env: str = Field(
        default="",
        description="the environment variable that holds the engine's API key, sent as a bearer token",
    )
    api_key_file: str = Field(
        default="", description="the file that holds the API key; goes before `api_key_env`"
    )
    ca_file: str = Field(default="", description="certificates to trust, PEM; empty: those of the system")

    @model_validator(mode="after")
    def _readable(self) -> "EngineConfig":
        pages = [urlsplit(url) for url in self.metrics]
        if self.kind == "tensorrt_llm" and any(page.path.rstrip("/") == "/metrics" for page in pages):
            raise ValueError(
                "metrics: reading TensorRT-LLM's /metrics takes records away; write /prometheus/metrics"
            )
        if len({page.netloc for page in pages}) < len(pages):
            raise ValueError("metrics: two pages of one address; keep one")
        return self

    def api_key(self, environment: Mapping[str, str] | None = None) -> str:
        """The key as it is now, empty for none. Raises ConfigError when it can't be had."""
        environment = os.environ if environment is None else environment
        if self.api_key_file:
            try:
                key = Path(self.api_key_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as failed:
                reason = getattr(failed, "strerror", None) or "not UTF-8 text"
                raise ConfigError([f"engine.api_key_file: can't be read: {reason}"]) from None
        else:
            key = environment.get(self.api_key_env, "") if self.api_key_env else ""
            if self.api_key_env and not key:
                raise ConfigError([f"engine.api_key_env: the variable {self.api_key_env} is not set"])
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(["engine: the API key holds characters that a header can't carry"])
        return key


class Ready(_Section):
    """What `/-/ready` looks at."""

    check_upstream: bool = Field(default=True, description="not ready while the engine does not answer")


class TracingConfig(_Section):
    """Spans: where they go, which, and the engine's own; see tracing.md. None are made without an address."""

    export: MaybeCollector = Field(
        default=None, description="the OTLP collector for the sidecar's spans, such as `http://HOST:4318`"
    )
    protocol: Literal["http", "grpc"] = Field(
        default="http", description="`http` is protobuf over HTTP; for `export` and `forward`"
    )
    headers_env: VariableName = Field(
        default="OTEL_EXPORTER_OTLP_HEADERS",
        description="the environment variable that holds headers for the collector, `name=value,name=value`",
    )
    ratio: Ratio = Field(
        default=0.1, description="share of the traces that begin here; a caller's decision goes before it"
    )
    trust_parent: bool = Field(
        default=True, description="`false` begins a new trace for each request, linked to the caller's"
    )
    max_spans_per_second: Count = Field(default=1000, description="exported at most; more are dropped")
    semconv: Literal["latest", "1.36"] = Field(
        default="latest", description="the version of the GenAI conventions that names attributes"
    )
    receive: MaybeAddress = Field(
        default=None, description="takes the engine's spans by OTLP/gRPC, such as `127.0.0.1:4317`"
    )
    receive_http: MaybeAddress = Field(
        default=None, description="takes them by OTLP/HTTP, such as `127.0.0.1:4318`"
    )
    forward: MaybeCollector = Field(
        default=None, description="the OTLP collector for the engine's spans of exported traces"
    )

    @property
    def receives(self) -> bool:
        """The engine's spans come here."""
        return self.receive is not None or self.receive_http is not None

    @property
    def on(self) -> bool:
        """There is anything to do."""
        return self.export is not None or self.receives

    def headers(self, environment: Mapping[str, str] | None = None) -> dict[str, str]:
        """The collector's headers. Raises ConfigError when the variable does not hold any."""
        text = (os.environ if environment is None else environment).get(self.headers_env, "")
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        headers = {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise ConfigError([f"{self.headers_env}: not headers; write name=value,name=value"])
        return headers


class Log(_Section):
    """JSON lines on standard error: drain, trouble with the engine. Never what was asked or answered."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severity shown"
    )


class Config(_Section):
    """Everything that can be set."""

    upstream: Url = Field(description="the engine, such as `http://127.0.0.1:8000`")
    listen: Address = Field(
        default="127.0.0.1:8080", description="where clients connect; port 0 takes a free one"
    )
    admin: Address = Field(default="127.0.0.1:9464", description="where `/metrics` and the admin pages are")
    models: Names = Field(
        default=(), description="served model names, where the engine does not list them itself"
    )
    stall_threshold: Positive = Field(default=1.0, description="a longer gap between tokens is a stall")
    limits: Limits = Limits()
    drain: Drain = Drain()
    metrics: MetricsConfig = MetricsConfig()
    usage: Usage = Usage()
    engine_timings: EngineTimings = EngineTimings()
    engine: EngineConfig = EngineConfig()
    labels: Annotated[dict[LabelName, RequestLabel], Field(max_length=5)] = Field(
        default_factory=dict, description="name: where its value comes from"
    )
    ready: Ready = Ready()
    tracing: TracingConfig = TracingConfig()
    log: Log = Log()

    @model_validator(mode="after")
    def _one_port_each(self) -> "Config":
        listening = {
            "listen": self.listen,
            "admin": self.admin,
            "tracing.receive": self.tracing.receive,
            "tracing.receive_http": self.tracing.receive_http,
        }
        first: dict[str, str] = {}
        for name, address in listening.items():
            if address is not None and split_address(address)[1]:
                other = first.setdefault(address, name)
                if other != name:
                    raise ValueError(f"{name}: the same address as {other}; give it a port of its own")
        engine = urlsplit(self.upstream)
        if self.listen_address[1] and (engine.hostname, engine.port) == self.listen_address:
            raise ValueError("upstream: the same address as listen; the sidecar would ask itself")
        return self

    @model_validator(mode="after")
    def _forwards_what_it_receives(self) -> "Config":
        if self.tracing.forward is not None and not self.tracing.receives:
            raise ValueError("tracing.forward: no spans are received; set tracing.receive or receive_http")
        return self

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port."""
        return split_address(self.listen)

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port."""
        return split_address(self.admin)

    def shown(self) -> dict[str, Any]:
        """The settings in force in the grammar of the file, secrets hidden."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Twelve hexadecimal digits that differ when a setting does."""
        return hashlib.sha256(json.dumps(self.shown(), sort_keys=True).encode()).hexdigest()[:12]


def load(
    path: str | None, flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None
) -> Config:
    """The settings in force; `flags` by field name, None for one not given.

    Raises ConfigError, which names every mistake with its path.
    """
    environment = os.environ if environment is None else environment
    values, errors = _read(path) if path else ({}, [])
    sources: dict[str, str] = {}
    for variable, key in ENVIRONMENT.items():
        if environment.get(variable):
            values[key], sources[key] = environment[variable], variable
    for key, value in (flags or {}).items():
        if value is not None:
            values[key], sources[key] = value, f"--{key}"
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as wrong:
        errors += [line(error, Config, sources) for error in wrong.errors()]
    if config is None or errors:
        raise ConfigError(errors)
    return config


# --- the file


class _Loader(yaml.SafeLoader):
    """Notes every key that is given twice: YAML itself would take the last one silently."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.repeated: list[str] = []

    def note_repeated(self, node: yaml.Node | None, path: str = "") -> None:
        """Walk the tree of nodes, below `path`."""
        if not isinstance(node, yaml.MappingNode):
            return
        first: dict[str, int] = {}
        for key, value in node.value:
            name, line = f"{path}{key.value}", key.start_mark.line + 1
            if name in first:
                self.repeated.append(f"{name}: given twice, on lines {first[name]} and {line}; keep one")
            first.setdefault(name, line)
            self.note_repeated(value, f"{name}.")


def _read(path: str) -> tuple[dict[str, Any], list[str]]:
    try:
        loader = _Loader(Path(path).read_text("utf-8"))
        node = loader.get_single_node()
        loader.note_repeated(node)
        values = {} if node is None else loader.construct_document(node)
    except OSError as failed:
        raise ConfigError([f"{path}: can't be read: {failed.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: not UTF-8 text"]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as broken:
        raise ConfigError([f"{path}: not YAML: {_where(broken)}"]) from None
    if not isinstance(values, dict):
        raise ConfigError([f"{path}: not a mapping; write settings as `key: value` lines"])
    return {str(key): value for key, value in values.items()}, loader.repeated


def _where(broken: Exception) -> str:
    mark, problem = getattr(broken, "problem_mark", None), getattr(broken, "problem", None)
    return f"{problem or 'can not be parsed'}{f', line {mark.line + 1}' if mark else ''}"
