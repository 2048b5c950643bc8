"""Responses that go as vLLM's flags say, and responses that break."""

import asyncio
import json

import aiohttp
import pytest

from sidecar.emulator.costs import StepCosts
from sidecar.emulator.options import Api, Fault
from sidecar.emulator.scheduler import Limits

CHAT = "/v1/chat/completions"
HOURS = StepCosts(fixed=3600.0)


def chat(**extra) -> dict:
    return {"messages": [{"role": "user", "content": "word " * 40}], "stream": True} | extra


async def read(response) -> list:
    lines = [line[6:-1] async for line in response.content if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


async def events_of(session, url: str, **extra) -> list:
    async with session.post(url + CHAT, json=chat(**extra)) as response:
        return await read(response)


async def truths(session, url: str, count: int = 1) -> list:
    """As soon as so many sequences have ended."""
    async with asyncio.timeout(30):
        while True:
            async with session.get(f"{url}/emulator/truth") as response:
                if len(lines := await response.json()) >= count:
                    return lines


async def counted(session, url: str, line: str) -> bool:
    async with session.get(f"{url}/metrics") as response:
        return line in await response.text()


async def test_with_a_stream_interval_the_first_token_goes_alone_then_so_many_an_event(
    start_engine, session
) -> None:
    url = await start_engine(api=Api(stream_interval=8))
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await events_of(session, url, max_tokens=20, stream_options=options)
    counts = [e["usage"]["completion_tokens"] for e in events[:-1] if e["choices"]]
    assert counts == [0, 1, 9, 17, 20], "role, one, then eights, and the rest"


async def test_usage_in_every_event_without_being_asked(start_engine, session) -> None:
    url = await start_engine(api=Api(force_include_usage=True))
    events = await events_of(session, url, max_tokens=3)
    assert [e["usage"]["completion_tokens"] for e in events[:-1]] == [0, 1, 2, 3, 3]


async def test_cached_tokens_are_told(start_engine, session) -> None:
    """A prompt of 44 tokens in blocks of 16: the second time two blocks are found."""
    url = await start_engine(api=Api(prompt_tokens_details=True))
    told = []
    for stream in (True, False, True):
        async with session.post(
            url + CHAT, json=chat(max_tokens=2, stream=stream, stream_options={"include_usage": True})
        ) as response:
            answer = (await read(response))[-2] if stream else await response.json()
        told.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert told == [0, 32, 32]
    assert await counted(session, url, 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny-chat"} 64.0')
    assert [line["cached_tokens"] for line in await truths(session, url, 3)] == told


async def test_several_choices_have_no_metrics_of_their_own(start_engine, session) -> None:
    url = await start_engine(api=Api(per_request_metrics=True))
    usage = {"include_usage": True}
    one, two = [(await events_of(session, url, max_tokens=2, n=n, stream_options=usage))[-2] for n in (1, 2)]
    assert "metrics" in one
    assert "metrics" not in two


@pytest.mark.parametrize("sent", ["my-own", None], ids=["the client's", "a new one"])
async def test_request_ids_are_answered_with_the_flag(start_engine, session, sent) -> None:
    headers = {} if sent is None else {"X-Request-Id": sent}
    for url, shown in (
        (await start_engine(), False),
        (await start_engine(api=Api(request_id_headers=True)), True),
    ):
        async with session.post(url + CHAT, json=chat(max_tokens=1), headers=headers) as response:
            assert ("X-Request-Id" in response.headers) is shown
            if shown and sent:
                assert response.headers["X-Request-Id"] == sent


async def test_comments_come_while_a_stream_has_nothing(start_engine, session) -> None:
    url = await start_engine(HOURS, api=Api(keep_alive_interval=0.001))
    async with session.post(url + CHAT, json=chat()) as response:
        seen = [await response.content.readline() for _ in range(4)]
    assert seen == [b": keep-alive\n", b"\n"] * 2


async def test_a_full_queue_is_refused(start_engine, session) -> None:
    url = await start_engine(HOURS, limits=Limits(max_sequences=1), api=Api(max_queued=1))
    running = await session.post(url + CHAT, json=chat())
    waiting = await session.post(url + CHAT, json=chat())
    async with session.post(url + CHAT, json=chat()) as refused:
        assert refused.status == 503
        assert (await refused.json())["error"]["code"] == 503
    rejections = 'vllm:admission_rejections_total{model_name="tiny-chat",reason="max_num_queued_reqs"} 1.0'
    assert await counted(session, url, rejections)
    running.close()
    waiting.close()


async def test_an_http_1_0_client_gets_the_events_bare(start_engine) -> None:
    host, port = (await start_engine()).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(chat(max_tokens=2)).encode()
    writer.write(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert rest.startswith(b'data: {"id"')
    assert rest.endswith(b"data: [DONE]\n\n")
    writer.close()
    await writer.wait_closed()


def faulty(kind: str, tokens: int) -> dict:
    return {"faults": (Fault(kind, tokens),)}


async def test_an_error_in_the_stream_is_vllm_s_and_the_stream_ends_well(start_engine, session) -> None:
    url = await start_engine(**faulty("error", 3))
    events = await events_of(session, url, max_tokens=10)
    *said, error, done = events
    assert [event["choices"][0]["delta"].get("role") for event in said] == ["assistant", None, None, None]
    assert (error["error"]["code"], error["error"]["type"]) == (500, "InternalServerError")
    assert done == "[DONE]"
    assert await counted(session, url, 'finished_reason="error",model_name="tiny-chat"} 1.0')
    (line,) = await truths(session, url)
    assert (line["finish_reason"], line["e2e"]) == ("error", None)


@pytest.mark.parametrize("body", [{"stream": True}, {"stream": False}], ids=["streamed", "unary"])
async def test_an_error_before_anything_was_sent_is_a_500(start_engine, session, body) -> None:
    url = await start_engine(**faulty("error", 0))
    async with session.post(url + CHAT, json=chat(**body)) as response:
        assert response.status == 500
        assert (await response.json())["error"]["code"] == 500
    assert (await truths(session, url))[0]["finish_reason"] == "error"


@pytest.mark.parametrize("tokens", [0, 3], ids=["after the head", "after three tokens"])
async def test_a_cut_stream_ends_without_its_end(start_engine, session, tokens) -> None:
    url = await start_engine(**faulty("cut", tokens))
    seen = []
    async with session.post(url + CHAT, json=chat(max_tokens=10)) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            async for line in response.content:
                seen.append(line)  # noqa: PERF401 (what was read before the cut counts)
    assert sum(b'"content":" ' in line for line in seen) == tokens
    assert not any(b"[DONE]" in line for line in seen)
    assert (await truths(session, url))[0]["finish_reason"] == "abort"


async def test_a_hung_stream_is_silent_and_open_and_only_each_second_hangs(start_engine, session) -> None:
    url = await start_engine(faults=(Fault("hang", 2, every=2),))
    assert (await events_of(session, url, max_tokens=5))[-1] == "[DONE]"
    async with session.post(url + CHAT, json=chat(max_tokens=5)) as response:
        content = 0
        while content < 2:
            content += b'"content":" ' in await response.content.readline()
        await truths(session, url, 2)
        assert response.content.read_nowait() == b"\n", "the end of the last event"
        assert not response.content.at_eof()
    assert (await truths(session, url))[1]["output_tokens"] == 5, "the engine itself went on"
