"""Every way to be wrong has a file and its message; flags go before variables before the file."""

from pathlib import Path

import pytest
import yaml

from sidecar.cli import main
from sidecar.config import Config, ConfigError, load
from sidecar.config_values import format_duration

DATA = Path(__file__).parent / "data" / "config"
LIMITS = (
    "max_connections, head_timeout, idle_timeout, body_timeout, client_write_timeout, connect_timeout, "
    "response_head_timeout, upstream_idle"
)
TOP = (
    "upstream, listen, admin, models, stall_threshold, limits, drain, metrics, usage, engine_timings, "
    "engine, labels, ready, "
    "tracing, log"
)
NO_PAGE = "not the URL of a metrics page; write http://HOST:PORT or http://HOST:PORT/PATH"
NO_ADDRESS = "not an address; write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080"
NO_COLLECTOR = "not a URL of a collector; write http://HOST:PORT or https://HOST:PORT"
NO_DURATION = "not a duration; write a number and one unit, such as 500ms, 2s, 1m or 1h"
REQUIRED = "upstream: is required; set it in the file, by SIDECAR_UPSTREAM or by --upstream"

WRONG = {
    "label-secret": [
        "labels.caller.header: holds secrets, and labels are read by everybody; take another header",
        "labels.model: is a label that the metrics have already; take another name",
        "labels.team.header: is required",
        "labels.odd.header: not a header name; a name such as x-tenant has letters, digits and dashes",
    ],
    "upstream-itself": ["upstream: the same address as listen; the sidecar would ask itself"],
    "address-no-port": [f"listen: {NO_ADDRESS}"],
    "address-number": ["listen: must be text, not 8080; put it in quotes"],
    "address-port-too-high": [f"admin: {NO_ADDRESS}"],
    "address-shared": ["admin: the same address as listen; give it a port of its own"],
    "boolean": ['ready.check_upstream: must be true or false, not "sometimes"'],
    "choice": ["log.level: must be 'debug', 'info', 'warning' or 'error', not \"loud\""],
    "duration-negative": [f"stall_threshold: {NO_DURATION}"],
    "duration-no-unit": ["limits.idle_timeout: a duration needs a unit; write 75s or 75ms"],
    "duration-two-units": [f"drain.limit: {NO_DURATION}"],
    "duration-unit-unknown": [f"drain.limit: {NO_DURATION}"],
    "duration-zero": ["limits.idle_timeout: must be longer than 0"],
    "empty-file": [REQUIRED],
    "engine-kind": [
        "engine.kind: must be 'auto', 'vllm', 'sglang', 'llama.cpp', 'tensorrt_llm', 'tgi', 'lmdeploy', "
        "'dynamo', 'triton', 'nim' or 'ollama', not \"vLLM\""
    ],
    "engine-metrics-draining": [
        "engine.metrics.0: reading it takes the engine's records away; TensorRT-LLM's page is "
        "/prometheus/metrics"
    ],
    "engine-metrics-json": [
        "engine: metrics: reading TensorRT-LLM's /metrics takes records away; write /prometheus/metrics"
    ],
    "engine-metrics-no-url": [f"engine.metrics.0: {NO_PAGE}"],
    "engine-metrics-password": [
        "engine.metrics.0: holds a user name, password or fragment; a key goes to api_key_env or api_key_file"
    ],
    "engine-metrics-twice": ["engine: metrics: two pages of one address; keep one"],
    "engine-timeout-zero": ["engine.timeout: must be longer than 0"],
    "key-twice": ["listen: given twice, on lines 2 and 3; keep one"],
    "key-twice-nested": ["drain.limit: given twice, on lines 3 and 5; keep one"],
    "key-unknown": [f"slos: unknown key; known here: {TOP}"],
    "key-unknown-close": ["limits.idle_timout: unknown key; did you mean idle_timeout?"],
    "list-file": ["FILE: not a mapping; write settings as `key: value` lines"],
    "list-is-text": ['models: must be a list, not "llama"; write [a, b]'],
    "list-of-numbers": ["models.0: must be text, not 3.1; put it in quotes"],
    "no-value": ["listen: has no value; give it one or remove the key"],
    "not-utf8": ["FILE: not UTF-8 text"],
    "number-is-boolean": ["metrics.max_models: must be a whole number, not true"],
    "number-is-text": ['limits.max_connections: must be a whole number, not "10"'],
    "number-too-small": ["metrics.max_series: must be at least 5000, not 10"],
    "object-tag": [
        "FILE: not YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.getcwd', line 1"
    ],
    "recursive": ["FILE: not YAML: can not be parsed"],
    "section-is-text": ['limits: must be a mapping of settings, not "none"'],
    "several": [
        "log.level: given twice, on lines 6 and 7; keep one",
        REQUIRED,
        "stall_threshold: a duration needs a unit; write 5s or 5ms",
        f"limits.idle_timeout: {NO_DURATION}",
        f"limits.foo: unknown key; known here: {LIMITS}",
    ],
    "syntax": ["FILE: not YAML: expected ',' or '}', but got '<stream end>', line 3"],
    "tracing-address-shared": ["tracing.receive: the same address as listen; give it a port of its own"],
    "tracing-collector": [f"tracing.export: {NO_COLLECTOR}"],
    "tracing-forward-nothing": [
        "tracing.forward: no spans are received; set tracing.receive or receive_http"
    ],
    "tracing-password": [
        "tracing.export: holds a user name or password; put credentials into the variable of headers_env"
    ],
    "tracing-protocol": ["tracing.protocol: must be 'http' or 'grpc', not \"jaeger\""],
    "tracing-query": ["tracing.forward: holds a query or fragment; leave it out"],
    "tracing-ratio": ["tracing.ratio: must be at most 1.0, not 10"],
    "tracing-ratio-text": ['tracing.ratio: must be a number, not "all"'],
    "tracing-variable": [
        "tracing.headers_env: not a variable name; write the name of an environment variable, not its value"
    ],
    "upstream-missing": [REQUIRED],
    "upstream-not-ascii": ["upstream: the host is not ASCII; write its punycode form, xn--..."],
    "upstream-password": ["upstream: holds a user name or password; clients send their own, leave it out"],
    "upstream-path": ["upstream: holds more than an address; leave the path out, it comes from the client"],
    "upstream-port": ["upstream: not a URL; write http://HOST:PORT"],
    "upstream-scheme": ["upstream: not a URL of an engine; write http://HOST:PORT or https://HOST:PORT"],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_with_every_mistake_named_by_its_path(what: str) -> None:
    path = str(DATA / f"invalid-{what}.yaml")
    with pytest.raises(ConfigError) as caught:
        load(path, environment={})
    assert [error.replace(path, "FILE") for error in caught.value.errors] == WRONG[what]


def test_every_wrong_file_has_its_message() -> None:
    assert {path.stem.removeprefix("invalid-") for path in DATA.glob("invalid-*")} == set(WRONG)


def test_a_file_may_set_everything() -> None:
    config = load(str(DATA / "good.yaml"), environment={})
    assert config.upstream == "https://engine.internal:8443"
    assert config.listen_address == ("0.0.0.0", 18080)
    assert config.admin_address == ("::1", 19464)
    assert config.models == ("meta-llama/Llama-3.1-8B-Instruct", "base")
    limits = config.limits
    assert (config.stall_threshold, limits.body_timeout, limits.connect_timeout) == (1.5, 90.0, 0.25)
    assert (limits.client_write_timeout, limits.upstream_idle) == (3600.0, 0.0)


def test_the_file_that_sets_everything_sets_everything() -> None:
    """A new setting without a line in good.yaml fails here."""
    written = yaml.safe_load((DATA / "good.yaml").read_text())
    default = load(None, {"upstream": "http://a:1"}, {}).shown()
    for name, value in load(str(DATA / "good.yaml"), environment={}).shown().items():
        keys = value if isinstance(value, dict) else {name: value}
        defaults = default[name] if isinstance(value, dict) else {name: default[name]}
        given = written[name] if isinstance(value, dict) else {name: written[name]}
        assert set(given) == set(keys)
        assert not [key for key in keys if keys[key] == defaults.get(key)], name


def test_a_section_with_every_line_commented_out_is_its_defaults() -> None:
    config = load(str(DATA / "good-empty-sections.yaml"), environment={})
    assert config.limits.idle_timeout == 75.0


KEYS = [
    ("none is wanted", {}, {}, ""),
    ("from a variable", {"api_key_env": "K"}, {"K": "s3cret"}, "s3cret"),
    ("from a file, with a line end", {"api_key_file": "key"}, {}, "f1le"),
    ("a file goes before a variable", {"api_key_env": "K", "api_key_file": "key"}, {"K": "s3cret"}, "f1le"),
]


@pytest.mark.parametrize(
    ("fields", "environment", "key"), [row[1:] for row in KEYS], ids=[row[0] for row in KEYS]
)
def test_the_engine_s_key(
    fields: dict[str, str],
    environment: dict[str, str],
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key").write_text("f1le\n")
    config = load(None, {"upstream": "http://a:1", "engine": fields}, {})
    assert config.engine.api_key(environment) == key
    assert key not in str(config.shown()) or not key


NO_KEYS = [
    ({"api_key_env": "K"}, {}, "engine.api_key_env: the variable K is not set"),
    ({"api_key_file": "nowhere"}, {}, "engine.api_key_file: can't be read: No such file or directory"),
    ({"api_key_file": "latin"}, {}, "engine.api_key_file: can't be read: not UTF-8 text"),
    ({"api_key_env": "K"}, {"K": "a\r\nb"}, "engine: the API key holds characters that a header can't carry"),
]


@pytest.mark.parametrize(("fields", "environment", "message"), NO_KEYS)
def test_a_key_that_can_not_be_had(
    fields: dict[str, str],
    environment: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin").write_bytes(b"caf\xe9")
    config = load(None, {"upstream": "http://a:1", "engine": fields}, {})
    with pytest.raises(ConfigError) as caught:
        config.engine.api_key(environment)
    assert caught.value.errors == [message]


HEADERS = [
    ("none", {}, {}),
    ("as OpenTelemetry writes them", {"V": "a=1, B-c=x%20y=z,"}, {"a": "1", "b-c": "x y=z"}),
]


@pytest.mark.parametrize(("environment", "headers"), [r[1:] for r in HEADERS], ids=[r[0] for r in HEADERS])
def test_headers_for_the_collector_come_from_a_variable(
    environment: dict[str, str], headers: dict[str, str]
) -> None:
    config = load(None, {"upstream": "http://a:1", "tracing": {"headers_env": "V"}}, {})
    assert config.tracing.headers(environment) == headers


@pytest.mark.parametrize("text", ["a b=hunter2", "=hunter2", "a=hunter2%0d%0ab: 1"])
def test_headers_that_are_none_are_refused_and_not_repeated(text: str) -> None:
    config = load(None, {"upstream": "http://a:1", "tracing": {"headers_env": "V"}}, {})
    with pytest.raises(ConfigError, match=r"^V: not headers; write name=value,name=value$"):
        config.tracing.headers({"V": text})


PRECEDENCE = [
    ("the default stands when nothing is given", {}, {}, "127.0.0.1:8080"),
    ("a variable goes before the default", {}, {"SIDECAR_LISTEN": "h:2"}, "h:2"),
    ("a flag goes before a variable", {"listen": "h:1"}, {"SIDECAR_LISTEN": "h:2"}, "h:1"),
    ("a flag that was not given is none", {"listen": None}, {"SIDECAR_LISTEN": "h:2"}, "h:2"),
    ("an empty variable is none", {}, {"SIDECAR_LISTEN": ""}, "127.0.0.1:8080"),
]


@pytest.mark.parametrize(
    ("flags", "environment", "listen"), [row[1:] for row in PRECEDENCE], ids=[r[0] for r in PRECEDENCE]
)
def test_precedence(flags: dict[str, object], environment: dict[str, str], listen: str) -> None:
    assert load(None, {"upstream": "http://a:1", **flags}, environment).listen == listen


def test_a_variable_goes_before_the_file() -> None:
    environment = {"SIDECAR_UPSTREAM": "http://b:2", "SIDECAR_ADMIN": "h:3"}
    config = load(str(DATA / "good.yaml"), environment=environment)
    assert (config.upstream, config.admin) == ("http://b:2", "h:3")


def test_a_mistake_in_a_flag_or_variable_says_which() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"upstream": "http://a:1", "admin": "x"}, {"SIDECAR_LISTEN": "y"})
    assert caught.value.errors == [
        f"listen: {NO_ADDRESS} (given by SIDECAR_LISTEN)",
        f"admin: {NO_ADDRESS} (given by --admin)",
    ]


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/nowhere\.yaml: can't be read: No such file or directory$"):
        load("/nowhere.yaml", environment={})


@pytest.mark.parametrize(
    "secret", ["http://user:hunter2@a:1", "http://hunter2@a:1/", "ftp://x:hunter2@a", "http://a:hunter2"]
)
def test_a_password_is_never_repeated(secret: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"upstream": secret}, {})
    assert "hunter2" not in str(caught.value)


