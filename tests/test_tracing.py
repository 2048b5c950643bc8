"""What is exported, what waits for the engine, what is passed on: the parts put together."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.config import load
from sidecar.core.otlp_frames import Frame, MalformedError, join, split
from sidecar.core.record import RequestRecord
from sidecar.core.server_timings import ServerTimings
from sidecar.core.tracecontext import TraceContext
from sidecar.tracing import DEADLINE, Tracing
from tests.collector import COLLECTORS
from tests.data_spans import engine_spans, exports, sdk_spans

RECORDED = "4bf92f3577b34da6a3ce929d0e0e1001"
PARENT = "00f067aa0ba90001"  # what the recorded request carried: here the sidecar's own span
SAYS = ServerTimings(
    queue=2.782100000331411e-05, prefill=0.010847836999801075, decode=0.06788233700035562,
    ttft=0.01624751091003418, e2e=0.08199071884155273,
)  # fmt: skip


class Captured:
    """Stands in for an exporter."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def put(self, frame: Frame) -> None:
        self.frames.append(frame)

    @property
    def spans(self) -> list[Span]:
        request = ExportTraceServiceRequest.FromString(join(self.frames))
        return [span for r in request.resource_spans for s in r.scope_spans for span in s.spans]

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


class Set:
    """A Tracing whose exporters are captured."""

    def __init__(self, **settings: Any) -> None:
        config = load(None, {"upstream": "http://e:8000", "tracing": settings}, {})
        self.tracing = Tracing(config.tracing, ("e", 8000))
        self.own, self.forward = Captured(), Captured()
        if settings.get("export"):
            self.tracing._own = self.own  # type: ignore[assignment]
        if settings.get("forward"):
            self.tracing._forward = self.forward  # type: ignore[assignment]
        self.said: list[tuple[str, Any]] = []
        self.tracing.on_timings = lambda record, said: self.said.append((record.id, said))

    def request(self, trace: TraceContext, request_id: str = "r", **fields: Any) -> bool:
        self.tracing.started(trace, request_id)
        return self.end(trace, request_id, **fields)

    def end(
        self, trace: TraceContext, request_id: str = "r", *, several: bool = False, **fields: Any
    ) -> bool:
        now = time.monotonic()
        given = {"outcome": "completed", "streaming": True, "o1": now, "f1": now, "f_last": now, **fields}
        record = RequestRecord(
            id=request_id, trace_id=trace.trace_id, method="POST", operation="chat", model="m", status=200,
            wall=time.time(), t0=now - 1, ended=now, e=now, **given,
        )  # fmt: skip
        return self.tracing.finished(record, trace, several)

    async def recorded(self) -> None:
        """All that vLLM sent in the recording, as it sent it."""
        for export in exports("plain_and_load"):
            await self.tracing.receive(export)

    def later(self, seconds: float = DEADLINE) -> None:
        list(self.tracing.expire(time.monotonic() + seconds))


EXPORT = {"export": "http://127.0.0.1:1"}
RECEIVE = {"receive_http": "127.0.0.1:0"}
FORWARD = {**RECEIVE, "forward": "http://127.0.0.1:1"}


def trace(sampled: bool | None, span_id: str = PARENT, trace_id: str = RECORDED) -> TraceContext:
    return TraceContext(trace_id, None, span_id, sampled)


SAMPLING = [
    ("the caller samples", {"ratio": 0}, True, "completed", 3),
    ("the caller does not", {"ratio": 1}, False, "completed", 0),
    ("the caller does not, and it broke", {"ratio": 0}, False, "upstream_error", 3),
    ("no caller, all", {"ratio": 1}, None, "completed", 3),
    ("no caller, none", {"ratio": 0}, None, "completed", 0),
    ("no caller, none, and the client gave up", {"ratio": 0}, None, "client_disconnected", 3),
]


@pytest.mark.parametrize(
    ("settings", "sampled", "outcome", "count"), [r[1:] for r in SAMPLING], ids=[r[0] for r in SAMPLING]
)
async def test_which_requests_are_exported(
    settings: dict[str, Any], sampled: bool | None, outcome: str, count: int
) -> None:
    them = Set(**EXPORT, **settings)
    assert them.request(trace(sampled), outcome=outcome) is (count > 0)
    assert len(them.own.spans) == count


async def test_what_is_broken_can_be_told_otherwise() -> None:
    them = Set(**EXPORT, ratio=0)
    them.tracing.broken = lambda record: record.id == "slow"
    assert them.request(trace(None), "slow")
    assert not them.request(trace(None), "r", outcome="timeout")


TOLD = [
    ("with the receiver, always: the caller declined", RECEIVE, False, True),
    ("with the receiver, always: no caller, none", {**RECEIVE, "ratio": 0}, None, True),
    ("without it, what the caller decided", {**EXPORT, "ratio": 1}, False, False),
    ("without it, what is decided here", {**EXPORT, "ratio": 1}, None, True),
    ("without it, what is decided here: no", {**EXPORT, "ratio": 0}, None, False),
]


