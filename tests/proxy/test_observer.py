"""Where the relay meets the core."""

import time
from typing import Any

from sidecar.core.tracecontext import TraceContext
from sidecar.proxy import RequestStart
from sidecar.proxy.observer import StreamObserver


class Sinks:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def started(self, observer: StreamObserver) -> None: ...

    def finished(self, observer: StreamObserver, record: Any) -> None:
        self.records.append(record)


def test_the_wall_clock_of_a_request_is_that_of_its_head_although_it_is_read_later() -> None:
    """The observer is made when the request is on its way: here, a minute after its head came."""
    sinks: Any = Sinks()
    trace = TraceContext("a" * 32, None, "b" * 16, None)
    t0 = time.monotonic() - 60
    before = time.time() - 60
    observer = StreamObserver(RequestStart("GET", b"/x", (), t0, "r", trace), sinks, 1.0)
    after = time.time() - 60
    observer.finish("clean", time.monotonic(), 200)
    assert before - 1 < sinks.records[0].wall < after + 1
