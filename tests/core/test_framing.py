"""Payloads out of bytes: the HTML standard's rules for event streams, at any split, bounded."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core import framing
from sidecar.core.framing import MAX_EVENT, BodyFramer, LinesFramer, SSEFramer

# Examples and rules: https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.5 and 9.2.6.
STREAMS = {
    "a line of data and a blank line make an event": (b"data: a\n\n", [(b"", b"a")]),
    "the space after the colon is optional": (b"data:a\n\n", [(b"", b"a")]),
    "only one space is dropped": (b"data:  a\n\n", [(b"", b" a")]),
    "several data lines are joined by LF": (b"data: a\ndata: b\ndata\n\n", [(b"", b"a\nb\n")]),
    "CRLF ends a line": (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
    "CR alone ends a line": (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
    "line ends may be mixed": (b"data: a\r\ndata: b\n\r\ndata: c\r\n\n", [(b"", b"a\nb"), (b"", b"c")]),
    "a BOM at the start is dropped": (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
    "a second BOM is not": (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
    "a BOM later is part of a field's name": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"", b"a")]),
    "the beginning of a BOM alone is not one": (b"\xef\xbbdata: a\n\ndata: b\n\n", [(b"", b"b")]),
    "a comment is ignored": (b": ping\n\n:\n\ndata: a\n: in between\ndata: b\n\n", [(b"", b"a\nb")]),
    "the type is given": (b"event: error\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (b"", b"b")]),
    "a type without data gives nothing": (b"event: error\n\ndata: b\n\n", [(b"", b"b")]),
    "id, retry and unknown fields are ignored": (b"id: 1\nretry: 2\nx: 3\ndata: a\n\n", [(b"", b"a")]),
    "a data line without colon is an empty line": (b"data\n\ndata\ndata\n\n", [(b"", b""), (b"", b"\n")]),
    "several blank lines give no further events": (
        b"\n\n\ndata: a\n\n\n\ndata: b\n\n",
        [(b"", b"a"), (b"", b"b")],
    ),
    "an event without its blank line is discarded": (b"data: a\n\ndata: b\n", [(b"", b"a")]),
    "a field's name is compared whole": (b" data: a\ndatas: b\nDATA: c\n\n", []),
    "the value may hold colons": (b"data: a: b:c\n\n", [(b"", b"a: b:c")]),
    "what is not UTF-8 passes as it is": (b"data: \xff\xfe\n\n", [(b"", b"\xff\xfe")]),
    "the standard's two-event example": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [(b"", b"first event"), (b"", b"second event"), (b"", b" third event")],
    ),
}


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def frames(framer: framing.Framer, parts: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [frame for part in parts for frame in framer.feed(part)] + framer.end()


@pytest.mark.parametrize(("data", "expected"), STREAMS.values(), ids=STREAMS.keys())
def test_server_sent_events_by_the_standard(data: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert frames(SSEFramer(), [data]) == expected
    assert frames(SSEFramer(), [bytes([byte]) for byte in data]) == expected
    for cut in range(len(data)):
        assert frames(SSEFramer(), pieces(data, [cut])) == expected


EVENT_BYTES = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"data: ", b"data:", b"event: error", b":", b"\xef\xbb\xbf", b"x", b"{}", b" "]
    )
).map(b"".join)


@given(data=EVENT_BYTES, cuts=st.lists(st.integers(0, 60)))
def test_any_split_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    whole = frames(SSEFramer(), [data])
    assert frames(SSEFramer(), pieces(data, [min(cut, len(data)) for cut in cuts])) == whole
    assert frames(SSEFramer(), [bytes([byte]) for byte in data]) == whole


@given(data=EVENT_BYTES)
def test_what_a_strict_reading_of_the_standard_gives(data: bytes) -> None:
    assert frames(SSEFramer(), [data]) == by_the_letter(data)


def by_the_letter(data: bytes) -> list[tuple[bytes, bytes]]:
    """The standard's algorithm, one step at a time, on the whole stream."""
    text = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found, buffer, kind = [], b"", b""
    for line in text.split(b"\n")[:-1]:
        if line == b"":
            if buffer:
                found.append((kind, buffer[:-1]))
            buffer, kind = b"", b""
            continue
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            buffer += value + b"\n"
        elif name == b"event":
            kind = value
    return found