@pytest.mark.parametrize(
    ("settings", "sampled", "told"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD]
)
async def test_what_the_engine_is_told(settings: dict[str, Any], sampled: bool | None, told: bool) -> None:
    assert Set(**settings).tracing.tells_the_engine(trace(sampled)) is told


async def test_exports_a_second_are_capped() -> None:
    """A hundred a second are 33 streamed requests at once; what passes while the test runs is little."""
    them = Set(**EXPORT, max_spans_per_second=100)
    start = time.monotonic()
    passed = sum(them.request(trace(True)) for _ in range(1000))
    at_most = (100 + 100 * (time.monotonic() - start)) / 3
    assert 33 <= passed <= at_most
    assert len(them.own.frames) == 3 * passed
    assert them.tracing.counts == {"over_rate": 3 * (1000 - passed)}


async def test_a_span_of_the_engine_says_what_the_engine_says() -> None:
    """The recorded span; its request ended before it came, as with vLLM it does."""
    them = Set(**EXPORT, **FORWARD)
    assert them.request(trace(True))
    assert them.own.names == []
    await them.recorded()
    assert them.said == [("r", SAYS)]
    assert them.own.names == ["chat m", "first output", "generation"]
    attributes = {pair.key: pair.value for pair in them.own.spans[0].attributes}
    assert attributes["llm.engine.queue"].double_value == SAYS.queue
    assert attributes["gen_ai.provider.name"].string_value == "vllm"
    them.later()
    assert len(them.own.frames) == 3


async def test_without_a_span_of_the_engine_the_requests_own_waits_for_the_deadline() -> None:
    them = Set(**EXPORT, **RECEIVE)
    them.request(trace(True))
    them.later(DEADLINE - 1)
    assert them.own.names == []
    them.later()
    assert them.own.names == ["chat m", "first output", "generation"]
    assert them.said == []


async def test_what_is_ambiguous_is_said_and_written_on_the_span() -> None:
    them = Set(**EXPORT, **RECEIVE)
    them.request(trace(True), several=True)
    await them.recorded()
    assert them.said == [("r", "ambiguous")]
    attributes = {pair.key: pair.value.string_value for pair in them.own.spans[0].attributes}
    assert attributes["llm.engine.match"] == "ambiguous"


async def test_the_join_works_without_any_export() -> None:
    them = Set(**RECEIVE)
    assert not them.request(trace(True))
    await them.recorded()
    assert them.said == [("r", SAYS)]


async def test_phases_of_the_join_are_asked_for_when_the_span_is_exported() -> None:
    them = Set(**EXPORT, **RECEIVE)
    them.tracing.phases = lambda record: {"llm.phase.queue": 0.25} if them.said else {}
    them.request(trace(True))
    await them.recorded()
    attributes = {pair.key: pair.value.double_value for pair in them.own.spans[0].attributes}
    assert attributes["llm.phase.queue"] == 0.25


FORWARDED = [
    ("sampled", True, "completed", 1, {"forwarded": 1}),
    ("broken", False, "truncated", 1, {"forwarded": 1}),
    ("neither", False, "completed", 0, {"not_forwarded": 1}),
]


@pytest.mark.parametrize("spans_first", [True, False], ids=["before the end", "after the end"])
@pytest.mark.parametrize(
    ("sampled", "outcome", "count", "counts"), [r[1:] for r in FORWARDED], ids=[r[0] for r in FORWARDED]
)
async def test_which_spans_of_the_engine_are_passed_on(
    sampled: bool, outcome: str, count: int, counts: dict[str, int], spans_first: bool
) -> None:
    them = Set(**FORWARD)
    them.tracing.started(trace(sampled), "r")
    if spans_first:
        await them.recorded()
        assert them.forward.frames == []
    them.end(trace(sampled), outcome=outcome)
    if not spans_first:
        await them.recorded()
    them.later()
    unknown = len(engine_spans("plain_and_load")) - 1
    assert them.tracing.engine_counts == {"unknown": unknown, **counts}
    assert [span.trace_id.hex() for span in them.forward.spans] == [RECORDED] * count


async def test_what_is_passed_on_is_byte_for_byte_what_came() -> None:
    them = Set(**FORWARD)
    them.request(trace(True))
    await them.recorded()
    came = {frame for export in exports("plain_and_load") for frame in split(export, 100)}
    (frame,) = them.forward.frames
    assert frame in came


async def test_one_sampled_request_is_enough_for_its_trace() -> None:
    """Its sibling was not sampled and ended first."""
    them = Set(**FORWARD)
    them.tracing.started(trace(False, "1" * 16), "a")
    them.tracing.started(trace(True, PARENT), "b")
    await them.recorded()
    them.end(trace(False, "1" * 16), "a")
    assert them.forward.frames == []
    them.end(trace(True, PARENT), "b")
    assert len(them.forward.frames) == 1


async def test_garbage_is_refused_and_counted() -> None:
    them = Set(**RECEIVE)
    with pytest.raises(MalformedError):
        await them.tracing.receive(b"\xff")
    assert them.tracing.engine_counts == {"malformed": 1}


