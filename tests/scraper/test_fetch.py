"""Where the page is, and what may go wrong with it, against a real server."""

import asyncio
import logging
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web

from sidecar.catalogue import SCRAPE_FAILURES
from sidecar.scraper import fetch
from sidecar.scraper.fetch import Failed, Fetcher
from sidecar.scraper.targets import Target

from .engine import PAGE, Answer, FakeEngine, models, settings


def fetcher(engine: FakeEngine, path: str = "", **config: object) -> Fetcher:
    return Fetcher(engine.target(path), settings(**config), True, monotonic)


NO_PAGE = web.json_response([{"iter": 1}])

# Answers, settings, what is asked.
FOUND: dict[str, tuple[dict[str, Answer], dict[str, object], list[str]]] = {
    "vLLM": ({"/v1/models": models("vllm"), "/metrics": PAGE}, {}, ["/v1/models", "/metrics"]),
    "TensorRT-LLM": (
        {"/v1/models": models("tensorrt_llm"), "/prometheus/metrics": PAGE, "/metrics": NO_PAGE},
        {},
        ["/v1/models", "/prometheus/metrics"],
    ),
    "NIM 2.x says whose engine it wraps": (
        {"/v1/models": models("vllm"), "/v1/metrics": PAGE},
        {},
        ["/v1/models", "/metrics", "/prometheus/metrics", "/v1/metrics"],
    ),
    "one that does not say who it is": (
        {"/v1/models": models("me"), "/metrics": PAGE},
        {},
        ["/v1/models", "/prometheus/metrics", "/v1/metrics", "/metrics"],
    ),
    "one without a list of models": (
        {"/metrics": PAGE},
        {},
        ["/v1/models", "/prometheus/metrics", "/v1/metrics", "/metrics"],
    ),
    "a list of models that is none": (
        {"/v1/models": web.json_response({"data": [7]}), "/metrics": PAGE},
        {},
        ["/v1/models", "/prometheus/metrics", "/v1/metrics", "/metrics"],
    ),
    "one that answers everything with its own web page": (
        {"/v1/metrics": web.Response(text="<html>", content_type="text/html"), "/metrics": PAGE},
        {},
        ["/v1/models", "/prometheus/metrics", "/v1/metrics", "/metrics"],
    ),
    "the setting says which engine it is": ({"/v1/metrics": PAGE}, {"kind": "nim"}, ["/v1/metrics"]),
}  # fmt: skip


@pytest.mark.parametrize(("answers", "config", "asked"), FOUND.values(), ids=FOUND)
async def test_the_page_is_found_and_then_known(
    answers: dict[str, Answer], config: dict[str, object], asked: list[str]
) -> None:
    async with FakeEngine(answers).serving() as engine, fetcher(engine, **config) as found:
        assert (await found.page()).text == PAGE
        assert engine.asked == asked
        await found.page()
        assert engine.asked == [*asked, asked[-1]]


async def test_a_path_that_is_set_is_the_only_one_asked() -> None:
    async with FakeEngine({"/m": PAGE}).serving() as engine, fetcher(engine, "/m?model=a") as found:
        assert (await found.page()).text == PAGE
        assert engine.asked == ["/m?model=a"]


async def test_tensorrt_llm_without_its_page_is_told_what_to_switch_on() -> None:
    """Its `/metrics` answers, and reading that would take records away."""
    answers: dict[str, Answer] = {"/v1/models": models("tensorrt_llm"), "/metrics": web.json_response([{}])}
    async with FakeEngine(answers).serving() as engine, fetcher(engine) as found:
        for _ in range(3):
            with pytest.raises(Failed, match="return_perf_metrics") as failed:
                await found.page()
            assert failed.value.reason == "status"
        assert engine.times["/metrics"] == 0


@pytest.mark.parametrize("path", ["", "/metrics"], ids=["looked for", "set"])
async def test_json_where_a_page_was_expected_is_not_read_twice(path: str) -> None:
    async with FakeEngine({"/metrics": NO_PAGE}).serving() as engine, fetcher(engine, path) as found:
        for _ in range(3):
            with pytest.raises(Failed, match="JSON") as failed:
                await found.page()
            assert failed.value.reason == "not_metrics"
    assert engine.times["/metrics"] == 1


async def test_while_it_is_not_known_who_answers_nothing_is_read() -> None:
    answers: dict[str, Answer] = {"/v1/models": web.Response(status=503), "/metrics": NO_PAGE}
    async with FakeEngine(answers).serving() as engine, fetcher(engine) as found:
        with pytest.raises(Failed, match="503"):
            await found.page()
        assert engine.asked == ["/v1/models"]


async def test_after_a_404_the_page_is_looked_for_again() -> None:
    """Another engine was started there."""
    async with FakeEngine().serving() as engine, fetcher(engine) as found:
        await found.page()
        engine.answers = {"/v1/models": models("tensorrt_llm"), "/prometheus/metrics": PAGE}
        with pytest.raises(Failed):
            await found.page()
        assert (await found.page()).text == PAGE


