"""Bytes to payloads: server-sent events, newline-delimited JSON, one JSON body.

Each framer is fed pieces that may be cut anywhere and returns the frames that became complete:
(event type, payload), the type b"" where the protocol has none. What it returns does not depend on
where the bytes were cut.

Server-sent events follow the HTML standard, section 9.2.6 "Interpreting an event stream": lines end in
LF, CR or CRLF, one BOM at the very start is dropped, `data` lines are joined by LF, one space after the
colon is dropped, a line that starts with a colon is a comment, a blank line dispatches, and an event
that has not been dispatched at the end is discarded.

Bounded: an event (its lines without comments) or line of more than MAX_EVENT bytes is skipped and
counted in `skipped`; nothing of it is held from the moment on that it is known to be too long.
"""

from typing import Protocol

MAX_EVENT = 1 << 20
_BOM = b"\xef\xbb\xbf"

Frame = tuple[bytes, bytes]


class Framer(Protocol):
    """Cuts a body into payloads."""

    skipped: int  # events that were too long
    idle: bool  # between two events, with nothing held back

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes, return the frames that they complete."""

    def end(self) -> list[Frame]:
        """The body is complete: the frames that only its end completes."""


class SSEFramer:
    """Server-sent events. A comment, `id` or `retry` gives no frame; an event without `data` neither."""

    def __init__(self) -> None:
        self.skipped = 0
        self.idle = False
        self._start: bytes | None = b""  # what may be the BOM, until it is decided
        self._after_cr = False
        self._line = bytearray()  # of an incomplete line
        self._line_dropped = False
        self._clear()

    def _clear(self) -> None:
        self._data: list[bytes] = []
        self._type = b""
        self._size = 0
        self._too_long = False

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes, return the events that they complete."""
        if self._start is not None:
            data = self._without_bom(data)
        data = self._with_lf(data)
        frames: list[Frame] = []
        start, fresh = 0, not (self._line or self._line_dropped or self._size)
        while (end := data.find(b"\n", start)) >= 0:
            if fresh and data.startswith(b"data: ", start) and data[end + 1 : end + 2] == b"\n":
                self._dispatch_single(data[start + 6 : end], frames)
                start = end + 2
                continue
            self._end_line(data[start:end], frames)
            start = end + 1
            fresh = not self._size
        self._hold(data[start:])
        self.idle = not (self._line or self._line_dropped or self._size or self._after_cr or self._start)
        return frames

    def end(self) -> list[Frame]:
        """An incomplete event is discarded, as the standard asks."""
        return []

    def _without_bom(self, data: bytes) -> bytes:
        data = (self._start or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _with_lf(self, data: bytes) -> bytes:
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _dispatch_single(self, payload: bytes, frames: list[Frame]) -> None:
        """The usual event, one `data: ` line and a blank one, complete in one read."""
        if len(payload) + 7 > MAX_EVENT:
            self.skipped += 1
        else:
            frames.append((b"", payload))

    def _end_line(self, rest: bytes, frames: list[Frame]) -> None:
        line = rest
        if self._line:
            line = bytes(self._line) + rest
            self._line.clear()
        if self._line_dropped:  # a comment, or part of an event that is too long already
            self._line_dropped = False
        elif not line:
            self._dispatch(frames)
        elif not line.startswith(b":"):
            self._size += len(line) + 1
            if self._size > MAX_EVENT:
                self._skip()
            else:
                self._field(line)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value

    def _dispatch(self, frames: list[Frame]) -> None:
        if self._too_long:
            self.skipped += 1
        elif self._data:
            frames.append((self._type, b"\n".join(self._data)))
        self._clear()

    def _skip(self) -> None:
        self._too_long = True
        self._data = []

    def _hold(self, rest: bytes) -> None:
        """Keep the start of a line, unless nothing will be done with it."""
        if not rest or self._line_dropped:
            return
        if not self._line and rest.startswith(b":"):
            self._line_dropped = True
            return
        if self._size + len(self._line) + len(rest) + 1 > MAX_EVENT:
            self._size = MAX_EVENT + 1
            self._skip()
            self._line.clear()
            self._line_dropped = True
            return
        self._line += rest


class LinesFramer:
    """Newline-delimited JSON: each line that is not blank is a payload; the last may lack its LF."""

    def __init__(self) -> None:
        self.skipped = 0
        self.idle = False
        self._line = bytearray()
        self._dropped = False

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes, return the lines that they complete."""
        *complete, rest = data.split(b"\n")
        frames: list[Frame] = []
        for part in complete:
            self._hold(part)
            frames += self.end()
        self._hold(rest)
        return frames

    def end(self) -> list[Frame]:
        """The line at hand is complete."""
        line = bytes(self._line).strip()
        self._line.clear()
        if self._dropped:
            self.skipped += 1
            self._dropped = False
            return []
        return [(b"", line)] if line else []

    def _hold(self, part: bytes) -> None:
        if self._dropped:
            return
        if len(self._line) + len(part) > MAX_EVENT:
            self._dropped = True
            self._line.clear()
        else:
            self._line += part


class BodyFramer:
    """One JSON body, a payload at its end; a body over MAX_EVENT is skipped."""

    def __init__(self) -> None:
        self.skipped = 0
        self.idle = False
        self._body = bytearray()
        self._too_long = False

    def feed(self, data: bytes) -> list[Frame]:
        """Keep the next bytes."""
        if self._too_long:
            return []
        if len(self._body) + len(data) > MAX_EVENT:
            self._too_long = True
            self._body.clear()
        else:
            self._body += data
        return []

    def end(self) -> list[Frame]:
        """The whole body, if it was not too long."""
        if self._too_long:
            self.skipped += 1
            return []
        return [(b"", bytes(self._body))] if self._body else []
