"""What is compared, and what is left to the proxy.

Left to it: where it puts the fields that it adds itself, how it cuts a chunked body into chunks, whether it
says `connection` to a client, and which version it answers an HTTP/1.0 client with.
"""

import json
import re
from typing import Any

ADDED = (b"traceparent", b"x-request-id")
TRACEPARENT = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def fields(head: bytes) -> list[tuple[bytes, bytes]]:
    """The header pairs of a head, names lower-cased."""
    lines = head.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]
    return [(name.lower(), value.strip(b" ")) for name, _, value in (line.partition(b":") for line in lines)]


def field(head: bytes, name: bytes) -> list[bytes]:
    return [value for key, value in fields(head) if key == name]


def without(message: bytes, *names: bytes) -> bytes:
    """The message less the header lines with these names."""
    head, blank, rest = message.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    kept = [line for line in lines[1:] if line.partition(b":")[0].lower() not in names]
    return b"\r\n".join(lines[:1] + kept) + blank + rest


def merged(message: bytes) -> bytes:
    """The message with a chunked body as one chunk and `transfer-encoding: chunked` as its last field.

    Fails on a chunk that is empty, cut or badly framed: a merged message is a whole and valid one.
    """
    head, _, rest = message.partition(b"\r\n\r\n")
    codings = [value for name, value in fields(head + b"\r\n\r\n") if name == b"transfer-encoding"]
    if not codings or not rest:
        return message
    assert [value.lower() for value in codings] == [b"chunked"], message
    data, trailers = dechunked(rest)
    whole = without(head + b"\r\n\r\n", b"transfer-encoding")[:-2] + b"transfer-encoding: chunked\r\n\r\n"
    return whole + (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + b"0\r\n" + trailers + b"\r\n"


def dechunked(rest: bytes) -> tuple[bytes, bytes]:
    """(data, trailer lines) of a complete chunked body, and of nothing else."""
    data = b""
    while True:
        size, found, rest = rest.partition(b"\r\n")
        assert found, "cut in a chunk's size"
        assert re.fullmatch(rb"[0-9A-Fa-f]+", size), size
        if int(size, 16) == 0:
            break
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n", "cut in a chunk's data"
        data, rest = data + rest[:length], rest[length + 2 :]
    trailers, found, junk = (b"", b"\r\n", rest[2:]) if rest[:2] == b"\r\n" else rest.partition(b"\r\n\r\n")
    assert found
    assert junk == b"", junk
    return data, trailers + b"\r\n" if trailers else b""


def partial_chunks(rest: bytes) -> bytes:
    """The data of a chunked body that was cut: no terminator may have been written."""
    data = b""
    while rest:
        size, found, rest = rest.partition(b"\r\n")
        if not found:
            break
        assert int(size, 16) > 0, "a cut body ends with a terminator"
        data, rest = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return data


def upstream(message: bytes, *given: bytes) -> bytes:
    """A request as the engine got it, canonical, less the fields that the proxy adds (checked here).

    given: those of the added fields that the client sent itself and that stay in place.
    """
    for name in ADDED:
        values = field(message, name)
        assert len(values) == 1, (name, message)
    assert TRACEPARENT.fullmatch(field(message, b"traceparent")[0]), message
    return merged(without(message, *(name for name in ADDED if name not in given)))


def downstream(message: bytes, *, version: bytes | None = None) -> bytes:
    """A response as the client got it, canonical, less `connection`."""
    if version:
        message = re.sub(rb"^HTTP/1\.[01]", version, message)
    return merged(without(message, b"connection"))


def own_error(message: bytes, status: int) -> dict[str, Any]:
    """The sidecar's own answer: checks its head and returns the error object."""
    head, _, content = message.partition(b"\r\n\r\n")
    assert message.startswith(b"HTTP/1.1 %d " % status), message
    assert field(head + b"\r\n\r\n", b"content-type")[0].startswith(b"application/json"), message
    assert field(head + b"\r\n\r\n", b"content-length") == [b"%d" % len(content)], message
    error: dict[str, Any] = json.loads(content)["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["param"] is None
    assert "sidecar" in error["message"].lower(), error
    return error
