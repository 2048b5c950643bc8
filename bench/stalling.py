"""Clients that stop reading: does the proxy pause the upstream, and how much does it hold?"""

import http.client
import socket
import time
from typing import TYPE_CHECKING, Any

import machine

if TYPE_CHECKING:
    from processes import Peer
    from scenarios import Bench

CLIENTS = 32
EVENTS = 60_000  # about 17 MiB a stream, more than all kernel buffers on the way
HOLD_SECONDS = 6.0
STILL_SECONDS = 2.0  # an upstream that sends nothing for this long is paused
READ_SECONDS = 100.0  # a kernel that had to drop segments backs off for tens of seconds

BODY = b'{"model":"demo-model","messages":[{"role":"user","content":"hi"}],"max_tokens":1,"stream":true}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


def measure_stalled(bench: "Bench", peer: "Peer | None") -> dict[str, Any]:
    """Private memory per stalled stream, whether the upstream came to rest, and what came out afterwards."""
    assert peer is not None
    bench.upstream.set(EVENTS, 0)
    rest = machine.private_kib(peer.pid)
    clients = [_stalled_client(peer.port) for _ in range(CLIENTS)]
    peak, paused = _hold(bench, peer.pid)
    complete = sum(_drain(client) == EVENTS for client in clients)
    return {
        "rest_kib": rest,
        "peak_kib": peak,
        "mib_per_stream": round((peak - rest) / 1024 / CLIENTS, 3),
        "paused": paused,
        "incomplete": CLIENTS - complete,
    }


def _stalled_client(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.settimeout(READ_SECONDS)
    client.connect(("127.0.0.1", port))
    client.sendall(REQUEST)
    return client


def _hold(bench: "Bench", pid: int) -> tuple[int, bool]:
    """(peak private KiB, whether the upstream sent nothing more) while nobody reads."""
    peak, sent, moved = 0, -1, time.monotonic()
    end = moved + HOLD_SECONDS
    while time.monotonic() < end:
        time.sleep(0.25)
        peak = max(peak, machine.private_kib(pid))
        events = bench.upstream.stats()["events"]
        if events != sent:
            sent, moved = events, time.monotonic()
    return peak, time.monotonic() - moved >= STILL_SECONDS and bench.upstream.stats()["open"] == CLIENTS


def _drain(client: socket.socket) -> int:
    """Reads the rest of a stream; the token events in it, -1 when it did not end with [DONE].

    The chunked framing has to go first: a proxy may split a mark between two chunks.
    """
    tokens, tail = 0, b""
    with client:
        response = http.client.HTTPResponse(client)
        try:
            response.begin()
            while piece := response.read1(1 << 20):
                tokens += (tail[-1:] + piece).count(b"@@")
                tail = (tail + piece)[-200:]
        except (OSError, http.client.HTTPException):
            return -1
    return tokens if b"[DONE]" in tail else -1