DURATIONS = [
    ("500ms", 0.5),
    ("2s", 2.0),
    ("75s", 75.0),
    ("5m", 300.0),
    ("1h", 3600.0),
    ("250ms", 0.25),
    ("0s", 0.0),
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_durations_are_shown_as_they_are_written(text: str, seconds: float) -> None:
    config = load(None, {"upstream": "http://a:1", "drain": {"limit": text}}, {})
    assert config.drain.limit == seconds
    assert format_duration(seconds) == text
    assert Config.model_validate(config.shown()) == config


def test_what_is_shown_gives_the_same_settings_as_a_file(tmp_path: Path) -> None:
    config = load(str(DATA / "good.yaml"), environment={})
    (tmp_path / "shown.yaml").write_text(yaml.safe_dump(config.shown()))
    again = load(str(tmp_path / "shown.yaml"), environment={})
    assert again == config
    assert again.digest() == config.digest()
    assert config.digest() != load(str(DATA / "good.yaml"), {"listen": "h:1"}, {}).digest()


CHECKS = [
    ("a good file is ok", ["good.yaml"], 0, "ok", ""),
    ("the file may be given as to serve", ["--config", "good.yaml"], 0, "ok", ""),
    ("a wrong file exits with 2", ["invalid-several.yaml"], 2, "", "log.level: given twice"),
    ("a wrong flag is a mistake too", ["good.yaml", "--listen", "x"], 2, "", "(given by --listen)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"), [row[1:] for row in CHECKS], ids=[r[0] for r in CHECKS]
)
def test_check(
    arguments: list[str],
    code: int,
    out: str,
    err: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("SIDECAR_UPSTREAM", "SIDECAR_LISTEN", "SIDECAR_ADMIN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(DATA)
    assert main(["check", *arguments]) == code
    printed = capsys.readouterr()
    assert out in printed.out
    assert err in printed.err
