"""Spans that wait for a decision about their trace."""

from sidecar.core.held_spans import HeldSpans
from sidecar.core.otlp_frames import Frame

A, B = Frame(b"r", b"s", b"a" * 8), Frame(b"r", b"s", b"b" * 8)


def test_what_is_wanted_comes_out_once_and_is_not_held_any_more() -> None:
    held = HeldSpans()
    assert held.add("t", A)
    assert held.add("u", B)
    assert not held.wanted("t")
    assert held.want("t") == [A]
    assert held.want("t") == []
    assert held.wanted("t")
    assert not held.wanted("u")


def test_what_is_forgotten_is_not_wanted_either() -> None:
    held = HeldSpans()
    held.want("t")
    held.add("u", B)
    assert held.forget("t") == []
    assert held.forget("u") == [B]
    assert not held.wanted("t")


def test_there_is_room_for_so_many_bytes_and_again_when_some_left() -> None:
    held = HeldSpans(max_bytes=20)
    assert held.add("t", A)
    assert held.add("u", B)
    assert not held.add("t", A)
    held.forget("u")
    assert held.add("t", A)
