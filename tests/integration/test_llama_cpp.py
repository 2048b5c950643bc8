"""The sidecar in front of a real engine: llama.cpp's server with a tiny model that reasons and calls tools.

What each request must show is worked out here from the bytes that the client got and the client's own
clock: the sidecar's numbers have to lie inside the client's, whatever the machine's speed.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
MODEL = HERE.parent / "data" / "models" / "tiny-chat.gguf"
USAGE = {"include_usage": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Address(NamedTuple):
    listen: str
    admin: str


class Answer(NamedTuple):
    """What the client saw; `seconds` is a time from before the request to after the last byte."""

    status: int
    body: bytes
    first_token: float | None
    seconds: float

    def chunks(self) -> list[dict[str, Any]]:
        lines = [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: {")]
        return [json.loads(line) for line in lines]

    def usage(self) -> dict[str, Any]:
        parts = self.chunks() or [json.loads(self.body)]
        return next(part["usage"] for part in reversed(parts) if part.get("usage"))


@contextmanager
def process(*command: str, ready: str) -> Iterator[str]:
    """A child until the block ends; yields the line of its output that matches `ready`."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout is not None
        yield next(line for line in child.stdout if re.search(ready, line))
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)
        if child.stdout is not None:
            child.stdout.close()


@pytest.fixture(scope="module", name="engine")
def _engine() -> Iterator[str]:
    if not os.environ.get("CI"):
        pytest.importorskip("xllamacpp", reason="llama.cpp's server comes with the xllamacpp package")
    with process(sys.executable, str(HERE / "llama_cpp.py"), str(MODEL), ready="^listening") as line:
        yield line.split("http://")[1].strip()


