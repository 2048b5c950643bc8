"""Tracing: the sidecar's own spans, and the engine's on their way past it.

A finished request becomes spans (`core.spans`) and goes to a collector (`otlp_exporter`). With a receiver
(`otlp_receiver`) the engine's spans come here: they are matched to requests (`core.span_match`), say what
the engine says of each, and are passed on for the traces that are exported. A request's own span then waits
for the engine's, at most DEADLINE; nothing else waits.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

import msgspec

from sidecar.config import TracingConfig
from sidecar.config_values import split_address
from sidecar.core.held_spans import HeldSpans
from sidecar.core.otlp_frames import Frame, MalformedError, split
from sidecar.core.rate import RateCap
from sidecar.core.record import RequestRecord
from sidecar.core.span_match import EngineSpan, Known, SpanMatcher
from sidecar.core.spans import RANDOM_BYTES, Verdict, request_spans
from sidecar.core.tracecontext import TraceContext, chosen
from sidecar.engines.spans import read
from sidecar.otlp_exporter import SENDERS, Exporter
from sidecar.otlp_messages import Encoder, read_span, rejected
from sidecar.otlp_receiver import receiving

log = logging.getLogger("sidecar.tracing")

DEADLINE = 10.0  # seconds after a request's end in which spans of the engine still join; vLLM needs 5
EXPIRE_SECONDS = 0.5
MAX_SPANS = 5000  # of one export that is received
A_TURN = 10  # spans that are decoded, or requests exported, before the streams run again
FLUSH_SECONDS = 3.0  # for what is queued at the end
SERVICE = "inference-sidecar"

OnTimings = Callable[[RequestRecord, Verdict], None]
Phases = Callable[[RequestRecord], Mapping[str, float | str]]


class _Ended(msgspec.Struct, eq=False):
    """A request that waits for the engine's spans."""

    record: RequestRecord
    trace: TraceContext
    export: bool  # its own span still has to be exported
    told: Verdict | None = None


def _not_completed(record: RequestRecord) -> bool:
    return record.outcome != "completed"


def _no_phases(_record: RequestRecord) -> Mapping[str, float | str]:
    return {}


def _nothing() -> None: ...


def _nobody(_record: RequestRecord, _said: Verdict) -> None: ...


