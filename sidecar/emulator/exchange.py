"""One request for tokens and its response: submitted, delivered, ended or broken."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http import HttpVersion11

from sidecar.emulator import asked, wire
from sidecar.emulator.answers import Answer
from sidecar.emulator.asked import Asked
from sidecar.emulator.clock import WallClock
from sidecar.emulator.engine import Engine, Run
from sidecar.emulator.options import Fault, Options
from sidecar.emulator.sequence import Sequence
from sidecar.emulator.spans import trace_of
from sidecar.emulator.stream import Stream

EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One generating endpoint: how its request is read and its response written."""

    id_prefix: str
    read: Callable[[bytes, tuple[str, ...], int], Asked]
    events: Callable[[wire.Reply], wire.EventWriter]
    body: Callable[[wire.Reply, int | None, wire.Json | None], bytes]


ENDPOINTS = {
    "/v1/chat/completions": Endpoint("chatcmpl-", asked.read_chat, wire.chat_events, wire.chat_body),
    "/v1/completions": Endpoint("cmpl-", asked.read_completion, wire.completion_events, wire.completion_body),
}


class EngineError(Exception):
    """The engine broke before anything was sent."""


@dataclass(eq=False, slots=True)
class Exchange:
    """A request that was read. `fault` is what goes wrong with it."""

    engine: Engine
    clock: WallClock
    options: Options
    endpoint: Endpoint
    request: web.Request
    wants: Asked
    fault: Fault | None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.request.headers.get("X-Request-Id") or secrets.token_hex(8)

    async def answer(self) -> web.StreamResponse:
        """All at once. Raises EngineError."""
        reply = self._reply()
        run = self._submit(reply.answers, lambda _choices: None)
        reason = "abort"
        try:
            await run.done
            if run.given == run.limit:
                reason = await self._break()
                raise EngineError
            body = self.endpoint.body(reply, *self._facts(run))
            return web.Response(body=body, content_type="application/json")
        finally:
            self.engine.leave(run, reason)

    async def stream(self) -> web.StreamResponse:
        """Event by event. Raises EngineError."""
        if self.fault is not None and self.fault.kind == "error" and not self.fault.tokens:
            return await self.answer()
        response = web.StreamResponse(headers=EVENT_STREAM)
        await response.prepare(self.request)
        reply = self._reply()
        writer = self.endpoint.events(reply)
        stream = self._open(writer)
        run = self._submit(reply.answers, stream.deliver)
        reason = "abort"
        try:
            await run.done
            if run.given == run.limit:
                reason = await self._break()
                await stream.end((wire.BROKEN, wire.DONE))
            else:
                await stream.end(writer.end(*self._facts(run)))
            await response.write_eof()
            return response
        finally:
            stream.close()
            self.engine.leave(run, reason)

    def _open(self, writer: wire.EventWriter) -> Stream:
        transport = self.request.transport
        if transport is None:
            raise asyncio.CancelledError
        is_chunked = self.request.version >= HttpVersion11
        stream = Stream(transport, writer, self.options, is_chunked)
        if self.options.api.keep_alive_interval is not None:
            stream.keep_alive(self.options.api.keep_alive_interval)
        return stream

    def _reply(self) -> wire.Reply:
        created = int(self.clock.at(time.monotonic()))
        answers = self.engine.answers(self.wants)
        return wire.Reply(self.wants, answers, self.endpoint.id_prefix + self.name, created)

    def _submit(self, answers: tuple[Answer, ...], deliver: Callable[[Iterable[int]], None]) -> Run:
        trace = None
        if self.options.otlp is not None:
            trace = trace_of(self.request.headers.get("traceparent"))
        limit = None if self.fault is None else self.fault.tokens
        response_id = self.endpoint.id_prefix + self.name
        return self.engine.submit(self.wants, answers, self.name, response_id, trace, deliver, limit)

    async def _break(self) -> str:
        """The fault happens: returns why the engine gave up, or not before the client has gone."""
        assert self.fault is not None
        if self.fault.kind == "error":
            return "error"
        if self.fault.kind == "cut" and self.request.transport is not None:
            self.request.transport.close()
        # The loss of the connection cancels this.
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody sets that future")

    def _facts(self, run: Run) -> tuple[int | None, wire.Json | None]:
        """Cached tokens and the engine's own timings, as far as they are told."""
        api, cached, metrics = self.options.api, None, None
        if api.prompt_tokens_details:
            cached = sum(sequence.cached_tokens for sequence in run.sequences[:: self.wants.n])
        if api.per_request_metrics and len(run.sequences) == 1:
            metrics = metrics_of(run.sequences[0])
        return cached, metrics


def metrics_of(sequence: Sequence) -> wire.Json | None:
    """vLLM's in-band `metrics` of a finished sequence; its time to first token is the prefill."""
    phases = sequence.phases
    if phases is None:
        return None
    gaps, inference = sequence.tokens - 1, phases.prefill + phases.decode
    return {
        "time_to_first_token_ms": 1000 * phases.prefill,
        "generation_time_ms": 1000 * phases.decode,
        "queue_time_ms": 1000 * phases.queue,
        "mean_itl_ms": 1000 * phases.decode / gaps if gaps else None,
        "tokens_per_second": sequence.tokens / inference if inference else None,
    }
