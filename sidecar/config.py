"""The configuration: one frozen tree, every wrong key or value named with its path.

The only reader of files and environment. Flags win over SIDECAR_* variables, these over the file.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_ENVIRONMENT = {"SIDECAR_UPSTREAM": "upstream", "SIDECAR_LISTEN": "listen", "SIDECAR_ADMIN": "admin"}


class ConfigError(Exception):
    """What is wrong, one `path: message` a line."""


def _duration(value: Any) -> float:
    if isinstance(value, float) or value == 0:
        return float(value)  # a default, or zero, which needs no unit
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a duration needs a number and a unit, such as 500ms, 2s, 1m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, such as 127.0.0.1:8080; port 0 takes a free one")
    return value


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the upstream is a URL such as http://127.0.0.1:8000")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ValueError("the upstream URL has a scheme, a host and a port only; paths come from the client")
    _ = parts.port
    return value.rstrip("/")


Duration = Annotated[float, BeforeValidator(_duration), Field(ge=0, allow_inf_nan=False)]
Address = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, AfterValidator(_url)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


class Limits(_Section):
    """Bounds of the data plane; durations in seconds."""

    max_connections: Annotated[int, Field(ge=1, description="client connections; more are answered 503")] = (
        10000
    )
    head_timeout: Annotated[Duration, Field(description="for a request head, from its first byte")] = 10.0
    idle_timeout: Annotated[Duration, Field(description="for a client connection without a request")] = 75.0
    body_timeout: Annotated[Duration, Field(description="for the next byte of a request body")] = 60.0
    client_write_timeout: Annotated[Duration, Field(description="for a client that takes no byte")] = 300.0
    connect_timeout: Annotated[Duration, Field(description="to connect to the engine")] = 5.0
    response_head_timeout: Annotated[
        Duration, Field(description="for the engine's response head; 0 waits for ever (engines queue)")
    ] = 0.0
    upstream_idle: Annotated[
        Duration, Field(description="how long an idle engine connection is kept; engines close theirs at 5s")
    ] = 4.0


class Drain(_Section):
    """What happens on SIGTERM and `POST /-/drain`."""

    grace: Annotated[Duration, Field(description="between readiness off and closing the listener")] = 0.0
    limit: Annotated[Duration, Field(description="for running streams and uploads to finish")] = 30.0


class MetricsConfig(_Section):
    """The store behind /metrics."""

    detail: Annotated[Literal["basic", "full"], Field(description="full adds seldom needed families")] = (
        "basic"
    )
    max_series: Annotated[int, Field(ge=100, description="above it, new models are counted as other")] = 30000
    max_models: Annotated[int, Field(ge=1, description="served names that become labels")] = 50


class Ready(_Section):
    """What `/-/ready` looks at."""

    check_upstream: Annotated[bool, Field(description="not ready while the engine does not answer")] = True


class Log(_Section):
    """JSON lines on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="least severity")] = (
        "info"
    )


class Config(_Section):
    """Everything that can be set."""

    upstream: Annotated[Url, Field(description="the engine, such as http://127.0.0.1:8000")]
    listen: Annotated[Address, Field(description="where clients connect")] = "127.0.0.1:8080"
    admin: Annotated[Address, Field(description="where /metrics and the admin pages are")] = "127.0.0.1:9464"
    models: Annotated[
        tuple[str, ...], Field(description="served model names, where the engine does not list them itself")
    ] = ()
    stall_threshold: Annotated[Duration, Field(description="a longer gap between tokens is a stall")] = 1.0
    limits: Limits = Limits()
    drain: Drain = Drain()
    metrics: MetricsConfig = MetricsConfig()
    ready: Ready = Ready()
    log: Log = Log()

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port."""
        return _split(self.listen)

    @property
    def admin_address(self) -> tuple[str, int]:
        """Host and port."""
        return _split(self.admin)


def load(path: str | None, flags: Mapping[str, str]) -> Config:
    """The configuration in force. Raises ConfigError, which names every mistake with its path."""
    values = _read(path) if path else {}
    values |= {key: os.environ[name] for name, key in _ENVIRONMENT.items() if os.environ.get(name)}
    values |= flags
    try:
        return Config.model_validate(values)
    except ValidationError as wrong:
        raise ConfigError("\n".join(_line(error) for error in wrong.errors())) from None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: YAML takes the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise ConfigError(f"{key}: given twice in the section that starts at line {line}")
        return super().construct_mapping(node, deep)


def _read(path: str) -> dict[str, Any]:
    try:
        values = yaml.load(Path(path).read_bytes(), _Loader)  # noqa: S506 -- a SafeLoader
    except OSError as failed:
        raise ConfigError(f"{path}: can't be read: {failed.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as broken:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(broken).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path}: the file must be a mapping of settings")
    return values


_MESSAGES = {"extra_forbidden": "unknown key", "missing": "required, but not given"}


def _line(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"]) or "config"
    message = _MESSAGES.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}"
