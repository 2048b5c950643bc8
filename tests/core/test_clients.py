"""The core's numbers against those that load clients reported of the same requests.

A TCP relay in front of llama.cpp kept every read of three clients (tests/data/clients). Its read times are
what a sidecar in that place would have stamped. The clients stamp in their own event loop and, but for
guidellm, before they connect, so their TTFT may be some milliseconds longer; time between tokens has to
agree.
"""

import base64
import json
from collections import Counter
from typing import Any, NamedTuple

import pytest

from sidecar.core.observation import Observation
from sidecar.core.record import RequestRecord
from tests.replay import DATA, SECOND, Part, Splitter

CLIENTS = DATA / "clients"
MILLISECOND = 1e-3
TOKENS = 32  # asked for, with ignore_eos
CLIENT_LATER = 10  # ms by which a client may see the first token later than the relay


class Keys(NamedTuple):
    """What a client's report calls our numbers (ms), and how many of its requests came through."""

    ttft: str
    time_per_token: str
    tokens: str
    ttfo: str | None
    answered: int
    unanswered: int = 0


REPORTS = {
    # One of its two failures got no answer on a connection that the server was closing; the other never came.
    "vllm": Keys("ttft", "tpot", "output_tokens", None, answered=4, unanswered=1),
    "aiperf": Keys(
        "time_to_first_token",
        "inter_token_latency",
        "output_sequence_length",
        "time_to_first_output_token",
        answered=6,
    ),
    "guidellm": Keys(
        "time_to_first_token_ms",
        "inter_token_latency_ms",
        "output_tokens",
        "time_to_first_output_token_ms",
        answered=6,
    ),
}


class Connection:
    """Both directions of one relayed connection, as one Observation a request."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.unfinished: list[Observation] = []
        self.gaps: list[list[float]] = []
        self._splitters = {"c>s": Splitter(response=False), "s>c": Splitter(response=True)}

    def read(self, direction: str, data: bytes, now: float) -> None:
        for part in self._splitters[direction].feed(data):
            if direction == "c>s":
                self._request(part, now)
            else:
                self._response(part, now)

    def _request(self, part: Part, now: float) -> None:
        if part.head is not None:
            method, path, _ = part.head.start_line.split(b" ")
            self._splitters["s>c"].bodiless.append(method == b"HEAD")
            self.unfinished.append(self._observation(method, path, part, now))
        elif part.kind == "body":
            self.unfinished[-1].request_data(part.data, now)
        else:
            self.unfinished[-1].request_end(now)

    def _observation(self, method: bytes, path: bytes, part: Part, now: float) -> Observation:
        assert part.head is not None
        gaps: list[float] = []
        self.gaps.append(gaps)
        return Observation(
            t0=now,
            method=method.decode(),
            path=path,
            headers=part.head.headers,
            request_id="r",
            trace_id="0" * 32,
            wall=0.0,
            gap_sink=lambda _: lambda gap, _tokens: gaps.append(gap),
        )

    def _response(self, part: Part, now: float) -> None:
        if part.head is not None:
            self.unfinished[0].response_head(part.head.status, part.head.headers, now)
        elif part.kind == "body":
            self.unfinished[0].response_data(part.data, now)
        else:
            self.records.append(self.unfinished.pop(0).finish("clean", now))


def relayed(client: str) -> list[Connection]:
    connections: dict[int, Connection] = {}
    for line in (CLIENTS / f"{client}.tee.jsonl").read_text().splitlines():
        entry = json.loads(line)
        connection = connections.setdefault(entry["conn"], Connection())
        connection.read(entry["dir"], base64.b64decode(entry["b64"]), entry["t_ns"] / SECOND)
    return list(connections.values())


def chats(client: str) -> list[RequestRecord]:
    """The chat requests that were answered, by time per token."""
    records = [r for c in relayed(client) for r in c.records if r.operation == "chat"]
    return sorted(records, key=lambda record: record.tpot or 0.0)


def reported(client: str) -> list[dict[str, Any]]:
    """The client's rows of the requests that succeeded, by time per token: both tell the same order."""
    rows = json.loads((CLIENTS / f"{client}.report.json").read_text())
    key = REPORTS[client].time_per_token
    return sorted((row for row in rows if row[key] is not None), key=lambda row: row[key])


def pairs(client: str) -> list[tuple[RequestRecord, dict[str, Any]]]:
    return list(zip(chats(client), reported(client), strict=True))


@pytest.mark.parametrize("client", REPORTS)
def test_every_answered_request_is_in_the_report(client: str) -> None:
    keys = REPORTS[client]
    assert len(chats(client)) == len(reported(client)) == keys.answered
    left = [o for c in relayed(client) for o in c.unfinished if o.operation == "chat"]
    assert len(left) == keys.unanswered
    assert Counter(record.outcome for record in chats(client)) == {"completed": keys.answered}


@pytest.mark.parametrize("client", REPORTS)
def test_tokens_are_as_reported(client: str) -> None:
    for record, row in pairs(client):
        assert record.output_tokens == row[REPORTS[client].tokens] == TOKENS
        assert record.chunks == TOKENS


@pytest.mark.parametrize("client", REPORTS)
def test_time_per_output_token_agrees_within_one_percent(client: str) -> None:
    for record, row in pairs(client):
        assert record.tpot == pytest.approx(row[REPORTS[client].time_per_token] * MILLISECOND, rel=0.01)
        assert record.tpot_basis == "usage"


@pytest.mark.parametrize("client", REPORTS)
def test_mean_gap_agrees_with_the_inter_token_latency(client: str) -> None:
    """One token a chunk: the mean of the gaps is the reported time between tokens."""
    gaps = [gaps for c in relayed(client) for gaps in c.gaps if gaps]
    means = sorted(sum(g) / len(g) for g in gaps)
    rows = [row[REPORTS[client].time_per_token] * MILLISECOND for row in reported(client)]
    assert means == [pytest.approx(row, rel=0.01) for row in rows]
    assert {len(g) for g in gaps} == {TOKENS - 1}


@pytest.mark.parametrize("client", REPORTS)
def test_first_token_is_seen_up_to_ten_milliseconds_before_the_client(client: str) -> None:
    for record, row in pairs(client):
        assert record.ttft is not None
        later = row[REPORTS[client].ttft] - record.ttft / MILLISECOND
        assert 0 <= later <= CLIENT_LATER


@pytest.mark.parametrize("client", [name for name, keys in REPORTS.items() if keys.ttfo])
def test_first_output_is_seen_up_to_ten_milliseconds_before_the_client(client: str) -> None:
    for record, row in pairs(client):
        assert record.ttfo is not None
        key = REPORTS[client].ttfo
        assert 0 <= row[key] - record.ttfo / MILLISECOND <= CLIENT_LATER


def test_the_sum_of_gaps_is_what_aiperf_calls_inter_chunk_latency() -> None:
    """Gap by gap a busy client is late now and then; together the gaps are the same."""
    ours = sorted(sum(gaps) for c in relayed("aiperf") for gaps in c.gaps if gaps)
    theirs = sorted(sum(row["inter_chunk_latency"]) * MILLISECOND for row in reported("aiperf"))
    assert ours == [pytest.approx(total, rel=0.01) for total in theirs]


@pytest.mark.parametrize("client", REPORTS)
def test_what_else_a_client_asks_for_is_no_llm_request(client: str) -> None:
    others = {r.operation for c in relayed(client) for r in c.records} - {"chat"}
    assert others == {"other"}
