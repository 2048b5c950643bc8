"""A copy of a compressed body, decompressed for the observer; what passes stays as it is.

Bounded: at most MAX_OUTPUT bytes of output a read, and an overall ratio cap, so that a small body that
expands without end costs a fixed amount and ends the observing, never the response.
"""

import zlib
from collections.abc import Callable
from typing import Protocol

MAX_OUTPUT = 262144
MAX_RATIO = 200
MAX_WINDOW = 1 << 23
ZSTD_INPUT = 16
RATIO_FREE = 1 << 20  # the ratio is only looked at beyond this much output


class UndecodableError(Exception):
    """The body is not what its Content-Encoding says, or it expands too far."""


class _Engine(Protocol):
    def __call__(self, data: bytes) -> bytes: ...


def _zlib(wbits: int) -> Callable[[], _Engine]:
    def make() -> _Engine:
        inflate = zlib.decompressobj(wbits)

        def feed(data: bytes) -> bytes:
            out = inflate.decompress(data, MAX_OUTPUT)
            if inflate.unconsumed_tail:
                raise UndecodableError("more than MAX_OUTPUT bytes in one read")
            return out

        return feed

    return make


def _brotli() -> _Engine:
    import brotli

    inflate = brotli.Decompressor()

    def feed(data: bytes) -> bytes:
        out = bytes(inflate.process(data, output_buffer_limit=MAX_OUTPUT))
        if not inflate.is_finished() and not inflate.can_accept_more_data():
            raise UndecodableError("more than MAX_OUTPUT bytes in one read")
        return out

    return feed


def _zstandard() -> _Engine:
    import zstandard

    decompress = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj().decompress

    def feed(data: bytes) -> bytes:
        # The library has no bound on output; a few bytes of input hold few blocks, of 128 KiB at most each.
        out = bytearray()
        for at in range(0, len(data), ZSTD_INPUT):
            out += decompress(data[at : at + ZSTD_INPUT])
            if len(out) > MAX_OUTPUT:
                raise UndecodableError("more than MAX_OUTPUT bytes in one read")
        return bytes(out)

    return feed


_ENGINES: dict[bytes, Callable[[], _Engine]] = {
    b"gzip": _zlib(31),
    b"x-gzip": _zlib(31),
    b"deflate": _zlib(15),
    b"br": _brotli,
    b"zstd": _zstandard,
}


class Decoder:
    """Feeds one body through the decompressor of its Content-Encoding."""

    __slots__ = ("_engine", "_in", "_out")

    def __init__(self, coding: bytes) -> None:
        """Raises UndecodableError for a coding that is unknown or whose library is not installed."""
        make = _ENGINES.get(coding.strip().lower())
        try:
            if make is None:
                raise UndecodableError("unknown content coding")
            self._engine = make()
        except ImportError as missing:
            raise UndecodableError("the 'compression' extra is not installed") from missing
        self._in = self._out = 0

    def feed(self, data: bytes) -> bytes:
        """The decompressed bytes of one read. Raises UndecodableError."""
        try:
            out = self._engine(data)
        except UndecodableError:
            raise
        except Exception as broken:
            raise UndecodableError("broken compressed data") from broken
        self._in += len(data)
        self._out += len(out)
        if len(out) > MAX_OUTPUT or (self._out > RATIO_FREE and self._out > self._in * MAX_RATIO):
            raise UndecodableError("the body expands too far")
        return out
