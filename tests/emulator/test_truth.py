"""All that the engine says about itself is the truth of its truth file, whatever its wall clock does."""

import asyncio
import json
from collections import defaultdict

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.emulator.clock import ClockError
from sidecar.emulator.costs import StepCosts
from sidecar.emulator.options import Api
from sidecar.emulator.scheduler import Limits

COSTS = StepCosts(fixed=0.010, per_prefill_token=0.001, per_sequence=0.002)
TOLD = Api(per_request_metrics=True)
CHAT = "/v1/chat/completions"
# "Say hello." is two words and four tokens of template: 10 + 2 + 6 x 1 ms, then 10 + 2 ms a token.
PREFILL, TOKEN = 0.018, 0.012

# how the wall clock is wrong; seconds that it shows for one that passes
CLOCKS = {
    "right": (ClockError(), 1.0),
    "an hour slow": (ClockError(offset=-3600.0), 1.0),
    "an hour fast": (ClockError(offset=3600.0), 1.0),
    "twice as fast": (ClockError(drift=1.0), 2.0),
    "running backwards": (ClockError(drift=-2.0), -1.0),
    "stepped before": (ClockError(steps=((-3600.0, 0.0),)), 1.0),
    "stepped back and forth while requests run": (
        ClockError(steps=tuple((-30.0 if n % 2 else 60.0, n * 0.02) for n in range(50))),
        None,
    ),
}


def chat(tokens: int, **extra) -> dict:
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": tokens, "stream": True}
    return body | {"stream_options": {"include_usage": True}} | extra


async def metrics_of(session, url: str, name: str, body: dict) -> dict[str, float]:
    """Ask; the `metrics` of the answer, in seconds."""
    async with session.post(url + CHAT, json=body, headers={"X-Request-Id": name}) as response:
        text = await response.text()
    last = json.loads(text.split("data: ")[-2]) if body["stream"] else json.loads(text)
    return {
        key.removesuffix("_ms"): value / 1000 for key, value in last["metrics"].items() if value is not None
    }


async def sums(session, url: str) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as response:
        page = await response.text()
    return {
        sample.name.removeprefix("vllm:"): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.endswith(("_sum", "_count"))
    }


def attributes(span) -> dict:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.mark.parametrize(("clock", "pace"), CLOCKS.values(), ids=CLOCKS)
async def test_a_lone_request_takes_what_the_formula_says(
    start_engine, session, collector, clock, pace
) -> None:
    """Identical with every clock, but for what vLLM takes from the wall clock."""
    url = await start_engine(COSTS, api=TOLD, clock=clock, otlp=collector.url, otlp_delay=0.0)
    said = await metrics_of(session, url, "a", chat(5))
    assert said["queue_time"] == 0.0
    assert said["time_to_first_token"] == pytest.approx(PREFILL, abs=1e-9)
    assert said["generation_time"] == pytest.approx(4 * TOKEN, abs=1e-9)
    assert said["mean_itl"] == pytest.approx(TOKEN, abs=1e-9)
    (span,) = await collector.spans(1)
    latency = {key.rpartition(".")[2]: value for key, value in attributes(span).items() if "latency" in key}
    assert latency["time_in_queue"] == 0.0
    assert latency["time_in_model_prefill"] == pytest.approx(PREFILL, abs=1e-9)
    assert latency["time_in_model_decode"] == pytest.approx(4 * TOKEN, abs=1e-9)
    assert latency["time_in_model_inference"] == pytest.approx(PREFILL + 4 * TOKEN, abs=1e-9)
    page = await sums(session, url)
    assert page["request_prefill_time_seconds_sum"] == pytest.approx(PREFILL, abs=1e-9)
    assert page["request_decode_time_seconds_sum"] == pytest.approx(4 * TOKEN, abs=1e-9)
    if pace is not None:
        # Wall-clock floats are exact to a quarter of a microsecond.
        assert latency["time_to_first_token"] == pytest.approx(pace * PREFILL, abs=1e-6)
        assert latency["e2e"] == pytest.approx(pace * (PREFILL + 4 * TOKEN), abs=1e-6)
        assert page["time_to_first_token_seconds_sum"] == pytest.approx(pace * PREFILL, abs=1e-6)