async def test_nothing_is_kept_of_what_is_over() -> None:
    them = Set(**EXPORT, **FORWARD)
    for number in range(50):
        them.request(TraceContext(f"{number:032x}", None, f"{number:016x}", number % 2 == 0))
    await them.recorded()
    them.later()
    tracing = them.tracing
    assert (len(tracing._matcher), tracing._ended, tracing._held._frames, tracing._held._wanted) == (
        0, {}, {}, set(),
    )  # fmt: skip


# --- the shell, over real sockets


@pytest.fixture(params=["http", "grpc"])
async def collectors(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, Any, Any]]:
    make = COLLECTORS[request.param]
    async with make() as own, make() as forward:
        yield request.param, own, forward


async def test_from_opentelemetrys_exporter_to_the_collectors(collectors: tuple[str, Any, Any]) -> None:
    """vLLM's recorded spans sent by its own library, matched, and both views exported."""
    protocol, own, forward = collectors
    settings = {"export": own.url, "forward": forward.url, "protocol": protocol, "receive": "127.0.0.1:0"}
    config = load(
        None, {"upstream": "http://e:1", "tracing": {**settings, "receive_http": "127.0.0.1:0"}}, {}
    )
    tracing = Tracing(config.tracing, ("e", 1))
    said: list[Any] = []
    tracing.on_timings = lambda _record, timings: said.append(timings)
    async with tracing.running():
        grpc_port, http_port = tracing.ports
        exporter: Any = (
            GrpcExporter(endpoint=f"127.0.0.1:{grpc_port}", insecure=True)
            if protocol == "grpc"
            else HttpExporter(endpoint=f"http://127.0.0.1:{http_port}/v1/traces")
        )
        them = Set.__new__(Set)
        them.tracing = tracing
        them.request(trace(True))
        await asyncio.to_thread(exporter.export, sdk_spans("plain_and_load"))
        await asyncio.to_thread(exporter.shutdown)
    assert said == [SAYS]
    assert [span.name for span in own.spans] == ["chat m", "first output", "generation"]
    assert [(span.name, span.trace_id.hex()) for span in forward.spans] == [("llm_request", RECORDED)]
    (resource_spans,) = forward.requests[0].resource_spans
    resource = {pair.key: pair.value.string_value for pair in resource_spans.resource.attributes}
    assert resource["service.name"] == "vllm-tiny"
    assert tracing.counts == {"sent": 4}


async def test_what_still_waits_at_the_end_is_exported() -> None:
    async with COLLECTORS["http"]() as own:
        config = load(None, {"upstream": "http://e:1", "tracing": {"export": own.url, **RECEIVE}}, {})
        tracing = Tracing(config.tracing, ("e", 1))
        async with tracing.running():
            them = Set.__new__(Set)
            them.tracing = tracing
            them.request(trace(True))
        assert len(own.spans) == 3


# --- what is imported


HEAVY = ("opentelemetry", "google.protobuf", "grpc")
IMPORTS = [
    ("off", "", ()),
    ("HTTP only", "export='http://127.0.0.1:1',receive_http='127.0.0.1:0'", HEAVY[:2]),
    ("gRPC", "export='http://127.0.0.1:1',protocol='grpc'", HEAVY),
    ("received by gRPC", "receive='127.0.0.1:0'", HEAVY),
]


@pytest.mark.parametrize(("settings", "loaded"), [r[1:] for r in IMPORTS], ids=[r[0] for r in IMPORTS])
def test_only_what_is_needed_is_imported(settings: str, loaded: tuple[str, ...]) -> None:
    program = f"""
import asyncio, sys
from sidecar import app
from sidecar.commands import serve
from sidecar.config import load
config = load(None, {{"upstream": "http://127.0.0.1:1", "tracing": dict({settings})}}, {{}})
async def main():
    app._tracing(config, app.upstream_of(config.upstream))
asyncio.run(main())
print(*[name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert tuple(done.stdout.split()) == loaded


MISSING = [
    ("opentelemetry", "export='http://127.0.0.1:1'", "install inference-sidecar[tracing]"),
    ("grpc", "export='http://127.0.0.1:1',protocol='grpc'", "install inference-sidecar[tracing-grpc]"),
    ("grpc", "receive='127.0.0.1:0'", "install inference-sidecar[tracing-grpc]"),
]


@pytest.mark.parametrize(("package", "settings", "advice"), MISSING)
def test_a_package_that_is_missing_is_named(package: str, settings: str, advice: str) -> None:
    program = f"""
import asyncio, sys
sys.modules["{package}"] = None
from sidecar import app
from sidecar.config import load
config = load(None, {{"upstream": "http://127.0.0.1:1", "tracing": dict({settings})}}, {{}})
async def main():
    try:
        app._tracing(config, app.upstream_of(config.upstream))
    except app.StartError as failed:
        print(failed)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert advice in done.stdout, done.stderr
