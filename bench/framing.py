#!/usr/bin/env python3
"""How each proxy answers ambiguous HTTP/1.1 requests, on loopback, against our own emulator.

    python bench/framing.py [--only sidecar,envoy] [--python PYTHON]

For every message: the status answered (or `closed`), and how many requests reached the upstream: 2 would mean
that a second one was smuggled through.  Talks only to processes that it starts.  Exit code 1 in that case, or
when a variant could not be started.
"""

import argparse
import re
import socket
import sys

import machine
import report
from processes import Peer, Upstream, load_variants, missing

BODY = b'{"stream":false}'
INNER = b"POST /smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
LENGTH = b"Content-Length: 16\r\n\r\n" + BODY
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"\r\n0\r\n\r\n"
ANSWER_SECONDS = 1.0

MESSAGES = {
    "plain": HEAD + LENGTH,
    "chunked": HEAD + CHUNKED + b"10\r\n" + BODY + LAST,
    "CL and TE": HEAD + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n" + INNER,
    "two different CL": HEAD + b"Content-Length: 16\r\nContent-Length: 0\r\n\r\n" + BODY,
    "two equal CL": HEAD + b"Content-Length: 16\r\n" + LENGTH,
    "CL +16": HEAD + b"Content-Length: +16\r\n\r\n" + BODY,
    "CL 16, 16": HEAD + b"Content-Length: 16, 16\r\n\r\n" + BODY,
    "TE xchunked and CL": HEAD + b"Transfer-Encoding: xchunked\r\n" + LENGTH,
    "TE chunked, identity": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n10\r\n" + BODY + LAST,
    "space before colon": HEAD + b"Content-Length : 16\r\n\r\n" + BODY,
    "bare LF line ends": HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 16\n\n" + BODY,
    "bare CR in a value": HEAD + b"X-A: a\rContent-Length: 0\r\n" + LENGTH,
    "obs-fold": HEAD + b"X-A: a\r\n b\r\n" + LENGTH,
    "NUL in a value": HEAD + b"X-A: a\0b\r\n" + LENGTH,
    "chunk size +10": HEAD + CHUNKED + b"+10\r\n" + BODY + LAST,
    "chunk ended by LF": HEAD + CHUNKED + b"10\n" + BODY + b"\n0\n\n",
    "no Host": b"POST /v1/chat/completions HTTP/1.1\r\n" + LENGTH,
    "two Hosts": HEAD + b"Host: y\r\n" + LENGTH,
    "TAB in the target": b"POST /a\tb HTTP/1.1\r\nHost: x\r\n" + LENGTH,
    "Upgrade h2c": HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n" + LENGTH,
}


def exchange(port: int, message: bytes) -> list[str]:
    """Status codes of all answers within a second."""
    answers = b""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(ANSWER_SECONDS)
        try:
            client.sendall(message)
            while piece := client.recv(65536):
                answers += piece
        except OSError:
            pass  # a timeout or a reset ends the answers
    return [status.decode() for status in re.findall(rb"HTTP/1\.[01] (\d{3})", answers)]


def check(upstream: Upstream, port: int) -> dict[str, tuple[str, int]]:
    """Message name -> (answers, requests that reached the upstream)."""
    found = {}
    for name, message in MESSAGES.items():
        before = upstream.stats()["unary"]
        answers = "+".join(exchange(port, message)) or "closed"
        found[name] = answers, upstream.stats()["unary"] - before
    return found


def check_variants(names: list[str], python: str) -> dict[str, dict[str, tuple[str, int]]]:
    variants = load_variants()
    load_cpus, proxy_cpus = machine.cpus()
    upstream = Upstream(load_cpus)
    columns = {}
    try:
        for name in names:
            if missing(variants[name], python):
                print(f"framing: {name} left out; {variants[name]['needs']}", file=sys.stderr)
                continue
            with Peer(name, variants[name], upstream.port, python, proxy_cpus) as peer:
                columns[name] = check(upstream, peer.port)
    finally:
        upstream.stop()
    return columns


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="sidecar,envoy,nginx,haproxy,starlette")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    try:
        columns = check_variants(args.only.split(","), args.python)
    except RuntimeError as failed:
        print(f"framing: {failed}", file=sys.stderr)
        return 1
    rows = (
        [name, *(f"{found[name][0]} ({found[name][1]})" for found in columns.values())] for name in MESSAGES
    )
    print(report.table(["message", *columns], rows))
    return int(any(reached > 1 for found in columns.values() for _, reached in found.values()))


if __name__ == "__main__":
    sys.exit(main())
