"""The emulator over HTTP. No upper bound on a time: only order, and that nothing comes before its plan."""

import asyncio
import json
import time
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.emulator.clock import ClockError
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.scheduler import Limits
from tests.replay import DATA, Splitter, recording

HOURS = StepCosts(fixed=3600.0)
ONE_SLOT = Limits(max_sequences=1)
CHAT = "/v1/chat/completions"


def chat(**extra: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Say hello."}], "stream": True} | extra


async def events(response) -> list[Any]:
    payloads = [line[6:] async for line in response.content if line.startswith(b"data: ")]
    return [p if p == b"[DONE]\n" else json.loads(p) for p in payloads]


async def metrics(session, url: str) -> dict[str, float]:
    """Samples by name and labels, without engine and model."""
    async with session.get(f"{url}/metrics") as response:
        page = await response.text()
    result = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = [v for k, v in sorted(sample.labels.items()) if k not in ("engine", "model_name")]
            result[" ".join((sample.name.removeprefix("vllm:"), *labels))] = sample.value
    return result


async def until(session, url: str, **wanted: float) -> dict[str, float]:
    """Read the metrics page until it says so."""
    async with asyncio.timeout(30):
        while True:
            page = await metrics(session, url)
            if all(page[f"num_requests_{name}"] == value for name, value in wanted.items()):
                return page


async def test_a_stream_is_complete_and_its_usage_exact(start_engine, session) -> None:
    url = await start_engine()
    body = chat(max_tokens=9, stream_options={"include_usage": True})
    async with session.post(url + CHAT, json=body, headers={"X-Request-Id": "abc"}) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        role, *tokens, usage, done = await events(response)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["id"] == "chatcmpl-abc"
    assert len(tokens) == 9
    assert tokens[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"] == {"prompt_tokens": 6, "total_tokens": 15, "completion_tokens": 9}
    assert done == b"[DONE]\n"


async def test_nothing_comes_before_its_planned_time(start_engine, session) -> None:
    url = await start_engine(StepCosts(fixed=0.02, per_prefill_token=0.01, per_sequence=0.0))
    sent = time.monotonic()
    async with session.post(url + CHAT, json=chat(max_tokens=5)) as response:
        seen = [time.monotonic() - sent async for line in response.content if b'"content":" ' in line]
    planned = [6 * 0.01 + (index + 1) * 0.02 for index in range(5)]
    assert len(seen) == 5
    assert all(actual >= plan for actual, plan in zip(seen, planned, strict=True))


async def test_each_event_is_a_chunk_of_its_own_and_keep_alive_goes_on(start_engine) -> None:
    host, port = (await start_engine()).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(chat(max_tokens=3)).encode()
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        CHAT.encode(),
        len(body),
        body,
    )
    for _ in range(2):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in head
        chunks = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            chunks.append(await reader.readexactly(size))
            assert await reader.readexactly(2) == b"\r\n"
        assert await reader.readexactly(2) == b"\r\n"
        assert [chunk.count(b"data: ") for chunk in chunks] == [1] * len(chunks)
        assert len(chunks) == 1 + 3 + 1
    writer.close()
    await writer.wait_closed()


async def test_the_head_comes_at_once_and_a_client_that_leaves_frees_its_slot(start_engine, session) -> None:
    url = await start_engine(limits=ONE_SLOT)
    async with session.post(url + CHAT, json=chat(max_tokens=30_000)) as first:
        while b'"content":" ' not in await first.content.readline():
            pass
        second = await session.post(url + CHAT, json=chat(max_tokens=1))  # its head, while it waits
        await until(session, url, running=1, waiting=1)
        first.close()
    assert len(await events(second)) == 1 + 1 + 1
    page = await until(session, url, running=0, waiting=0)
    assert page["time_to_first_token_seconds_count"] == 2
    assert page["e2e_request_latency_seconds_count"] == 1, "vLLM counts who left in the live families only"
    assert page["request_success_total abort"] == 0


LEAVING = {
    "a stream that has no token yet": chat(),
    "a unary request": chat(stream=False),
    "all choices of a request": chat(n=3),
}


@pytest.mark.parametrize("body", LEAVING.values(), ids=LEAVING)
async def test_a_client_that_leaves_before_any_token_frees_its_place(start_engine, session, body) -> None:
    url = await start_engine(HOURS, limits=ONE_SLOT)
    asking = asyncio.create_task(session.post(url + CHAT, json=body))
    n = body.get("n", 1)
    await until(session, url, running=1, waiting=n - 1)
    if asking.done():
        asking.result().close()
    asking.cancel()
    page = await until(session, url, running=0, waiting=0)
    assert page["generation_tokens_total"] == 0


async def test_what_comes_through_the_front_end_during_a_step_waits_on_the_page(
    start_engine, session
) -> None:
    url = await start_engine(HOURS, frontend_time=0.001)
    first = await session.post(url + CHAT, json=chat())
    await until(session, url, running=1, waiting=0)
    second = await session.post(url + CHAT, json=chat())
    await until(session, url, running=1, waiting=1)
    first.close()
    second.close()


async def test_the_metrics_page_counts_what_the_clients_got(start_engine, session) -> None:
    url = await start_engine(natural_tokens=7)
    bodies = [
        *[chat(max_tokens=4, stream_options={"include_usage": True})] * 3,
        chat(n=2, max_tokens=5, stream=False),
        chat(stream=False),
        chat(stream=False, tools=[{"type": "function", "function": {"name": "f"}}]),
    ]

    async def usage_of(body: dict[str, Any]) -> dict[str, int]:
        async with session.post(url + CHAT, json=body) as response:
            answer = (await events(response))[-2] if body["stream"] else await response.json()
        return answer["usage"]

    usages = await asyncio.gather(*map(usage_of, bodies))
    page = await metrics(session, url)
    # With n = 2 the engine prefills the prompt for each choice, the usage counts it once.
    assert page["prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages) + 6
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert page["generation_tokens_total"] == page["request_generation_tokens_sum"] == generated
    sequences = len(bodies) + 1
    assert page["time_to_first_token_seconds_count"] == sequences
    assert page["e2e_request_latency_seconds_count"] == sequences
    assert page["inter_token_latency_seconds_count"] == generated - sequences
    assert {reason: page[f"request_success_total {reason}"] for reason in ("length", "stop")} == {
        "length": 5,
        "stop": 2,
    }


async def test_the_metrics_page_tells_the_plan_exactly(start_engine, session) -> None:
    """One slot, two requests at a time: a first step of 10 + 6 x 5 ms, then five of 10 ms."""
    costs = StepCosts(fixed=0.01, per_prefill_token=0.005, per_sequence=0.0)
    url = await start_engine(costs, limits=ONE_SLOT)
    answers = await asyncio.gather(
        *(session.post(url + CHAT, json=chat(max_tokens=6, stream=False)) for _ in range(2))
    )
    assert [answer.status for answer in answers] == [200, 200]
    page = await metrics(session, url)
    assert page["request_prefill_time_seconds_sum"] == pytest.approx(2 * 0.04)
    assert page["request_decode_time_seconds_sum"] == pytest.approx(2 * 0.05)
    assert page["inter_token_latency_seconds_sum"] == pytest.approx(2 * 0.05)
    assert page["request_time_per_output_token_seconds_sum"] == pytest.approx(2 * 0.01)
    assert page["iteration_tokens_total_sum"] == 2 * (6 + 6)
    assert page["iteration_tokens_total_count"] == 2 * 6
    e2e, queue = page["e2e_request_latency_seconds_sum"], page["request_queue_time_seconds_sum"]
    assert e2e == pytest.approx(queue + page["request_inference_time_seconds_sum"], abs=1e-5)
    assert page["time_to_first_token_seconds_sum"] == pytest.approx(queue + 2 * 0.04, abs=1e-5)


async def test_the_metrics_page_has_the_families_types_and_buckets_of_the_recorded_one(
    start_engine, session
) -> None:
    def families(page: str) -> dict[str, tuple[str, frozenset[tuple[str, ...]]]]:
        """Type and the sets of labels; of labels with closed values also those."""
        result = {}
        for family in text_string_to_metric_families(page):
            closed = {
                tuple(
                    f"{k}={v}" if k in ("le", "engine", "finished_reason", "source", "reason") else k
                    for k, v in s.labels.items()
                )
                for s in family.samples
            }
            labels = frozenset(tuple(sorted(labels)) for labels in closed)
            result[family.name] = (family.type, family.documentation, labels)
        return result

    url = await start_engine(max_model_len=4096)
    async with session.get(f"{url}/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"
        ours = families(await response.text())
    theirs = families((DATA / "emulator" / "vllm_metrics.txt").read_text())
    # The first has a label for each setting of the real server, the second is not in the recording.
    for name in ours.keys() - {"vllm:cache_config_info", "process_start_time_seconds"}:
        assert ours[name] == theirs[name], name
    of_requests = {name for name in theirs if name.startswith(("vllm:request", "vllm:prompt", "vllm:num"))}
    assert of_requests - ours.keys() == set(), "none of a request's families is missing"


# recording; the same status, body shape and type of error come from here
REFUSALS = {
    "a model that is not there": "vllm/plain/chat_error_wrong_model",
    "a temperature below zero": "vllm/plain/chat_error_bad_param",
    "no JSON": "vllm/plain/chat_error_bad_json",
    "more than the context holds": "vllm/plain/chat_error_context_too_long",
    "an unknown path": "vllm/plain/error_404",
}


@pytest.mark.parametrize("name", REFUSALS.values(), ids=REFUSALS)
async def test_refusals_have_the_recorded_status_and_shape(start_engine, session, name) -> None:
    recorded = recording(name)
    url = await start_engine(max_model_len=4096)
    async with session.post(url + recorded.path, data=recorded.body) as response:
        status, ours = response.status, await response.json()
    parts = Splitter(response=True).feed(recorded.raw)
    assert parts[0].head is not None
    theirs = json.loads(b"".join(part.data for part in parts))
    assert status == parts[0].head.status
    assert ours.keys() == theirs.keys()
    if "error" in theirs:
        assert list(ours["error"]) == list(theirs["error"])
        assert (ours["error"]["type"], ours["error"]["code"]) == (
            theirs["error"]["type"],
            theirs["error"]["code"],
        )


async def test_every_stamp_is_of_the_engine_s_own_wall_clock(start_engine, session) -> None:
    """A year slow: all of them agree with one another, to the second that they are rounded to."""
    year = 365 * 86_400
    url = await start_engine(clock=ClockError(offset=-year))
    before = time.time() - year
    async with session.post(url + CHAT, json=chat(max_tokens=1, stream=False)) as response:
        created = (await response.json())["created"]
        dated = parsedate_to_datetime(response.headers["Date"]).timestamp()
    async with session.get(f"{url}/v1/models") as response:
        started = (await response.json())["data"][0]["created"]
    page = await metrics(session, url)
    assert page["process_start_time_seconds"] == page["prompt_tokens_created"]
    assert started == int(page["process_start_time_seconds"]) <= created <= dated
    assert dated - before < year / 2


async def test_models_health_and_version(start_engine, session) -> None:
    url = await start_engine()
    async with session.get(f"{url}/v1/models") as response:
        models = await response.json()
    assert [model["id"] for model in models["data"]] == ["tiny-chat"]
    async with session.get(f"{url}/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with session.get(f"{url}/version") as response:
        assert await response.json() == {"version": "0.32.0"}
