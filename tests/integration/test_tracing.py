"""`sidecar serve` between a caller with a trace, an engine that exports its span, and a collector.

The engine is a stand-in that answers and exports as vLLM does: a `llm_request` span with
OpenTelemetry's SDK, its parent taken from the `traceparent` that it was sent.
"""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.collector import COLLECTORS, WITHIN
from tests.test_otlp_exporter import free_port

pytestmark = pytest.mark.integration

CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAYS = {"time_in_queue": 0.001, "time_in_model_prefill": 0.002, "time_in_model_decode": 0.003}
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": %b}]}\n\n'


class Engine:
    """Answers a streamed chat; its exporter is set once the sidecar's receiver has an address."""

    def __init__(self) -> None:
        self.exporter: Any = None
        self.heads: list[dict[str, str]] = []
        self.port = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.heads.append({name.lower(): value for name, value in request.headers.items()})
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(EVENT % b"null")
        await response.write(EVENT % b'"stop"')
        await response.write(b"data: [DONE]\n\n")
        await asyncio.to_thread(self.export, self.heads[-1])
        return response

    def export(self, head: dict[str, str]) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        context = TraceContextTextMapPropagator().extract(head)
        span = provider.get_tracer("vllm.tracing.otel").start_span(
            "llm_request", context, kind=api.SpanKind.SERVER
        )
        for name, seconds in SAYS.items():
            span.set_attribute(f"gen_ai.latency.{name}", seconds)
        span.end()


@asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    it = Engine()
    application = web.Application()
    application.router.add_post("/v1/chat/completions", it.chat)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.port = runner.addresses[0][1]
    try:
        yield it
    finally:
        await runner.cleanup()


@asynccontextmanager
async def sidecar(config: Path, loop: str) -> AsyncIterator[dict[str, str]]:
    """The addresses; it is ended by SIGTERM and must drain."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sidecar", "serve", "--config", str(config), "--loop", loop,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        async with asyncio.timeout(WITHIN):
            said = json.loads(await child.stdout.readline())
        yield said
    finally:
        child.send_signal(signal.SIGTERM)
        _, errors = await child.communicate()
    assert child.returncode == 0, errors
    assert b"Traceback" not in errors, errors


async def ask(listen: str, session: aiohttp.ClientSession, *, sampled: bool) -> None:
    headers = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-0{sampled:d}", "tracestate": "a=1"}
    body = {"model": "m", "stream": True, "messages": []}
    async with session.post(f"http://{listen}/v1/chat/completions", json=body, headers=headers) as answer:
        assert b"[DONE]" in await answer.read()


async def until_shown(
    admin: str, session: aiohttp.ClientSession, family: str, counts: dict[str, float]
) -> None:
    """Wait until the metrics page shows these counts: a span is counted after the collector has answered."""
    async with asyncio.timeout(WITHIN):
        shown = None
        while shown != counts:
            async with session.get(f"http://{admin}/metrics") as page:
                text = await page.text()
            shown = {m[1]: float(m[2]) for m in re.finditer(family + r'\{result="(\w+)"\} (\S+)', text)}


CASES = [
    ("grpc", "uvloop", True),
    ("http", "uvloop", True),
    ("grpc", "asyncio", True),
    ("http", "asyncio", False),
]


@pytest.mark.parametrize(("protocol", "loop", "trust"), CASES)
async def test_a_trace_from_the_caller_to_the_engine(
    protocol: str, loop: str, trust: bool, tmp_path: Path
) -> None:
    pytest.importorskip(loop)
    make = COLLECTORS[protocol]
    ports = {"receive": free_port(), "receive_http": free_port()}
    async with engine() as it, make() as own, make() as forward, aiohttp.ClientSession() as session:
        it.exporter = (
            GrpcExporter(endpoint=f"127.0.0.1:{ports['receive']}", insecure=True)
            if protocol == "grpc"
            else HttpExporter(endpoint=f"http://127.0.0.1:{ports['receive_http']}/v1/traces")
        )
        settings = {
            "upstream": f"http://127.0.0.1:{it.port}",
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "tracing": {
                "export": own.url, "forward": forward.url, "protocol": protocol, "ratio": 1,
                "trust_parent": trust, **{name: f"127.0.0.1:{port}" for name, port in ports.items()},
            },
        }  # fmt: skip
        config = tmp_path / "sidecar.yaml"
        config.write_text(json.dumps(settings))
        async with sidecar(config, loop) as addresses:
            await ask(addresses["listen"], session, sampled=True)
            await own.until(lambda: len(own.spans) == 3)
            await forward.until(lambda: len(forward.spans) == 1)
            await until_shown(addresses["admin"], session, "llm_sidecar_spans_total", {"sent": 4})
            await until_shown(addresses["admin"], session, "llm_sidecar_engine_spans_total", {"forwarded": 1})
            await ask(addresses["listen"], session, sampled=False)
    client, first, generation = own.spans[:3]
    (of_engine,) = forward.spans[:1]
    assert (client.name, first.name, generation.name) == ("chat m", "first output", "generation")
    assert client.start_time_unix_nano <= of_engine.start_time_unix_nano <= client.end_time_unix_nano + 10**9
    said = {pair.key: pair.value.double_value for pair in client.attributes}
    assert said["llm.engine.queue"] == SAYS["time_in_queue"]
    assert client.span_id == of_engine.parent_span_id == first.parent_span_id
    assert client.trace_id == of_engine.trace_id
    traceparents = [head["traceparent"] for head in it.heads]
    assert {value[-2:] for value in traceparents} == {"01"}, "the engine is always told to record"
    if trust:
        assert (client.trace_id.hex(), client.parent_span_id.hex()) == (CALLER_TRACE, CALLER_SPAN)
        assert [head["tracestate"] for head in it.heads] == ["a=1", "a=1"]
        assert len(own.spans) == 3, "the caller did not sample the second"
    else:
        (link,) = client.links
        assert (link.trace_id.hex(), link.span_id.hex()) == (CALLER_TRACE, CALLER_SPAN)
        assert client.parent_span_id == b""
        assert CALLER_TRACE not in "".join(traceparents)
        assert not any("tracestate" in head for head in it.heads)
        assert len(own.spans) == 6, "the ratio decides, which is 1"
    await asyncio.to_thread(it.exporter.shutdown)
