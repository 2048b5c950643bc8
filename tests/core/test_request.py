"""What a request says: kept or scanned, it must come to the same; unreadable is an answer too."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.core import request as request_module
from sidecar.core.request import KEPT_BODY, RequestFacts, RequestReader, clean_text

MESSAGES = [{"role": "user", "content": 'Say "n": 3, {"model": "no"} \\ and ]}'}]

SAID: dict[str, tuple[Any, RequestFacts]] = {
    "a streamed chat": (
        {"model": "m", "messages": MESSAGES, "stream": True},
        RequestFacts(model="m", stream=True, readable=True),
    ),
    "nothing but the model": ({"model": "m"}, RequestFacts(model="m", readable=True)),
    "the model after the messages": (
        {"messages": MESSAGES, "model": "m", "stream": False},
        RequestFacts(model="m", stream=False, readable=True),
    ),
    "several choices and a limit": (
        {"model": "m", "n": 3, "max_tokens": 50},
        RequestFacts(model="m", n=3, max_tokens=50, readable=True),
    ),
    "the newer limit wins": (
        {"max_tokens": 50, "max_completion_tokens": 60},
        RequestFacts(max_tokens=60, readable=True),
    ),
    "the limit of responses": ({"max_output_tokens": 70}, RequestFacts(max_tokens=70, readable=True)),
    "usage asked for": (
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        RequestFacts(include_usage=True, continuous_usage=True, readable=True),
    ),
    "usage declined": ({"stream_options": {"include_usage": False}}, RequestFacts(readable=True)),
    "one prompt": ({"prompt": 'a, [b] "c"'}, RequestFacts(readable=True)),
    "two prompts": ({"prompt": ["a", "b\\"], "n": 2}, RequestFacts(prompts=2, n=2, readable=True)),
    "one prompt in a list": ({"prompt": ["a"]}, RequestFacts(readable=True)),
    "one prompt of token ids": ({"prompt": [1, 2, 3]}, RequestFacts(readable=True)),
    "three prompts of token ids": ({"prompt": [[1, 2], [3], [4]]}, RequestFacts(prompts=3, readable=True)),
    "an empty list of prompts": ({"prompt": []}, RequestFacts(readable=True)),
    "nulls": (
        {"model": None, "stream": None, "n": None, "stream_options": None, "prompt": None},
        RequestFacts(readable=True),
    ),
    "types that nobody expects cost only themselves": (
        {"model": "m", "stream": "yes", "n": "3", "max_tokens": 1.5, "stream_options": [1]},
        RequestFacts(model="m", readable=True),
    ),
    "a model that is no string": (
        {"model": {"name": "m"}, "stream": True},
        RequestFacts(stream=True, readable=True),
    ),
    "an n that cannot be": ({"n": 0, "stream": True}, RequestFacts(stream=True, readable=True)),
    "an n beyond reason": ({"n": 10**12}, RequestFacts(readable=True)),
    "members of the same name deeper down": (
        {"a": {"model": "no", "n": 9}, "b": [{"stream": True, "model": "no"}], "model": "m"},
        RequestFacts(model="m", readable=True),
    ),
    "an object without members": ({}, RequestFacts(readable=True)),
}


def read(body: bytes, cuts: list[int] | None = None, headers: Any = ()) -> RequestFacts:
    reader = RequestReader(headers)
    edges = [0, *sorted(cuts or []), len(body)]
    for a, b in pairwise(edges):
        reader.feed(body[a:b])
    return reader.end()


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every body were too long to keep."""
    monkeypatch.setattr(request_module, "KEPT_BODY", -1)


LAYOUTS = {"compact": {"separators": (",", ":")}, "spaced": {}, "indented": {"indent": 2}}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("body", "facts"), SAID.values(), ids=SAID.keys())
def test_a_kept_body(body: Any, facts: RequestFacts, layout: Any) -> None:
    assert read(json.dumps(body, **layout).encode()) == facts


@pytest.mark.usefixtures("scanned")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize(("body", "facts"), SAID.values(), ids=SAID.keys())
def test_a_scanned_body_says_the_same_at_every_cut(body: Any, facts: RequestFacts, layout: Any) -> None:
    data = json.dumps(body, **layout).encode()
    assert read(data) == facts
    assert read(data, list(range(len(data)))) == facts
    for cut in range(len(data)):
        assert read(data, [cut]) == facts


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(alphabet='"\\{}[]:,aé\n', max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\{a', max_size=3), inner),
    max_leaves=8,
)
BODIES = st.dictionaries(
    st.one_of(st.sampled_from(["model", "stream", "n", "stream_options", "max_tokens"]), st.text(max_size=4)),
    VALUES,
)


@given(body=BODIES, ascii_only=st.booleans(), cuts=st.lists(st.integers(0, 200)))
def test_kept_and_scanned_agree(body: Any, ascii_only: bool, cuts: list[int]) -> None:
    data = json.dumps(body, ensure_ascii=ascii_only).encode()
    kept = read(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "KEPT_BODY", -1)
        assert read(data, [min(cut, len(data)) for cut in cuts]) == kept


UNREADABLE = {
    "empty": b"",
    "not JSON": b"model=m&stream=true",
    "a list": b'[{"model": "m"}]',
    "a string": b'"model"',
    "cut off": b'{"model": "m", "messages": [',
    "multipart": b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--',
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_body_is_an_answer(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(body) == RequestFacts(readable=False)
    monkeypatch.setattr(request_module, "KEPT_BODY", -1)
    assert read(body) == RequestFacts(readable=False)


def test_a_compressed_body_is_not_read() -> None:
    assert read(b'{"model":"m"}', headers=[(b"Content-Encoding", b"gzip")]) == RequestFacts()
    assert read(b'{"model":"m"}', headers=[(b"Content-Encoding", b"identity")]).model == "m"


@given(body=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60)))
def test_no_bytes_raise(body: bytes, cuts: list[int]) -> None:
    for data in (body, b'{"model":"' + body, b'{"prompt":[' + body, b'{"n":' + body + b"}"):
        bounded = [min(cut, len(data)) for cut in cuts]
        read(data, bounded)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(request_module, "KEPT_BODY", -1)
            read(data, bounded)


def test_deep_nesting_is_survived() -> None:
    assert read(b'{"a":' + b"[" * 200_000) == RequestFacts()
    deep = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b',"model":"m"}'
    assert read(deep).model == "m"


def test_a_model_behind_200_megabytes_of_messages_is_found_with_little_held() -> None:
    reader = RequestReader()
    reader.feed(b'{"messages":[{"role":"user","content":"')
    for _ in range(200):
        reader.feed(b'So he said: \\"{[\\", and the text went on for a while without any. ' * 16_384)
    reader.feed(b'"}],"model":"m","stream":true}')
    assert reader._kept is None
    assert reader.end() == RequestFacts(model="m", stream=True, readable=True)


def test_a_kept_body_is_let_go_when_it_grows_too_long() -> None:
    reader = RequestReader()
    reader.feed(b'{"model":"m","prompt":"')
    reader.feed(b"a" * KEPT_BODY)
    assert reader._kept is None
    reader.feed(b'","n":2}')
    assert reader.end() == RequestFacts(model="m", n=2, readable=True)


def test_a_second_end_knows_nothing() -> None:
    reader = RequestReader()
    reader.feed(b"{}")
    reader.end()
    reader.feed(b"{}")
    assert reader.end() == RequestFacts()


def test_text_of_the_wire_can_be_written_out_again() -> None:
    assert clean_text("a" * 1000) == "a" * 256
    assert clean_text("a\ud83d").encode() == b"a?"
