"""A few top-level members of a JSON object that is too long to keep, found as it passes.

A request may carry 200 MB of messages before its `model`. The scanner follows strings, brackets and the
object's own keys, nothing else. A long string is skipped by `bytes.find` for its closing quote; inside a
nested value a whole stretch is skipped at once when its brackets, its strings taken out, cannot lead back
to the top; only what is left is followed step by step. It holds the members that were asked for, at most
MAX_HELD bytes of them, and never the rest. A piece that would take too many steps makes it give up.

It does not validate: `complete` only says that the outer object was closed. Keys are compared after
decoding, so `"mod\\u0065l"` is `model`; of a repeated key the last counts, as in JSON decoders.
"""

import re
from collections.abc import Collection
from enum import Enum, auto

import msgspec

MAX_HELD = 65536
MAX_KEY = 256
_STRUCTURE = re.compile(rb'["{}\[\],:]')
_ESCAPED = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # up to the quote that ends a string
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WHOLE_STRINGS = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STRETCH = 1024  # a shorter stretch is followed step by step
_REDUCTIONS = 8  # nesting inside a stretch that is seen through
_STEPS_PER_BYTE = 0.25  # a step costs about a microsecond: 16 ms for a piece of 64 KiB
_SPACE = b" \t\r\n"


class _Place(Enum):
    """Where the scanner is in the outer object."""

    BEFORE = auto()  # of the object
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    AFTER = auto()
    NOT_AN_OBJECT = auto()


