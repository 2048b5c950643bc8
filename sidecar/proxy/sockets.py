"""What is asked of the kernel about a socket."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


class BorrowedSocket(socket.socket):
    """A transport's descriptor, which the transport closes: this never does.

    uvloop's own stand-in makes such an object at every call, which is 3 us on the path of each request.
    """

    def __del__(self) -> None:
        self.detach()


def borrow(transport: asyncio.BaseTransport) -> BorrowedSocket | None:
    """A view of a transport's socket; None when there is none, or this kernel is not Linux."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return None
    return BorrowedSocket(sock.family, sock.type, sock.proto, fileno=sock.fileno())


def tcp_state(sock: socket.socket | None) -> int | None:
    """The kernel's state of a connection (include/net/tcp_states.h: ESTABLISHED is 1), the first byte of
    struct tcp_info; None where the kernel doesn't tell."""
    if sock is None:
        return None
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return 0


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