@pytest.mark.parametrize(("clock", "pace"), CLOCKS.values(), ids=CLOCKS)
async def test_in_band_metrics_page_and_spans_tell_the_truth(
    start_engine, session, collector, tmp_path, clock, pace
) -> None:
    """Seven requests on two places: some queue, some streamed, some not, some thinking."""
    file = tmp_path / "truth.jsonl"
    url = await start_engine(
        COSTS,
        limits=Limits(max_sequences=2),
        api=TOLD,
        clock=clock,
        otlp=collector.url,
        otlp_delay=0.0,
        truth=str(file),
        frontend_time=0.003,
    )
    bodies = {
        **{f"streamed {n}": chat(3 + n) for n in range(3)},
        **{f"unary {n}": chat(2 + n, stream=False) for n in range(2)},
        "thinking": chat(7, chat_template_kwargs={"enable_thinking": True}),
        "one token": chat(1),
    }
    told = dict(
        zip(
            bodies,
            await asyncio.gather(*(metrics_of(session, url, name, bodies[name]) for name in bodies)),
            strict=True,
        )
    )
    truths = {line["id"]: line for line in map(json.loads, file.read_text().splitlines())}
    spans = {
        attributes(span)["gen_ai.request.id"].removeprefix("chatcmpl-"): attributes(span)
        for span in await collector.spans(len(bodies))
    }
    assert truths.keys() == spans.keys() == bodies.keys()
    totals: dict[str, float] = defaultdict(float)
    for name, truth in truths.items():
        phases = [truth[phase] for phase in ("frontend", "queue", "prefill", "decode")]
        assert sum(phases) == pytest.approx(truth["e2e"], abs=1e-9)
        assert truth["frontend"] == pytest.approx(0.003, abs=1e-9)
        in_band = told[name]
        assert in_band["queue_time"] == pytest.approx(truth["queue"], abs=0.001)
        assert in_band["time_to_first_token"] == pytest.approx(truth["prefill"], abs=0.001)
        assert in_band["generation_time"] == pytest.approx(truth["decode"], abs=0.001)
        span = spans[name]
        assert span["gen_ai.latency.time_in_queue"] == pytest.approx(truth["queue"], abs=0.001)
        assert span["gen_ai.latency.time_in_model_prefill"] == pytest.approx(truth["prefill"], abs=0.001)
        assert span["gen_ai.latency.time_in_model_decode"] == pytest.approx(truth["decode"], abs=0.001)
        assert span["gen_ai.usage.completion_tokens"] == truth["output_tokens"]
        assert span["gen_ai.usage.prompt_tokens"] == truth["prompt_tokens"] == 6
        if pace is not None:
            assert span["gen_ai.latency.time_to_first_token"] == pytest.approx(
                pace * truth["ttft"], abs=0.001
            )
            assert span["gen_ai.latency.e2e"] == pytest.approx(pace * truth["e2e"], abs=0.001)
        for key, value in truth.items():
            totals[key] += value if isinstance(value, int | float) else 0
    page = await sums(session, url)
    for phase in ("queue", "prefill", "decode"):
        assert page[f"request_{phase}_time_seconds_sum"] == pytest.approx(totals[phase], abs=0.001)
        assert page[f"request_{phase}_time_seconds_count"] == len(bodies)
    assert page["inter_token_latency_seconds_sum"] == pytest.approx(totals["decode"], abs=0.001)
    assert page["inter_token_latency_seconds_count"] == totals["gaps"]
    assert page["request_generation_tokens_sum"] == totals["output_tokens"]
    if pace is not None:
        assert page["time_to_first_token_seconds_sum"] == pytest.approx(pace * totals["ttft"], abs=0.001)
        assert page["e2e_request_latency_seconds_sum"] == pytest.approx(pace * totals["e2e"], abs=0.001)


async def test_what_did_not_come_is_null_and_every_choice_has_a_line(start_engine, session, tmp_path) -> None:
    file = tmp_path / "truth.jsonl"
    hours = StepCosts(fixed=3600.0)
    url = await start_engine(hours, limits=Limits(max_sequences=1), truth=str(file))
    response = await session.post(url + CHAT, json=chat(5, n=2), headers={"X-Request-Id": "gone"})
    response.close()
    lines: list[dict] = []
    async with asyncio.timeout(30):
        while len(lines) < 2:
            async with session.get(f"{url}/emulator/truth") as response:
                lines = await response.json()
    assert lines == [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["choice"] for line in lines] == [0, 1]
    running, waiting = lines
    assert (running["id"], running["finish_reason"], running["output_tokens"]) == ("gone", "abort", 0)
    assert (running["queue"], running["prefill"], running["e2e"]) == (0.0, None, None)
    assert (waiting["queue"], waiting["first_text"], waiting["longest_gap"]) == (None, None, None)


async def test_the_first_text_of_a_tool_call_comes_tokens_after_the_first_token(
    start_engine, session
) -> None:
    """Twelve tokens of the call's head are held back: the name is the thirteenth."""
    url = await start_engine(COSTS)
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with session.post(url + CHAT, json=chat(40, tools=tools)) as response:
        await response.read()
    async with session.get(f"{url}/emulator/truth") as response:
        (line,) = await response.json()
    assert line["first_text"] - line["ttft"] == pytest.approx(12 * TOKEN, abs=1e-9)
    assert line["gaps"] == line["output_tokens"] - 1 == 21
    assert line["longest_gap"] == pytest.approx(TOKEN, abs=1e-9)