LIMIT = 64
TOO_LONG = {
    "in one line": b"data: " + b"x" * LIMIT + b"\n\n",
    "in several lines": (b"data: " + b"x" * 20 + b"\n") * 4 + b"\n",
    "in a field that nobody reads": b"data: a\nid: " + b"x" * LIMIT + b"\n\n",
    "in a type": b"event: " + b"x" * LIMIT + b"\ndata: a\n\n",
}


@pytest.mark.parametrize("data", TOO_LONG.values(), ids=TOO_LONG.keys())
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_event_that_is_too_long_is_skipped_and_the_next_one_read(
    data: bytes, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_EVENT", LIMIT)
    stream = b"data: a\n\n" + data + b"data: b\n\n"
    framer = SSEFramer()
    found = frames(framer, [stream[i : i + step] for i in range(0, len(stream), step)])
    assert found == [(b"", b"a"), (b"", b"b")]
    assert framer.skipped == 1


@given(length=st.integers(LIMIT - 12, LIMIT + 4), cuts=st.lists(st.integers(0, 90)))
def test_the_limit_does_not_depend_on_the_split(length: int, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "MAX_EVENT", LIMIT)
        data = b"data: " + b"x" * length + b"\n\n"
        framer = SSEFramer()
        found = frames(framer, pieces(data, [min(cut, len(data)) for cut in cuts]))
        assert (len(found), framer.skipped) == ((1, 0) if length + 7 <= LIMIT else (0, 1))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_long_comment_is_dropped_and_harms_no_event(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_EVENT", LIMIT)
    stream = b"data: a\n:" + b"x" * 500 + b"\ndata: b\n\n"
    framer = SSEFramer()
    assert frames(framer, [stream[i : i + step] for i in range(0, len(stream), step)]) == [(b"", b"a\nb")]
    assert framer.skipped == 0


def test_nothing_of_an_event_over_a_mebibyte_is_held() -> None:
    framer = SSEFramer()
    framer.feed(b"data: ")
    for _ in range(80):
        assert framer.feed(b"x" * 65536) == []
        assert len(framer._line) <= MAX_EVENT
    assert len(framer._line) == 0
    assert framer.feed(b"\n\ndata: b\n\n") == [(b"", b"b")]


IDLE = {
    "after an event": (b"data: a\n\n", True),
    "after a comment": (b"data: a\n\n: ping\n", True),
    "inside a line": (b"data: a\n\nd", False),
    "inside an event": (b"data: a\n\nevent: error\n", False),
    "inside a comment": (b"data: a\n\n: pi", False),
    "when the LF of a CRLF may still come": (b"data: a\r\n\r", False),
    "inside a BOM": (b"\xef\xbb", False),
}


@pytest.mark.parametrize(("data", "idle"), IDLE.values(), ids=IDLE.keys())
def test_idle_means_that_the_next_byte_begins_an_event(data: bytes, idle: bool) -> None:
    framer = SSEFramer()
    framer.feed(data)
    assert framer.idle is idle


LINES = {
    "one object a line": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
    "the last line may lack its end": (b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
    "CRLF and blank lines": (b'{"a":1}\r\n\r\n{"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("data", "expected"), LINES.values(), ids=LINES.keys())
def test_newline_delimited_json_at_any_split(data: bytes, expected: list[bytes]) -> None:
    for parts in (
        [data],
        [bytes([byte]) for byte in data],
        *(pieces(data, [cut]) for cut in range(len(data))),
    ):
        assert [payload for _, payload in frames(LinesFramer(), parts)] == expected


def test_a_line_that_is_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_EVENT", LIMIT)
    framer = LinesFramer()
    assert frames(framer, [b"x" * 40, b"x" * 40, b"x\n{}", b"\n"]) == [(b"", b"{}")]
    assert framer.skipped == 1


def test_a_body_is_one_payload_at_its_end() -> None:
    framer = BodyFramer()
    assert framer.feed(b'{"a"') == framer.feed(b":1}") == []
    assert framer.end() == [(b"", b'{"a":1}')]
    assert BodyFramer().end() == []


def test_a_body_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_EVENT", LIMIT)
    framer = BodyFramer()
    for _ in range(10):
        framer.feed(b"x" * 10)
    assert len(framer._body) == 0
    assert framer.end() == []
    assert framer.skipped == 1