@pytest.fixture(scope="module", name="sidecar", params=["uvloop", "asyncio"])
def _sidecar(engine: str, request: pytest.FixtureRequest) -> Iterator[Address]:
    flags = ["--upstream", f"http://{engine}", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    command = [sys.executable, "-m", "sidecar", "serve", *flags, "--loop", request.param]
    with process(*command, ready='"ready"') as line:
        said = json.loads(line)
        _wait_ready(said["admin"])
        yield Address(said["listen"], said["admin"])


def _wait_ready(admin: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://{admin}/-/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the sidecar never became ready")


def ask(to: str, path: str, body: dict[str, Any], marker: str) -> Answer:
    started = time.monotonic()
    connection = http.client.HTTPConnection(to, timeout=60)
    try:
        headers = {"Content-Type": "application/json", "X-Request-Id": marker}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        pieces, first_token = [], None
        while piece := response.read1(65536):
            pieces.append(piece)
            if first_token is None and re.search(rb'"(content|reasoning_content|name|text)":"[^"]', piece):
                first_token = time.monotonic() - started
        return Answer(response.status, b"".join(pieces), first_token, time.monotonic() - started)
    finally:
        connection.close()


def seen(address: Address, marker: str) -> dict[str, Any]:
    """The sidecar's row for a request; it may be written a moment after the last byte."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{address.admin}/api/requests", timeout=10) as page:
            rows = [row for row in json.load(page)["recent"] if row["id"] == marker]
        if rows:
            return rows[0]
        time.sleep(0.02)
    raise AssertionError(f"{marker} never appeared")


def chat(content: str, **extra: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {
        "model": "tiny-chat",
        "messages": [message],
        "temperature": 0,
        "seed": 7,
        "max_tokens": 100,
        **extra,
    }


CASES = {
    "a streamed answer": ("/v1/chat/completions", chat("hello", stream=True, stream_options=USAGE)),
    "a unary answer": ("/v1/chat/completions", chat("hello")),
    "streamed reasoning": (
        "/v1/chat/completions",
        chat("Please think about it.", stream=True, stream_options=USAGE, max_tokens=200),
    ),
    "a streamed tool call": (
        "/v1/chat/completions",
        chat("What is the weather in Paris?", stream=True, stream_options=USAGE, tools=[TOOL]),
    ),
    "a streamed text completion": (
        "/v1/completions",
        {"model": "tiny-chat", "prompt": "long", "max_tokens": 30, "temperature": 0, "stream": True},
    ),
}


@pytest.mark.parametrize(("path", "body"), CASES.values(), ids=CASES)
def test_the_numbers_fit_what_the_client_saw(
    engine: str, sidecar: Address, path: str, body: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    direct = ask(engine, path, body, "direct")
    marker = f"case-{abs(hash(request.node.name))}"
    answer = ask(sidecar.listen, path, body, marker)
    row = seen(sidecar, marker)

    assert answer.status == direct.status == 200
    assert _text(answer) == _text(direct), "the answer is the one that the engine gives without the sidecar"
    assert row["outcome"] == "completed"
    assert row["model"] == "tiny-chat"
    assert (row["input_tokens"], row["output_tokens"]) == (
        answer.usage()["prompt_tokens"],
        answer.usage()["completion_tokens"],
    )
    assert 0 < row["e2e"] <= answer.seconds
    assert row["streaming"] is bool(body.get("stream"))
    if not body.get("stream"):
        assert [row[name] for name in ("ttft", "ttfo", "tpot", "longest_gap")] == [None] * 4
        return
    assert answer.first_token is not None
    assert 0 < row["ttft"] <= answer.first_token
    assert row["ttft"] <= row["ttfo"] <= row["e2e"]
    # On a busy machine this tiny model's whole answer may come in one read: then there is no TPOT.
    assert row["tpot_basis"] in ("usage", None)
    assert row["tpot"] is None if row["tpot_basis"] is None else 0 < row["tpot"] < answer.seconds
    reasoned = b'"reasoning_content":"' in answer.body
    assert (row["reasoning"] is not None) is reasoned
    if reasoned:
        assert row["ttfo"] - row["ttft"] == pytest.approx(row["reasoning"])


SAME_PROMPT = "Please think about it."
OTHER_APIS: dict[str, tuple[str, dict[str, Any], bool]] = {  # path, body, does it reason
    "Responses": (
        "/v1/responses",
        {"model": "tiny-chat", "input": SAME_PROMPT, "temperature": 0, "max_output_tokens": 200},
        True,
    ),
    "Messages": (
        "/v1/messages",
        {
            "model": "tiny-chat",
            "messages": [{"role": "user", "content": SAME_PROMPT}],
            "temperature": 0,
            "max_tokens": 200,
        },
        True,
    ),
    "its own /completion": ("/completion", {"prompt": "long", "n_predict": 20, "temperature": 0}, False),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "in one piece"])
@pytest.mark.parametrize(("path", "body", "reasons"), OTHER_APIS.values(), ids=OTHER_APIS)
def test_the_other_apis_of_the_same_engine(
    sidecar: Address, path: str, body: dict[str, Any], reasons: bool, stream: bool
) -> None:
    marker = f"{path}-{stream}-{time.monotonic_ns()}"
    answer = ask(sidecar.listen, path, {**body, "stream": stream}, marker)
    row = seen(sidecar, marker)
    assert answer.status == 200
    assert (row["outcome"], row["streaming"]) == ("completed", stream)
    counts = re.findall(rb'"(?:output_tokens|tokens_predicted)":(\d+)', answer.body)
    assert row["output_tokens"] == int(counts[-1])
    assert row["input_tokens"] > 0
    if stream:
        assert 0 < row["ttft"] <= row["ttfo"] <= row["e2e"] <= answer.seconds
        assert (row["reasoning"] is not None) is reasons


def test_requests_on_one_client_connection_never_meet_a_closed_upstream(sidecar: Address) -> None:
    """llama.cpp closes right after a stream although its head said keep-alive."""
    connection = http.client.HTTPConnection(sidecar.listen, timeout=60)
    try:
        for number in range(40):
            body = chat("hello", stream=number % 2 == 0, max_tokens=4)
            connection.request(
                "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            assert response.status == 200
            assert response.read()
    finally:
        connection.close()


def test_the_engine_and_the_sidecar_count_the_same_tokens(engine: str, sidecar: Address) -> None:
    before = _engine_tokens(engine), _metric(sidecar, "llm_output_tokens_total")
    for number in range(3):
        ask(
            sidecar.listen,
            "/v1/chat/completions",
            chat("hello", stream=True, stream_options=USAGE),
            f"n{number}",
        )
    seen(sidecar, "n2")
    engine_tokens = _engine_tokens(engine) - before[0]
    assert _metric(sidecar, "llm_output_tokens_total") - before[1] == engine_tokens > 0


def test_of_ten_at_once_on_four_slots_six_wait_and_it_shows_as_unattributed_time(sidecar: Address) -> None:
    """llama.cpp tells prefill and decode, not its queue: what is left of TTFT holds it."""
    body = chat("long", stream=True, stream_options=USAGE, max_tokens=400, ignore_eos=True)
    started = time.monotonic_ns()
    markers = [f"slots-{started}-{number}" for number in range(10)]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda marker: ask(sidecar.listen, "/v1/chat/completions", body, marker), markers))
    rows = [seen(sidecar, marker) for marker in markers]
    for row in rows:
        assert row["join"] == {"status": "ok", "source": "in_band"}
        phases = row["phases"]
        parts = sum(phases[name] for name in ("upload", "connect", "prefill", "unattributed"))
        assert parts == pytest.approx(phases["ttft"]) == pytest.approx(row["ttft"])
        assert phases["decode"] + phases["stretch"] == pytest.approx(phases["generation"])
        assert phases["decode"] > 0
    quickest = min(row["phases"]["decode"] for row in rows)
    waited = [row for row in rows if row["phases"]["unattributed"] > quickest / 2]
    assert len(waited) >= 6, "a slot is free for the fifth only when one of the first four is done"


SAME = {  # what the sidecar shows of the engine, and the engine's own name of it
    "llm_engine_output_tokens_total": ["llamacpp:tokens_predicted_total"],
    "llm_engine_input_tokens_total": ["llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"],
    "llm_engine_prefix_cache_hits_total": ["llamacpp:prompt_tokens_cached_total"],
    "llm_engine_requests_running": ["llamacpp:requests_processing"],
    "llm_engine_requests_waiting": ["llamacpp:requests_deferred"],
}


def test_the_engine_view_shows_what_the_engine_says(engine: str, sidecar: Address) -> None:
    ask(sidecar.listen, "/v1/chat/completions", chat("hello"), "view")
    said = {
        shown: sum(_sum(f"http://{engine}/metrics", name) for name in names) for shown, names in SAME.items()
    }
    assert said["llm_engine_output_tokens_total"] > 0
    deadline = time.monotonic() + 60  # the engine's page is read every 5 s, more seldom if that takes it long
    found: dict[str, float] = {}
    while found != said and time.monotonic() < deadline:
        time.sleep(0.2)
        found = {shown: _metric(sidecar, shown) for shown in SAME}
    assert found == said
    assert _metric(sidecar, "llm_engine_up") == 1
    with urllib.request.urlopen(f"http://{sidecar.admin}/metrics", timeout=10) as page:
        text = page.read().decode()
    instance = f'engine_instance="{engine}"'
    assert f'llm_engine_info{{{instance},engine="llama.cpp",version="' in text
    assert f'llm_engine_output_tokens_total{{{instance},model="tiny-chat"}} ' in text
    assert f'llm_engine_signal_available{{{instance},signal="ttft"}} 0' in text
    assert f'llm_engine_signal_available{{{instance},signal="output_tokens"}} 1' in text


def _engine_tokens(engine: str) -> float:
    return _sum(f"http://{engine}/metrics", "llamacpp:tokens_predicted_total")


def _metric(sidecar: Address, name: str) -> float:
    return _sum(f"http://{sidecar.admin}/metrics", name)


def _sum(url: str, name: str) -> float:
    with urllib.request.urlopen(url, timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line))


def _text(answer: Answer) -> str:
    """All generated material, in order, whatever event it came in."""
    out = []
    for part in answer.chunks() or [json.loads(answer.body)]:
        for choice in part.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or choice
            calls = [call["function"] for call in said.get("tool_calls") or ()]
            fields = [said.get("reasoning_content"), said.get("content"), said.get("text")]
            out += [field or "" for field in fields]
            out += [(call.get("name") or "") + (call.get("arguments") or "") for call in calls]
    return "".join(out)
