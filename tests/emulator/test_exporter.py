"""Spans are posted in batches, late, and a receiver that fails harms nobody."""

import asyncio

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.emulator.exporter import MOST_IN_BATCH, Exporter, endpoint

URLS = {
    "http://host:4318": "http://host:4318/v1/traces",
    "http://host:4318/": "http://host:4318/v1/traces",
    "http://host:4318/own/path": "http://host:4318/own/path",
}


@pytest.mark.parametrize(("url", "expected"), URLS.items())
def test_the_path_is_otlp_s_unless_there_is_one(url, expected) -> None:
    assert endpoint(url) == expected


async def test_what_comes_within_the_delay_is_one_batch(collector) -> None:
    exporter = Exporter(collector.url, delay=0.01)
    for name in ("a", "b", "c"):
        exporter.add(Span(name=name))
    assert [span.name for span in await collector.spans(3)] == ["a", "b", "c"]
    assert collector.posts == [("/v1/traces", "application/x-protobuf")]
    await exporter.close()


async def test_a_full_batch_goes_at_once_and_the_rest_when_it_closes(collector) -> None:
    exporter = Exporter(collector.url, delay=3600.0)
    for number in range(MOST_IN_BATCH + 1):
        exporter.add(Span(name=str(number)))
    await collector.spans(MOST_IN_BATCH)
    assert len(collector.received) == MOST_IN_BATCH
    await exporter.close()
    assert len(collector.received) == MOST_IN_BATCH + 1


async def test_a_receiver_that_refuses_is_said_once(collector, capsys) -> None:
    collector.status = 503
    exporter = Exporter(collector.url, delay=0.0)
    for posts in (1, 2):
        exporter.add(Span(name="a"))
        await collector.posted(posts)
    await exporter.close()
    assert capsys.readouterr().err.count("could not export spans") == 1


async def test_a_receiver_that_is_not_there_is_said(unused_tcp_port, capsys) -> None:
    exporter = Exporter(f"http://127.0.0.1:{unused_tcp_port}", delay=0.0)
    exporter.add(Span(name="a"))
    await asyncio.sleep(0)
    await exporter.close()
    assert "could not export spans" in capsys.readouterr().err
