"""One `llm_request` span for each finished sequence, as vLLM exports it over OTLP http/protobuf.

Seen with vLLM 0.32: kind SERVER, scope `vllm.tracing.otel`, no status; start is the arrival, end the last
token, both of the wall clock, as are the attributes for TTFT and end-to-end; queue, prefill, decode and
inference are monotonic. Aborted requests have no span; n sequences have n, each with n = 1. Whoever sends a
`traceparent` that is not sampled gets none. The request id is the response's; completions add `-` and the
index of the prompt. The temperature is left out when it is 0.
"""

import itertools
import os
import secrets
from typing import TYPE_CHECKING, Any

from sidecar.core.tracecontext import RANDOM_BYTES, TraceContext, derive
from sidecar.emulator.clock import WallClock
from sidecar.emulator.engine import Ended
from sidecar.emulator.sequence import Phases

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

INSTALL = "pip install 'inference-sidecar[tracing]'"
SCOPE = "vllm.tracing.otel"
NANOSECONDS = 1e9
PARENT_KNOWN, PARENT_REMOTE = 0x100, 0x200
"""opentelemetry.proto.trace.v1.SpanFlags."""


def trace_of(traceparent: str | None) -> TraceContext:
    """The trace that an incoming request belongs to; its own span's id is new."""
    header = None if traceparent is None else traceparent.encode(errors="replace")
    return derive(header, secrets.token_bytes(RANDOM_BYTES))


def span_of(ended: Ended, clock: WallClock) -> "Span | None":
    """The span of a sequence, `None` when there is none for it."""
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    run, sequence = ended.run, ended.sequence
    trace, phases = run.trace, sequence.phases
    if phases is None or trace is None or trace.sampled is False:
        return None
    parent = trace.parent_id
    return Span(
        trace_id=bytes.fromhex(trace.trace_id),
        span_id=bytes.fromhex(trace.span_id) if ended.choice == 0 else secrets.token_bytes(8),
        parent_span_id=bytes.fromhex(parent or ""),
        name="llm_request",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=int(clock.at(sequence.arrived) * NANOSECONDS),
        end_time_unix_nano=int(clock.at(phases.last) * NANOSECONDS),
        attributes=[_attribute(key, value) for key, value in attributes(ended, phases, clock).items()],
        flags=PARENT_KNOWN if parent is None else PARENT_KNOWN | PARENT_REMOTE,
    )


def attributes(ended: Ended, phases: Phases, clock: WallClock) -> dict[str, float | int | str]:
    """vLLM's attributes of a finished sequence, in its order; latencies in seconds."""
    sequence, asked = ended.sequence, ended.run.asked
    arrived = clock.at(sequence.arrived)
    result: dict[str, float | int | str] = {
        "gen_ai.latency.time_to_first_token": clock.at(phases.first) - arrived,
        "gen_ai.latency.e2e": clock.at(phases.last) - arrived,
        "gen_ai.latency.time_in_queue": phases.queue,
        "gen_ai.usage.prompt_tokens": sequence.work.prompt_tokens,
        "gen_ai.usage.completion_tokens": sequence.tokens,
        "gen_ai.latency.time_in_model_prefill": phases.prefill,
        "gen_ai.latency.time_in_model_decode": phases.decode,
        "gen_ai.latency.time_in_model_inference": phases.prefill + phases.decode,
        "gen_ai.request.id": request_id(ended),
        "gen_ai.request.top_p": asked.top_p,
        "gen_ai.request.max_tokens": asked.max_tokens,
    }
    if asked.temperature:
        result["gen_ai.request.temperature"] = asked.temperature
    return result | {"gen_ai.request.n": 1}


def request_id(ended: Ended) -> str:
    """The engine's own id of a sequence."""
    run = ended.run
    if run.response_id.startswith("cmpl-"):
        return f"{run.response_id}-{ended.choice // run.asked.n}"
    return run.response_id


def export_request(spans: "list[Span]", instance: str) -> bytes:
    """The body of one export; `instance` identifies the process."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

    of_process = {
        "service.instance.id": instance,
        "service.name": "vllm",
        "vllm.instrumenting_module_name": "vllm.llm_engine",
        "vllm.process_id": str(os.getpid()),
    }
    resource = Resource(attributes=list(itertools.starmap(_attribute, of_process.items())))
    scope_spans = ScopeSpans(scope=InstrumentationScope(name=SCOPE), spans=spans)
    of_resource = ResourceSpans(resource=resource, scope_spans=[scope_spans])
    return bytes(ExportTraceServiceRequest(resource_spans=[of_resource]).SerializeToString())


def _attribute(key: str, value: float | str) -> Any:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    return KeyValue(key=key, value=AnyValue(double_value=value))