class Tracing:
    """Told when requests begin and end; everything else happens by itself while `running`."""

    def __init__(self, config: TracingConfig, server: tuple[str, int]) -> None:
        """`server`: the engine's address, for the spans. Build it inside a running loop.

        Raises ImportError for gRPC without `grpcio`, ConfigError for wrong headers.
        """
        if config.receive is not None:
            import grpc  # noqa: F401 -- here, so that its absence is told before anything starts
        self._config, self._server = config, server
        self.counts: Counter[str] = Counter()  # spans for a collector, by result
        self.engine_counts: Counter[str] = Counter()  # spans of engines, by result
        self.broken: Callable[[RequestRecord], bool] = _not_completed  # always exported
        self.phases: Phases = _no_phases  # attributes from the join, asked for when a span is exported
        self.catch_up: Callable[[], None] = _nothing  # tells of the requests that have begun or ended
        self.on_timings: OnTimings = _nobody  # never before the request has ended; the latest counts
        self.ports: tuple[int | None, int | None] = (None, None)  # gRPC, HTTP
        self._encoder = Encoder(config.semconv, SERVICE)
        self._cap = RateCap(config.max_spans_per_second, monotonic())
        self._own = self._exporter(config.export)
        self._forward = self._exporter(config.forward)
        self._matcher = SpanMatcher(read, DEADLINE) if config.receives else None
        self._held = HeldSpans()
        self._ended: dict[str, _Ended] = {}
        self._engine: str | None = None  # the latest that sent a span

    def _exporter(self, url: str | None) -> Exporter | None:
        if url is None:
            return None
        sender = SENDERS[self._config.protocol](url, self._config.headers())
        return Exporter(sender, rejected, self.counts)

    def tells_the_engine(self, trace: TraceContext) -> bool:
        """Whether the engine is told that the trace is sampled: always, when its spans come here."""
        return self._config.receives or chosen(trace, self._config.ratio)

    # --- requests

    def started(self, trace: TraceContext, request_id: str) -> None:
        """A request goes to the engine."""
        if self._matcher is not None:
            self._matcher.opened(trace.trace_id, trace.span_id, request_id)

    def finished(self, record: RequestRecord, trace: TraceContext, several: bool) -> bool:
        """It has ended; `several`: with more than one prompt or choice. Returns whether it is exported."""
        now = monotonic()
        wanted = chosen(trace, self._config.ratio) or self.broken(record)
        export = wanted and self._own is not None and self._has_room(3 if record.streaming else 1, now)
        if self._matcher is None:
            if export:
                self._export(record, trace, None)
            return export
        ended = self._ended[trace.span_id] = _Ended(record, trace, export)
        if wanted and self._forward is not None:
            for frame in self._held.want(trace.trace_id):
                self._pass_on(frame, now)
        self._tell(self._matcher.ended(trace.span_id, now, several), ended)
        return export

    def _has_room(self, count: int, now: float) -> bool:
        if self._cap.take(count, now):
            return True
        self.counts["over_rate"] += count
        return False

    def _export(self, record: RequestRecord, trace: TraceContext, said: Verdict | None) -> None:
        assert self._own is not None
        spans = request_spans(
            record,
            trace,
            os.urandom(RANDOM_BYTES),
            server=self._server,
            engine=self._engine,
            said=said,
            phases=self.phases(record),
            version=self._config.semconv,
        )
        for span in spans:
            self._own.put(self._encoder.frame(span))

    # --- the engine's spans

    async def receive(self, export: bytes) -> None:
        """An engine sent this. Raises MalformedError."""
        assert self._matcher is not None
        try:
            frames = split(export, MAX_SPANS)
            spans = await _decode(frames)
        except MalformedError:
            self.engine_counts["malformed"] += 1
            raise
        self.catch_up()
        now = monotonic()
        homes, found = self._matcher.add(spans, now)
        for home, frame in zip(homes, frames, strict=True):
            self._hold(home, frame, now)
        for number, known in enumerate(found, 1):
            ended = self._ended.get(known.span_id)
            if ended is not None:
                self._tell(known, ended)
            if not number % A_TURN:
                await asyncio.sleep(0)

    def _hold(self, home: str | None, frame: Frame, now: float) -> None:
        if home is None:
            self.engine_counts["unknown"] += 1
        elif self._held.wanted(home):
            self._pass_on(frame, now)
        elif self._forward is None:
            self.engine_counts["not_forwarded"] += 1
        elif not self._held.add(home, frame):
            self.engine_counts["held_full"] += 1

    def _pass_on(self, frame: Frame, now: float) -> None:
        assert self._forward is not None
        if self._has_room(1, now):
            self.engine_counts["forwarded"] += 1
            self._forward.put(frame)

    def _tell(self, known: Known, ended: _Ended) -> None:
        """What the engine's spans say of a request goes to the join, and its own span to the collector."""
        if known.said is None or known.said == ended.told:
            return
        self._engine = known.engine or self._engine
        ended.told = known.said
        self.on_timings(ended.record, known.said)
        if ended.export:
            ended.export = False
            self._export(ended.record, ended.trace, known.said)

    def expire(self, now: float) -> Iterator[None]:
        """Give up waiting for requests that ended DEADLINE ago, one a step."""
        assert self._matcher is not None
        for known in self._matcher.expire(now):
            ended = self._ended.pop(known.span_id)
            self._tell(known, ended)
            if ended.export:
                self._export(ended.record, ended.trace, None)
            if not self._matcher.knows(known.trace_id):
                self._drop(self._held.forget(known.trace_id))
            yield

    def _drop(self, frames: list[Frame]) -> None:
        if frames:
            self.engine_counts["not_forwarded"] += len(frames)

    # --- its life

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Export and receive; at the end what waits is exported.

        Raises OSError when an address can't be bound.
        """
        async with AsyncExitStack() as stack:
            for exporter in (self._forward, self._own):
                if exporter is not None:
                    task = asyncio.create_task(exporter.run())
                    stack.push_async_callback(exporter.close, task, FLUSH_SECONDS)
            if self._matcher is not None:
                addresses = (self._config.receive, self._config.receive_http)
                bound = [None if text is None else split_address(text) for text in addresses]
                self.ports = await stack.enter_async_context(receiving(self.receive, bound[0], bound[1]))
                expiring = asyncio.create_task(self._expiring())
                stack.callback(lambda: list(self.expire(float("inf"))))
                stack.callback(expiring.cancel)
            yield

    async def _expiring(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            try:
                for number, _ in enumerate(self.expire(monotonic()), 1):
                    if not number % A_TURN:
                        await asyncio.sleep(0)
            except Exception:
                log.exception("a request's spans are lost")


async def _decode(frames: list[Frame]) -> list[EngineSpan]:
    scopes: dict[bytes, str] = {}
    spans = []
    for number, frame in enumerate(frames, 1):
        spans.append(read_span(frame, scopes))
        if not number % A_TURN:
            await asyncio.sleep(0)
    return spans