class ObjectScanner:
    """Fed the pieces of one JSON object, cut anywhere."""

    def __init__(self, wanted: Collection[bytes], counted: bytes = b"") -> None:
        """Keep the members `wanted`; of the array `counted` only learn how many strings or arrays it has."""
        self.members: dict[bytes, bytes] = {}
        self.elements: int | None = None
        self._wanted = wanted
        self._counted = counted
        self._place = _Place.BEFORE
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the next byte belongs to a backslash at the end of the last piece
        self._held: bytearray | None = None
        self._held_sizes = 0
        self._key = b""
        self._counting = False

    @property
    def complete(self) -> bool:
        """Whether the outer object was closed."""
        return self._place is _Place.AFTER

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Never raises."""
        position, size, try_at = 0, len(data), 0
        steps = 4096 + int(size * _STEPS_PER_BYTE)
        while position < size:
            steps -= 1
            if self._place is _Place.BEFORE:
                position = self._begin(data, position)
            elif self._place in (_Place.AFTER, _Place.NOT_AN_OBJECT):
                return
            elif self._in_string:
                position = self._string(data, position)
            elif self._depth > 1 and position >= try_at and (end := self._nested(data, position)):
                position = end
            elif steps < 0:
                self._place = _Place.NOT_AN_OBJECT
            else:
                try_at = max(try_at, position + _STRETCH) if position >= try_at else try_at
                position = self._between_strings(data, position)

    def _nested(self, data: bytes, position: int) -> int:
        """Skip the longest stretch that surely stays inside the nested value; 0 when there is none."""
        size = len(data) - position
        while size >= _STRETCH:
            match = _WHOLE_STRINGS.match(data, position, position + size)
            end = match.end() if match else position
            if end - position >= _STRETCH and self._skipped(data[position:end]):
                self._hold(data, position, end)
                return end
            size //= 2
        return 0

    def _skipped(self, stretch: bytes) -> bool:
        bare, strings = _STRING.subn(b"", stretch)
        brackets = bare.translate(None, _NO_BRACKETS)
        # What may be prompts: strings, and flat arrays of tokens; objects are none.
        elements = 0 if b"{" in brackets else strings + brackets.count(b"[")
        for _ in range(_REDUCTIONS):
            shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
            if len(shorter) == len(brackets):
                break
            brackets = shorter
        closing = brackets.count(b"}") + brackets.count(b"]")
        if self._depth - closing <= 1:
            return False
        if self._counting and self.elements is not None:
            self.elements += elements
        self._depth += len(brackets) - 2 * closing
        return True

    def _begin(self, data: bytes, position: int) -> int:
        rest = data[position:].lstrip(_SPACE)
        if rest:
            self._place = _Place.KEY if rest[:1] == b"{" else _Place.NOT_AN_OBJECT
            self._depth = 1
        return len(data) - len(rest) + 1 if rest else len(data)

    def _string(self, data: bytes, position: int) -> int:
        """Skip to behind the closing quote, or to the end of the piece."""
        if self._escaped:
            self._escaped = False
            self._hold(data, position, position + 1)
            return position + 1
        end = data.find(b'"', position)
        if end > position and data[end - 1] == 92:  # a backslash: the quote may be part of the string
            end = _ESCAPED.match(data, position).end()  # type: ignore[union-attr]  # it matches nothing too
            end = end if data[end : end + 1] == b'"' else -1
        stop = len(data) if end < 0 else end + 1
        self._hold(data, position, stop)
        if end < 0:
            tail = data[position:]
            self._escaped = (len(tail) - len(tail.rstrip(b"\\"))) % 2 == 1
            return stop
        self._in_string = False
        if self._depth == 1 and self._place is _Place.KEY:
            self._end_key()
        return stop

    def _between_strings(self, data: bytes, position: int) -> int:
        quote = data.find(b'"', position)
        stop = len(data) if quote < 0 else quote
        closing = data.count(b"}", position, stop) + data.count(b"]", position, stop)
        if self._depth - closing > 1:  # whatever the order, this cannot lead back to the outer object
            opening = data.count(b"[", position, stop)
            if self._counting and self.elements is not None:
                self.elements += opening  # arrays of tokens are flat, so each is a prompt
            self._depth += opening + data.count(b"{", position, stop) - closing
            self._hold(data, position, stop)
            position = stop
        else:
            position = self._structure(data, position, stop)
        if position == quote:
            self._begin_string()
            self._hold(data, quote, quote + 1)
            position += 1
        return position

    def _begin_string(self) -> None:
        self._in_string = True
        if self._depth == 1 and self._place is _Place.KEY:
            self._held = bytearray()
        elif self._depth == 2 and self._counting and self.elements is not None:
            self.elements += 1

    def _structure(self, data: bytes, position: int, stop: int) -> int:
        """Follow brackets, commas and colons one by one up to the next string."""
        while position < stop and self._place is not _Place.AFTER:
            match = _STRUCTURE.search(data, position, stop)
            at = match.start() if match else stop
            self._hold(data, position, at)
            if match is None:
                return stop
            self._symbol(match.group(), data, at)
            position = at + 1
        return position

    def _symbol(self, symbol: bytes, data: bytes, at: int) -> None:
        if symbol in b"}]":
            self._depth -= 1
            if not self._depth:
                self._end_object(symbol)
                return
        elif self._depth == 1 and symbol == b",":
            self._end_member()
            return
        elif self._depth == 1 and symbol == b":" and self._place is _Place.COLON:
            self._begin_value()
            return
        self._hold(data, at, at + 1)
        if symbol in b"{[":
            self._depth += 1
            if symbol == b"[" and self._counting:
                self._count_array()

    def _count_array(self) -> None:
        if self._depth == 2:
            self.elements = 0
        elif self._depth == 3 and self.elements is not None:
            self.elements += 1

    def _end_key(self) -> None:
        self._key = _decoded(bytes(self._held or b"")[1:-1])
        self._held = None
        self._place = _Place.COLON

    def _begin_value(self) -> None:
        self._place = _Place.VALUE
        self._held = bytearray() if self._key in self._wanted else None
        self._counting = self._key == self._counted
        if self._counting:
            self.elements = None

    def _end_object(self, symbol: bytes) -> None:
        self._end_member()
        self._place = _Place.AFTER if symbol == b"}" else _Place.NOT_AN_OBJECT

    def _end_member(self) -> None:
        if self._held is not None and self._place is _Place.VALUE:
            self.members[self._key] = bytes(self._held).strip(_SPACE)
            self._held_sizes += len(self._held)
        elif self._key in self._wanted:
            self.members.pop(self._key, None)
        self._held, self._counting, self._key = None, False, b""
        self._place = _Place.KEY

    def _hold(self, data: bytes, start: int, stop: int) -> None:
        held = self._held
        if held is None:
            return
        limit = MAX_KEY if self._place is _Place.KEY else MAX_HELD - self._held_sizes
        if len(held) + stop - start > limit:
            self._held = None
        else:
            held += data[start:stop]


def _decoded(key: bytes) -> bytes:
    if b"\\" not in key:
        return key
    try:
        return msgspec.json.decode(b'"' + key + b'"', type=str).encode()
    except ValueError:
        return key
