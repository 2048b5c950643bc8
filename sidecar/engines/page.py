"""Prometheus text into samples: as much of a page as can be read, within bounds.

`prometheus_client.parser` gives up at the first line that it can't read and needs tens of milliseconds for
a page of vLLM's, on the loop that stamps tokens. This one reads the lines whose metric somebody asks for,
in pieces that fit between two socket reads, and a line that can't be read costs nothing but itself.
HELP and `# EOF` say nothing, and TYPE nothing but a name that the tables do not say better.

https://github.com/prometheus/docs/blob/main/content/docs/instrumenting/exposition_formats.md
"""

import json
import re
from collections.abc import Container, Iterator
from typing import NamedTuple

MAX_PAGE = 8 << 20  # bytes
MAX_JSON = 1 << 20
MAX_SAMPLES = 50_000
MAX_LINE = 64 << 10
PIECE_LINES = 100  # half a millisecond

_SAMPLE = re.compile(  # possessive (`++`), so that no line needs more than one pass
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)"
    r'(?:\s*+\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\})?'
    r"\s*+(?P<value>\S++)"
    r"(?:\s++-?[0-9.]++)?"  # time stamp
    r"(?:\s++#.*)?"  # exemplar
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*|$)')
_ESCAPE = re.compile(r"\\(.)")
_NAME_END = re.compile(r"[{\s]")


class PageError(Exception):
    """The page is no page of metrics."""


class Sample(NamedTuple):
    """One line."""

    name: str
    labels: dict[str, str]
    value: float


def text_of(body: bytes) -> str:
    """The page as text. Raises PageError for JSON and HTML, whatever their content type says.

    llama.cpp b7010 to b7190 sent the page as one JSON string (its issue 17384).
    """
    start = body[:64].lstrip()[:1]
    if start == b'"' and len(body) <= MAX_JSON:
        try:
            unpacked = json.loads(body)
        except ValueError:
            raise PageError("a broken JSON string") from None
        return str(unpacked)
    if start in (b"[", b"{", b"<", b'"'):
        raise PageError("JSON or HTML, not the text format of Prometheus")
    return body.decode("utf-8", "replace")


def pieces(text: str) -> Iterator[list[str]]:
    """The lines of samples, some at a time."""
    at, lines = 0, []
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if end - at <= MAX_LINE:
            lines.append(text[at:end])
        at = end + 1
        if len(lines) == PIECE_LINES:
            yield lines
            lines = []
    yield lines


def name_of(line: str) -> str:
    """The metric of a line; empty for a comment or an empty line."""
    line = line.lstrip()
    return "" if line.startswith("#") else _NAME_END.split(line, maxsplit=1)[0]


def names(lines: list[str]) -> set[str]:
    """The metrics of these lines, those that are declared and have no sample yet among them."""
    declared = (line.split(maxsplit=3) for line in lines if line.startswith("# TYPE "))
    found = {name_of(line) for line in lines} | {parts[2] for parts in declared if len(parts) > 2}
    return found - {""}


def samples(lines: list[str], wanted: Container[str]) -> Iterator[Sample | None]:
    """The samples of the wanted metrics, in order; None for each of their lines that can't be read."""
    for line in lines:
        if name_of(line) in wanted:
            yield _sample(line.strip())


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.fullmatch(line)
    if match is None or "_" in match["value"]:
        return None
    labels = _labels(match["labels"] or "")
    try:
        return None if labels is None else Sample(match["name"], labels, float(match["value"]))
    except ValueError:
        return None


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = len(text) - len(text.lstrip())
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        name, value = match.groups()
        labels[name] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = match.end()
    return labels


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n"}.get(match[1], match[1])
