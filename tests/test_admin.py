"""The admin pages over a real socket, and what a real Prometheus makes of them."""

import asyncio
import gzip
import json
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sidecar import admin
from sidecar.config import load
from sidecar.core.record import RequestRecord
from sidecar.history import History
from sidecar.metrics import Metrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def request(**fields: Any) -> RequestRecord:
    given = {
        "operation": "chat",
        "model": "m",
        "streaming": True,
        "status": 200,
        "outcome": "completed",
        **fields,
    }
    now = time.monotonic()
    return RequestRecord(
        id="r", trace_id=TRACE, method="POST", wall=time.time(), t0=now - 1.0, f1=now - 0.6, o1=now - 0.6,
        f_last=now - 0.1, z=now - 0.1, e=now, ended=now, observed=True, output_tokens=11, **given,
    )  # fmt: skip


class Sidecar:
    """What stands behind the pages."""

    def __init__(self) -> None:
        self.config = load(None, {"upstream": "http://engine:8000", "models": ["m"]}, {})
        self.metrics = Metrics(self.config.metrics)
        self.metrics.learn_models(self.config.models)
        self.history = History()
        self.readiness = (True, "ready")
        self.drains = 0

    def drain(self) -> None:
        self.drains += 1

    def application(self) -> Any:
        return admin.build_admin(self.metrics, self.history, self.config, lambda: self.readiness, self.drain)


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar()


