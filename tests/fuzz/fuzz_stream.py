"""Fuzz target for framing and dialects, by coverage (atheris): no bytes raise, none cost without bound.

    python tests/fuzz/fuzz_stream.py -atheris_runs=100000 [CORPUS]

The first bytes of an input choose the API, the content type and where the rest is cut; the rest is the body.
The same bytes in one piece and in pieces have to give the same counts.
"""

import sys

import atheris

with atheris.instrument_imports(include=["sidecar.core"]):
    from sidecar.core.observation import Observation

PATHS = (
    b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/generate",
    b"/completion", b"/api/chat",
)  # fmt: skip
TYPES = (b"text/event-stream", b"application/x-ndjson", b"application/json")


def observed(path: bytes, content_type: bytes, pieces: list[bytes]) -> tuple[object, ...]:
    """What an answer in these pieces counts as; each piece is a read of its own."""
    one = Observation(
        t0=0.0, method="POST", path=path, headers=(), request_id="r", trace_id="t", wall=0.0
    )  # fmt: skip
    one.request_data(b'{"model":"m","stream":true}', 0.0)
    one.request_end(0.0)
    one.response_head(200, [(b"Content-Type", content_type)], 1.0)
    now = 1.0
    for piece in pieces:
        now += 0.001
        one.response_data(piece, now)
    record = one.finish("clean", now)
    record.as_json()
    return (
        record.outcome, record.chunks, record.choices, record.missed, record.input_tokens,
        record.output_tokens, record.finish_reasons, record.model,
    )  # fmt: skip


def test_one_input(data: bytes) -> None:
    """One input of the fuzzer."""
    if len(data) < 3:
        return
    path, content_type, cut = PATHS[data[0] % len(PATHS)], TYPES[data[1] % len(TYPES)], data[2] + 1
    body = data[3:]
    whole = observed(path, content_type, [body])
    pieces = [body[at : at + cut] for at in range(0, len(body), cut)]
    assert observed(path, content_type, pieces) == whole, (path, content_type, cut)


if __name__ == "__main__":
    atheris.Setup(sys.argv, test_one_input)
    atheris.Fuzz()