def streamed(pieces: list[bytes], headers: dict[str, str]) -> Answer:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if "Content-Length" in headers:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer


WRONG: dict[str, tuple[Answer, str]] = {
    "no page": (web.Response(status=404), "status"),
    "llama.cpp without --metrics": (web.Response(status=501), "status"),
    "an engine that is not up": (web.Response(status=503), "status"),
    "somewhere else": (web.Response(status=302, headers={"Location": "/elsewhere"}), "status"),
    "a key is wanted": (web.Response(status=401), "unauthorized"),
    "another key is wanted": (web.Response(status=403), "unauthorized"),
    "compressed unasked": (web.Response(body=b"x", headers={"Content-Encoding": "gzip"}), "not_metrics"),
    "a web page": (web.Response(text="<html></html>"), "not_metrics"),
    "a page that ends too early": (streamed([b"a 1\n"], {"Content-Length": "100"}), "unreachable"),
    "an endless page": (streamed([b"a 1\n" * 4096] * 600, {}), "too_large"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "reason"), WRONG.values(), ids=WRONG)
async def test_failures_have_a_reason(answer: Answer, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_PAGE", 1 << 20)
    async with (
        FakeEngine({"/metrics": answer, "/elsewhere": PAGE}).serving() as engine,
        fetcher(engine, "/metrics") as found,
    ):
        with pytest.raises(Failed) as failed:
            await found.page()
    assert failed.value.reason == reason
    assert reason in SCRAPE_FAILURES
    assert engine.asked == ["/metrics"]


async def test_a_dead_engine_is_unreachable() -> None:
    async with FakeEngine().serving() as engine:
        pass
    async with fetcher(engine) as found:
        with pytest.raises(Failed) as failed:
            await found.page()
    assert failed.value.reason == "unreachable"


async def test_a_page_that_does_not_come_is_a_timeout() -> None:
    async def never(_request: web.BaseRequest) -> str:
        await asyncio.Event().wait()
        return ""

    async with (
        FakeEngine({"/metrics": never}).serving() as engine,
        fetcher(engine, "/metrics", timeout="100ms") as found,
    ):
        with pytest.raises(Failed, match=r"within 0\.1 s") as failed:
            await found.page()
    assert failed.value.reason == "timeout"


async def test_what_is_asked_for() -> None:
    async with FakeEngine().serving() as engine, fetcher(engine, "/metrics") as found:
        await found.page()
        (headers,) = engine.headers
        assert headers["Accept"] == "text/plain;version=0.0.4"
        assert headers["Accept-Encoding"] == "identity"
        assert "Authorization" not in headers


async def test_the_start_that_llama_cpp_tells_beside_the_page() -> None:
    answer = web.Response(text=PAGE, headers={"Process-Start-Time-Unix": "3227373339"})
    async with FakeEngine({"/metrics": answer}).serving() as engine, fetcher(engine, "/metrics") as found:
        assert (await found.page()).started == 3227373339.0


# --- the key


async def guarded(request: web.BaseRequest) -> web.StreamResponse | str:
    right = request.headers.get("Authorization") == "Bearer s3cret"
    return PAGE if right else web.Response(status=401)


async def test_the_key_of_a_variable_is_sent_and_never_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeEngine({"/metrics": guarded}).serving() as engine, fetcher(engine, "/metrics") as found:
        with pytest.raises(Failed, match="api_key_file"):
            await found.page()
        monkeypatch.setenv("ENGINE_KEY", "s3cret")
        async with fetcher(engine, "/metrics", api_key_env="ENGINE_KEY") as found:
            assert (await found.page()).text == PAGE
    assert "s3cret" not in caplog.text


async def test_a_file_with_a_new_key_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("old\n")
    async with (
        FakeEngine({"/metrics": guarded}).serving() as engine,
        fetcher(engine, "/metrics", api_key_file=str(file)) as found,
    ):
        with pytest.raises(Failed):
            await found.page()
        file.write_text("s3cret\n")
        assert (await found.page()).text == PAGE
        file.unlink()
        with pytest.raises(Failed, match="can't be read") as failed:
            await found.page()
    assert failed.value.reason == "unauthorized"


# --- a name with several addresses


async def test_each_address_of_a_name_is_asked_by_the_name() -> None:
    async with FakeEngine({"/metrics": PAGE}).serving("127.0.0.1") as first:
        other = FakeEngine({"/metrics": "vllm:num_requests_running 9\n"})
        async with other.serving("127.0.0.2", first.port):
            said = []
            for address in ("127.0.0.1", "127.0.0.2"):
                target = Target(f"http://engine.test:{first.port}", "/metrics", address, address)
                async with Fetcher(target, settings(), True, monotonic) as found:
                    said.append((await found.page()).text)
    assert said == [PAGE, "vllm:num_requests_running 9\n"]
    assert other.headers[0]["Host"] == f"engine.test:{first.port}"