class Reply(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session, self.address = session, address

    async def __call__(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """One request; nothing is decompressed, and no Accept is sent that is not given."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.request(method, f"http://{self.address}{path}", headers=named) as response:
            return Reply(response.status, response.headers, await response.read())


@pytest_asyncio.fixture
async def get(sidecar: Sidecar) -> AsyncIterator[Client]:
    skip = ("Accept", "Accept-Encoding")
    async with (
        admin.listening(sidecar.application(), "127.0.0.1", 0) as address,
        aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=skip) as session,
    ):
        yield Client(session, address)


# --- metrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"
)
ACCEPTS = [
    ("nothing is asked for", "", TEXT),
    ("curl", "*/*", TEXT),
    ("a browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", TEXT),
    ("Prometheus 2", PROMETHEUS_2, OPENMETRICS),
    ("Prometheus 3", PROMETHEUS_3, OPENMETRICS),
    ("Prometheus that would rather have protobuf", PROTOBUF, OPENMETRICS),
    ("OpenMetrics without a version", "application/openmetrics-text", OPENMETRICS),
    ("quoted version, spaces", 'application/openmetrics-text ; version="1.0.0" ; q=1', OPENMETRICS),
    ("only a version that is not ours", "application/openmetrics-text;version=2.0.0", TEXT),
    ("plain text rather", "application/openmetrics-text;version=1.0.0;q=0.3,text/plain;q=0.9", TEXT),
    ("OpenMetrics refused", "application/openmetrics-text;q=0,*/*", TEXT),
    ("OpenMetrics refused, nothing else named", "application/openmetrics-text;q=0", TEXT),
    ("equal, the first of them", "text/plain,application/openmetrics-text", TEXT),
    ("a q that is no number leaves its row out", "application/openmetrics-text;q=high,text/plain", TEXT),
    ("something else altogether", "image/png", TEXT),
]  # fmt: skip


@pytest.mark.parametrize(("accept", "served"), [row[1:] for row in ACCEPTS], ids=[row[0] for row in ACCEPTS])
async def test_the_format_is_what_accept_prefers(get: Client, accept: str, served: str) -> None:
    reply = await get("/metrics", **({"Accept": accept} if accept else {}))
    assert (reply.status, reply.headers["Content-Type"]) == (200, served)
    assert reply.text.endswith("# EOF\n") == (served == OPENMETRICS)
    assert reply.text.count("# EOF") == (served == OPENMETRICS)


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
async def test_the_page_holds_our_families_and_the_process(
    sidecar: Sidecar, get: Client, accept: str
) -> None:
    sidecar.metrics.record(request())
    parse = parse_openmetrics if "openmetrics" in accept else parse_text
    found = {family.name for family in parse((await get("/metrics", Accept=accept)).text)}
    assert found >= {
        "llm_time_to_first_token_seconds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
    assert any(name.startswith("python_gc_") for name in found)


async def test_the_digest_of_the_settings_is_a_metric(sidecar: Sidecar, get: Client) -> None:
    page = (await get("/metrics")).text
    assert f'llm_sidecar_config_info{{digest="{sidecar.config.digest()}"}} 1\n' in page


ENCODINGS = [
    ("Prometheus", "gzip", True),
    ("a browser", "gzip, deflate, br", True),
    ("preferred less", "br;q=1.0, gzip;q=0.2", True),
    ("refused", "gzip;q=0", False),
    ("not asked for", "identity", False),
    ("nothing said", "", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("accepts", "zipped"), [row[1:] for row in ENCODINGS], ids=[row[0] for row in ENCODINGS]
)
async def test_gzip_is_used_when_it_is_accepted(get: Client, accepts: str, zipped: bool) -> None:
    reply = await get("/metrics", **({"Accept_Encoding": accepts} if accepts else {}))
    assert reply.headers.get("Content-Encoding") == ("gzip" if zipped else None)
    page = gzip.decompress(reply.body) if zipped else reply.body
    assert b"\nllm_sidecar_build_info{" in page
    assert page.endswith(b"\n")


async def test_the_loop_runs_between_two_slices(sidecar: Sidecar, get: Client) -> None:
    """Nothing else gets a longer turn than one slice: a task counts the turns of the loop meanwhile."""
    sidecar.metrics.learn_models(f"m{index}" for index in range(49))
    for name in sidecar.metrics.models.served:
        sidecar.metrics.record(request(model=name))
    slices = len(list(sidecar.metrics.render_slices(False)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    rendered: list[int] = []
    render = sidecar.metrics.render_slices

    def watched(openmetrics: bool) -> Iterator[bytes]:
        for piece in render(openmetrics):
            rendered.append(turns)
            yield piece

    sidecar.metrics.render_slices = watched  # type: ignore[method-assign]
    await get("/metrics", Accept_Encoding="gzip")
    counting.cancel()
    assert len(rendered) == slices > 10
    assert all(later > earlier for earlier, later in pairwise(rendered))


async def test_a_scraper_that_leaves_in_the_middle_does_no_harm(sidecar: Sidecar, get: Client) -> None:
    sidecar.metrics.learn_models(f"m{index}" for index in range(50))
    for name in sidecar.metrics.models.served:
        sidecar.metrics.record(request(model=name))
    host, _, port = get.address.rpartition(":")
    for _ in range(3):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        await writer.drain()
        writer.transport.abort()
    assert (await get("/metrics")).status == 200


# --- the other pages


async def test_healthy_does_not_depend_on_readiness(sidecar: Sidecar, get: Client) -> None:
    sidecar.readiness = (False, "draining")
    assert (await get("/-/healthy")).status == 200


@pytest.mark.parametrize(
    ("state", "status"), [((True, "ready"), 200), ((False, "the engine does not answer"), 503)]
)
async def test_ready_says_why_not(
    sidecar: Sidecar, get: Client, state: tuple[bool, str], status: int
) -> None:
    sidecar.readiness = state
    reply = await get("/-/ready")
    assert (reply.status, reply.json) == (status, {"ready": state[0], "reason": state[1]})


DRAINS = [
    ("POST", {}, 202, 1),
    ("GET", {}, 405, 0),
    ("HEAD", {}, 405, 0),
    ("PUT", {}, 405, 0),
    ("POST", {"Origin": "https://elsewhere.example"}, 403, 0),
    ("POST", {"Origin": "null"}, 403, 0),
]  # fmt: skip


@pytest.mark.parametrize(("method", "headers", "status", "drains"), DRAINS)
async def test_only_a_post_that_is_no_other_sites_drains(
    sidecar: Sidecar, get: Client, method: str, headers: dict[str, str], status: int, drains: int
) -> None:
    reply = await get("/-/drain", method, **headers)
    assert (reply.status, sidecar.drains) == (status, drains)
    if status == 405:
        assert reply.headers["Allow"] == "POST"


async def test_config_shows_what_is_in_force(sidecar: Sidecar, get: Client) -> None:
    shown = (await get("/config")).json
    assert shown["upstream"] == "http://engine:8000"
    assert shown["limits"]["idle_timeout"] == "75s"
    assert type(sidecar.config).model_validate(shown) == sidecar.config


async def test_requests_are_those_of_the_history(sidecar: Sidecar, get: Client) -> None:
    for index in range(120):
        sidecar.history.add(request(outcome="timeout" if index % 2 else "completed"))
    shown = (await get("/api/requests")).json
    assert shown == json.loads(json.dumps(sidecar.history.as_json()))
    assert [len(shown[view]) for view in ("recent", "slowest", "failed")] == [120, 50, 60]
    assert set(shown["recent"][0]) == {
        "id", "model", "operation", "streaming", "outcome", "status", "ttfb", "ttft", "ttfo", "reasoning",
        "tpot", "tpot_basis", "e2e", "longest_gap", "stalls", "input_tokens", "output_tokens",
        "client_write_wait", "trace_id", "waited", "buffered", "join", "phases",
    }  # fmt: skip


async def test_the_index_links_to_pages_that_exist(get: Client) -> None:
    page = (await get("/")).text
    links = [part.split('"')[0] for part in page.split('href="')[1:]]
    assert len(links) == 5
    assert [(await get(link)).status for link in links] == [200] * 5


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/-/drain", 405), ("/metrics/", 404)])
async def test_errors_are_short_json(get: Client, path: str, status: int) -> None:
    reply = await get(path)
    assert (reply.status, reply.headers["Content-Type"]) == (status, "application/json; charset=utf-8")
    assert set(reply.json) == {"error"}
    assert path not in reply.json["error"]


async def test_a_fault_of_our_own_is_an_error_without_its_text(
    sidecar: Sidecar, get: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_now: float) -> Any:
        raise RuntimeError("what the client said")

    sidecar.history.rows = broken  # type: ignore[method-assign]
    reply = await get("/api/requests")
    assert (reply.status, reply.json) == (500, {"error": "internal error"})
    assert "admin page failed" in caplog.text


# --- a real Prometheus


def prometheus() -> str:
    found = shutil.which("prometheus")
    if found is None:
        assert os.environ.get("CI") != "true", "prometheus is missing: CI installs it"
        pytest.skip("prometheus is not installed")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


QUERIES = {
    'llm_requests_total{model="m",operation="chat",streaming="true",outcome="completed"}': 3.0,
    # all three between 0.3 and 0.5 s: half of the way through that bucket
    'histogram_quantile(0.5, sum by (le) (llm_time_to_first_token_seconds_bucket{model="m"}))': 0.4,
    "sum(llm_output_tokens_total)": 33.0,
    "count(llm_sidecar_build_info) * count(llm_sidecar_config_info)": 1.0,
    'up{job="sidecar"}': 1.0,
    "count(process_resident_memory_bytes)": 1.0,
}


@pytest.mark.integration
async def test_a_real_prometheus_scrapes_the_page_and_answers(
    sidecar: Sidecar, get: Client, tmp_path: Path
) -> None:
    for _ in range(3):
        sidecar.metrics.record(request(), TRACE)
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "sidecar", "static_configs": [{"targets": [get.address]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        prometheus(), f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=error",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as api:
            answers = await until_scraped(api)
            bounds = {"start": "0", "end": str(time.time() + 60)}
            family = "llm_time_to_first_token_seconds_bucket"
            exemplars = await ask(api, "query_exemplars", query=family, **bounds)
            targets = await ask(api, "targets")
    finally:
        process.terminate()
        await process.wait()
    assert answers == pytest.approx(QUERIES)
    assert [each["labels"] for each in exemplars[0]["exemplars"]] == [{"trace_id": TRACE}]
    assert targets["activeTargets"][0]["lastError"] == ""


async def until_scraped(api: aiohttp.ClientSession) -> dict[str, float | None]:
    """The answers to QUERIES, once all have one."""
    answers: dict[str, float | None] = {}
    for _ in range(300):
        try:
            answers = {query: await number(api, query) for query in QUERIES}
        except aiohttp.ClientError:  # it does not listen yet
            answers = {}
        if answers and None not in answers.values():
            return answers
        await asyncio.sleep(0.1)
    return answers


async def number(api: aiohttp.ClientSession, query: str) -> float | None:
    result = (await ask(api, "query", query=query) or {}).get("result")
    return float(result[0]["value"][1]) if result else None


async def ask(api: aiohttp.ClientSession, what: str, **parameters: str) -> Any:
    async with api.get(f"/api/v1/{what}", params=parameters) as response:
        return (await response.json(content_type=None)).get("data") if response.status == 200 else None
