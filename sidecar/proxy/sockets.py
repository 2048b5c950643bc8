"""What is asked of the kernel about a client's socket."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


def close_with_reset(transport: asyncio.Transport | None) -> None:
    """End a connection with RST when all bytes written so far have been taken, else without.

    A reset drops what the kernel has not sent yet; the bytes come first.
    """
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None and transport.get_write_buffer_size() == 0 and _unsent(sock) == 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


def _unsent(sock: socket.socket) -> int:
    """Bytes that the peer's kernel has not acknowledged; 0 where the kernel doesn't tell."""
    if sys.platform != "linux":
        return 0
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
