"""Errors of our own, in OpenAI's shape. They name the sidecar and hold nothing that the client sent."""

import json
from http import HTTPStatus
from typing import NamedTuple


class Refusal(NamedTuple):
    """Why the sidecar itself answers; `reason` is a label value, `message` goes to the client."""

    status: int
    reason: str
    message: str


def error_response(refusal: Refusal, *, close: bool, head_only: bool = False) -> bytes:
    """A complete HTTP/1.1 response; `head_only` leaves out the body, for HEAD."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    error = {
        "message": f"sidecar: {refusal.message}",
        "type": kind,
        "param": None,
        "code": f"sidecar_{refusal.reason}",
    }
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    if refusal.status == 405:
        head += "Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"
    if close:
        head += "Connection: close\r\n"
    return head.encode() + b"\r\n" + (b"" if head_only else body)
