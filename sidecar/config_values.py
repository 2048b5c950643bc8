"""The grammar of single values: durations, addresses, URLs, names. Each says what to write instead.

What an operator wrote is only repeated where it can't be a secret.
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from sidecar.catalogue import LABELS

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", re.ASCII)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]]+):(\d{1,5})", re.ASCII)

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)

SECRET_HEADERS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-goog-api-key"}
)


def _duration(value: object) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        return float(match[1]) * _UNITS[match[2]]
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"a duration needs a unit; write {value}s or {value}ms")
    raise ValueError("not a duration; write a number and one unit, such as 500ms, 2s, 1m or 1h")


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be longer than 0")
    return value


def format_duration(seconds: float) -> str:
    """Seconds in the grammar of this file: `75s`, `5m`, `500ms`."""
    for unit, size in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds and not seconds % size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:.9g}ms" if seconds else "0s"


def _address(value: str) -> str:
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match[2]) > 65535:
        raise ValueError("not an address; write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
    return value


def _url(value: str) -> str:
    """The engine's URL. What it may hold beside the address is not repeated: it might be a password."""
    try:
        parts = urlsplit(value)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError("not a URL; write http://HOST:PORT") from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port_is_right
        or not value.isprintable()
    ):
        raise ValueError("not a URL of an engine; write http://HOST:PORT or https://HOST:PORT")
    if not value.isascii():
        raise ValueError("the host is not ASCII; write its punycode form, xn--...")
    if parts.username is not None or parts.password is not None:
        raise ValueError("holds a user name or password; clients send their own, leave it out")
    if parts.path not in ("", "/") or parts.query or parts.fragment or " " in value:
        raise ValueError("holds more than an address; leave the path out, it comes from the client")
    return f"{parts.scheme}://{parts.netloc}"


def _page_url(value: str) -> str:
    """The URL of a metrics page; without a path it is looked for. A password is not repeated."""
    try:
        parts = urlsplit(value)
        right = (
            parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        right = False
    if not right or not value.isprintable() or " " in value:
        raise ValueError("not the URL of a metrics page; write http://HOST:PORT or http://HOST:PORT/PATH")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("holds a user name, password or fragment; a key goes to api_key_env or api_key_file")
    if parts.path.rstrip("/") == "/perf_metrics":
        raise ValueError(
            "reading it takes the engine's records away; TensorRT-LLM's page is /prometheus/metrics"
        )
    return value


def _collector(value: str) -> str:
    """A collector's URL; unlike the engine's it may have a path."""
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not value.isprintable() or " " in value:
        raise ValueError("not a URL of a collector; write http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("holds a user name or password; put credentials into the variable of headers_env")
    if parts.query or parts.fragment:
        raise ValueError("holds a query or fragment; leave it out")
    return value


def _list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Duration = Annotated[float, BeforeValidator(_duration), PlainSerializer(format_duration), "duration"]
Positive = Annotated[Duration, AfterValidator(_positive), "duration over 0"]
Address = Annotated[str, AfterValidator(_address), "`HOST:PORT`"]
Url = Annotated[str, AfterValidator(_url), "URL"]
MaybeAddress = Annotated[Address | None, "`HOST:PORT`"]
MaybeCollector = Annotated[Annotated[str, AfterValidator(_collector)] | None, "URL"]
Ratio = Annotated[float, Field(ge=0, le=1), "number from 0 to 1"]
Names = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], BeforeValidator(_list), "list"
]
PageUrl = Annotated[str, AfterValidator(_page_url)]
PageUrls = Annotated[tuple[PageUrl, ...], Field(max_length=64), BeforeValidator(_list), "list"]
Count = Annotated[int, Field(ge=1, le=1_000_000), "number over 0"]


def _label_name(value: str) -> str:
    if not _LABEL_NAME.fullmatch(value) or value.startswith("__"):
        raise ValueError("not a label name; write letters, digits and _, such as tenant")
    if value in LABELS or value in ("le", "job", "instance"):
        raise ValueError("is a label that the metrics have already; take another name")
    return value


def _variable_name(value: str) -> str:
    if not _LABEL_NAME.fullmatch(value):
        raise ValueError("not a variable name; write the name of an environment variable, not its value")
    return value


def _header_name(value: str) -> str:
    if not HEADER_NAME.fullmatch(value):
        raise ValueError("not a header name; a name such as x-tenant has letters, digits and dashes")
    if value.lower() in SECRET_HEADERS:
        raise ValueError("holds secrets, and labels are read by everybody; take another header")
    return value


LabelName = Annotated[str, AfterValidator(_label_name)]
HeaderName = Annotated[str, AfterValidator(_header_name), "header name"]
VariableName = Annotated[str, AfterValidator(_variable_name), "variable name"]


def split_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
