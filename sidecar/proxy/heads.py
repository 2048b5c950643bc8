"""Request and response heads as they pass: raw header pairs keep their order, case, bytes and number.

Hop-by-hop fields end here (RFC 9110 section 7.6.1); what each side needs instead is written anew.
Pure functions over bytes.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from sidecar.proxy.errors import Refusal
from sidecar.proxy.upstream import ResponseHead

RawHeaders = Sequence[tuple[bytes, bytes]]
ClientFraming = Literal["none", "length", "chunked", "bare"]  # bare: HTTP/1.0, the end is the close

_HOP = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade"})
# `Connection` may name none of these: stripping them would change what the engine or the trace sees.
_NOT_HOP = frozenset({b"host", b"content-length", b"authorization", b"traceparent", b"x-request-id"})
_CHECKED = (b"host", b"connection", b"transfer-encoding", b"content-length", b"upgrade")
_REFUSED_METHODS = frozenset({"CONNECT", "TRACE"})
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


class RequestHead(NamedTuple):
    """A request as the relay needs it."""

    method: str
    target: bytes  # origin-form
    version: tuple[int, int]
    headers: RawHeaders
    nominated: frozenset[bytes]  # lower-case names in Connection
    chunked: bool
    length: int | None  # Content-Length
    websocket: bool  # asks for a tunnel
    keep_alive: bool  # another request may follow

    def first(self, name: bytes) -> bytes | None:
        """The value of the first field of that (lower-case) name."""
        return next((value for key, value in self.headers if key.lower() == name), None)


def read_request(
    method: str, target: bytes, version: tuple[int, int], headers: RawHeaders, *, keep_alive: bool = True
) -> RequestHead | Refusal:
    """Check a parsed head for what a parser does not check, and put it into the relay's terms."""
    if method in _REFUSED_METHODS:
        return Refusal(405, "method", f"{method} is not forwarded")
    fields: dict[bytes, list[bytes]] = {name: [] for name in _CHECKED}
    for name, value in headers:
        found = fields.get(name.lower())
        if found is not None:
            found.append(value)
    hosts = fields[b"host"]
    if len(hosts) > 1 or (version >= (1, 1) and not hosts) or (hosts and not _HOST.fullmatch(hosts[0])):
        return Refusal(400, "host", "a request needs exactly one valid Host header")
    nominated = frozenset(_tokens(fields[b"connection"]))
    if nominated & _NOT_HOP:
        return Refusal(400, "connection_header", "the Connection header names a field that must pass")
    codings = list(_tokens(fields[b"transfer-encoding"]))
    if codings and (codings != [b"chunked"] or version < (1, 1)):
        return Refusal(400, "transfer_encoding", "chunked is the only transfer coding, and needs HTTP/1.1")
    lengths = set(fields[b"content-length"])
    if len(lengths) > 1 or (lengths and codings):
        return Refusal(400, "body_framing", "the request has more than one body length")
    upgrades = list(_tokens(fields[b"upgrade"]))
    websocket = b"upgrade" in nominated and upgrades == [b"websocket"] and version >= (1, 1)
    length = int(lengths.pop()) if lengths else None
    return RequestHead(
        method,
        _origin_form(target),
        version,
        headers,
        nominated,
        bool(codings),
        length,
        websocket,
        keep_alive,
    )


def request_head(
    head: RequestHead,
    authority: bytes,
    traceparent: bytes | None,
    request_id: bytes,
    *,
    new_trace: bool = False,
) -> bytes:
    """The head to send upstream. `request_id` is only used when the client sent none; without a
    `traceparent` the client's passes as it is.

    The client's `tracestate` belongs to its own trace and ends with it (W3C Trace Context, section 3.5).
    """
    out = [head.method.encode("ascii"), b" ", head.target, b" HTTP/1.1\r\n"]
    missing = {b"host": authority, b"x-request-id": request_id}
    if traceparent is not None:
        missing[b"traceparent"] = traceparent
    for name, value in head.headers:
        lower = name.lower()
        if lower == b"traceparent" and traceparent is not None:
            if missing.pop(lower, None) is not None:
                out += (name, b": ", traceparent, b"\r\n")
        elif new_trace and lower == b"tracestate":
            continue
        elif lower not in _HOP and lower not in head.nominated and lower != b"trailer":
            missing.pop(lower, None)
            out += (name, b": ", value, b"\r\n")
    if head.websocket:
        out.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    for name, value in missing.items():
        out += (name, b": ", value, b"\r\n")
    out.append(b"\r\n")
    return b"".join(out)


def client_framing(head: ResponseHead, method: str, version: tuple[int, int]) -> ClientFraming:
    """How the body goes to the client."""
    if method == "HEAD" or head.framing == "none":
        return "none"
    if head.framing == "length":
        return "length"
    return "chunked" if version >= (1, 1) else "bare"


def response_head(head: ResponseHead, framing: ClientFraming, *, http_1_1: bool, close: bool) -> bytes:
    """The head to send to the client, with the engine's own reason and header bytes."""
    out = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    drop = _HOP | frozenset(_tokens(value for name, value in head.headers if name.lower() == b"connection"))
    switching = head.status == 101
    coded = False
    for name, value in head.headers:
        lower = name.lower()
        if lower == b"transfer-encoding":
            if not http_1_1 or framing == "length":
                continue
            coded = True
        elif lower == b"trailer":
            if framing != "chunked":
                continue
        elif lower in drop and not (switching and lower in (b"connection", b"upgrade")):
            continue
        out += (name, b": ", value, b"\r\n")
    if framing == "chunked" and not coded:
        out.append(b"Transfer-Encoding: chunked\r\n")
    if close:
        out.append(b"Connection: close\r\n")
    out.append(b"\r\n")
    return b"".join(out)


def last_chunk(trailers: RawHeaders) -> bytes:
    """The end of a chunked body, with its trailers."""
    return b"".join([b"0\r\n", *(b"%b: %b\r\n" % pair for pair in trailers), b"\r\n"])


def _origin_form(target: bytes) -> bytes:
    match = _ABSOLUTE.match(target)
    if match is None:
        return target
    rest = target[match.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _tokens(values: Iterable[bytes]) -> Iterable[bytes]:
    return (token.strip().lower() for value in values for token in value.split(b",") if token.strip())
