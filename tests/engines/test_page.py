"""As much of a page as can be read, within bounds; what Prometheus's own parser reads of a right page."""

import json
from math import inf, isnan
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.engines import page
from sidecar.engines.page import PageError, Sample, name_of, names, pieces, samples, text_of

PAGES = sorted((Path(__file__).parent.parent / "data" / "expositions").glob("*.txt"))


class Everything:
    def __contains__(self, name: object) -> bool:
        return bool(name)


def read(text: str) -> list[Sample | None]:
    return [sample for lines in pieces(text) for sample in samples(lines, Everything())]


@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_a_recorded_page_reads_as_in_prometheus_own_parser(path: Path) -> None:
    text = text_of(path.read_bytes())
    # That one calls a counter without `_total` by another name. repr: not a number is equal to itself there.
    expected = [
        (sample.name, sample.labels, repr(float(sample.value)))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    found = [(each.name, each.labels, repr(each.value)) for each in read(text) if each is not None]
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(found) == len(lines) == len(expected)
    renamed = {"llamacpp:n_tokens_max_total": "llamacpp:n_tokens_max"}
    assert found == [(renamed.get(name, name), labels, value) for name, labels, value in expected]


LINES = {
    "a plain sample": ("a 1", Sample("a", {}, 1.0)),
    "labels": ('a:b_c{x="1",y_2="z"} 2.5', Sample("a:b_c", {"x": "1", "y_2": "z"}, 2.5)),
    "spaces wherever they may be": (' a { x = "1" , y="2" }  3 ', Sample("a", {"x": "1", "y": "2"}, 3.0)),
    "tabs": ('a{x="1"}\t3', Sample("a", {"x": "1"}, 3.0)),
    "a comma at the end": ('a{x="1",} 3', Sample("a", {"x": "1"}, 3.0)),
    "empty braces": ("a{} 3", Sample("a", {}, 3.0)),
    "no space before the value": ('a{x="1"}3', Sample("a", {"x": "1"}, 3.0)),
    "escapes": (r'a{x="q\"b\\n\nz"} 3', Sample("a", {"x": 'q"b\\n\nz'}, 3.0)),
    "braces and commas in a value": ('a{x="}{,="} 3', Sample("a", {"x": "}{,="}, 3.0)),
    "a hash in a value": ('a{x="b # c"} 3', Sample("a", {"x": "b # c"}, 3.0)),
    "a time stamp": ("a 3 1700000000000", Sample("a", {}, 3.0)),
    "an exemplar of OpenMetrics": ('a{le="1"} 3 # {trace_id="x"} 0.5 1.0', Sample("a", {"le": "1"}, 3.0)),
    "infinity": ("a +Inf", Sample("a", {}, inf)),
    "an exponent": ("a 1.79597405476e+09", Sample("a", {}, 1795974054.76)),
    "Windows' line end": ("a 3\r", Sample("a", {}, 3.0)),
    "letters of the world": ('a{x="模型"} 3', Sample("a", {"x": "模型"}, 3.0)),
    "no value": ("a", None),
    "no value, but a digit": ("a1", None),
    "no value after labels": ('a{x="1"}', None),
    "a value that is no number": ("a b", None),
    "a number as Python writes it": ("a 1_000", None),
    "a label without quotes": ("a{x=1} 2", None),
    "labels that do not end": ('a{x="1" 2', None),
    "a quote that does not end": ('a{x="1} 2', None),
    "something after the value": ("a 1 2 3", None),
    "a name that may not be one": ("a-b 1", None),
}  # fmt: skip


@pytest.mark.parametrize(("line", "sample"), LINES.values(), ids=LINES)
def test_a_line(line: str, sample: Sample | None) -> None:
    assert read(f"first 1\n{line}\nlast 2") == [Sample("first", {}, 1.0), sample, Sample("last", {}, 2.0)]


def test_not_a_number_is_read_as_such() -> None:
    (sample,) = read("a NaN")
    assert sample is not None
    assert isnan(sample.value)


def test_comments_blank_lines_and_the_end_mark_are_no_samples() -> None:
    assert read("# HELP a b\n# TYPE a counter\n\n  \n# EOF\na 1\n# EOF\n") == [Sample("a", {}, 1.0)]


def test_only_wanted_lines_are_read() -> None:
    assert list(samples(["a 1", 'b{x="1"} 2', "ab 3", "b broken"], {"b"})) == [
        Sample("b", {"x": "1"}, 2.0),
        None,
    ]


def test_names_are_those_of_samples_and_of_what_has_none_yet() -> None:
    lines = ["# HELP a text", "# TYPE b counter", "# TYPE", "# a TYPE c", 'd{x="1"} 2', "", "e 1"]
    assert names(lines) == {"b", "d", "e"}


NAMES = [("a 1", "a"), ('a{x="1"} 1', "a"), ("a\t1", "a"), ("# HELP a", ""), ("", ""), (" a{", "a")]


@pytest.mark.parametrize(("line", "name"), NAMES)
def test_name_of(line: str, name: str) -> None:
    assert name_of(line) == name


def test_a_page_in_a_json_string_is_unpacked() -> None:
    """As llama.cpp sent it for a while (its issue 17384)."""
    text = 'llamacpp:a 1\nllamacpp:b{x="y"} 2\n'
    assert text_of(json.dumps(text).encode()) == text


NO_PAGES = {
    "a list of TensorRT-LLM's": b'[{"iter": 1}]',
    "an object": b' {"error": "no"}',
    "a web page": b"\n<!doctype html><html></html>",
    "a JSON string that is cut": b'"llamacpp:a 1',
}


@pytest.mark.parametrize("body", NO_PAGES.values(), ids=NO_PAGES)
def test_what_is_no_page_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(PageError):
        text_of(body)


def test_bytes_that_are_no_utf8_cost_one_label_value() -> None:
    assert read(text_of(b'a{x="\xff"} 1\nb 2')) == [Sample("a", {"x": "\ufffd"}, 1.0), Sample("b", {}, 2.0)]


def test_an_endless_line_costs_nothing_but_itself() -> None:
    assert read(f'a 1\nb{{x="{"y" * page.MAX_LINE}"}} 2\nc 3') == [Sample("a", {}, 1.0), Sample("c", {}, 3.0)]


def test_a_page_comes_in_short_pieces() -> None:
    lengths = [len(lines) for lines in pieces("a 1\n" * 1001)]
    assert sum(lengths) == 1001
    assert max(lengths) == page.PIECE_LINES


HOSTILE = {
    "labels": "a{" + 'x="1",' * 10_000,
    "escapes": 'a{x="' + "\\" * 60_000,
    "spaces": "a" + " " * 60_000 + "x y z",
    "braces": "a{" + "{" * 60_000,
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_is_refused_at_once(hostile: str) -> None:
    """Every pattern is linear: a thousand times what a line of 100 characters needs, not a million."""
    assert read(hostile) == [None]
