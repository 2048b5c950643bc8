"""`sidecar reference`: prints docs/metrics.md from the catalogue, docs/configuration.md from Config, and
docs/engines.md from the engines' tables.

`--check` says which page is not what the code says, so that neither can change alone.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sidecar.catalogue import CLIENT_VIEW, ENGINE_VIEW, FAMILIES, ITSELF, JOINED, LABELS, SIGNALS, Family
from sidecar.config import ENVIRONMENT, Config
from sidecar.config_values import format_duration
from sidecar.core.answer_headers import EXTRA as HEADERS
from sidecar.engines import ENGINES
from sidecar.engines.in_band import IN_BAND, InBand
from sidecar.engines.table import Engine, Signal

HELP = "print the reference pages of the documentation"

_PRINTED = "<!-- Printed by `sidecar reference --write`. -->\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One of --write and --check."""
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the pages")
    mode.add_argument("--check", action="store_true", help="exit with 1 if a page is not up to date")
    parser.add_argument("--directory", type=Path, default=Path("docs"), help="where the pages are")


def run(args: argparse.Namespace) -> int:
    """0; 1 when a page is missing or differs, or can't be written."""
    stale = []
    for name, page in PAGES.items():
        path = args.directory / name
        if args.write:
            path.write_text(page(), "utf-8")
        elif not path.exists() or path.read_text("utf-8") != page():
            stale.append(str(path))
    for path in stale:
        print(f"{path}: not what the code says; run `sidecar reference --write`", file=sys.stderr)
    return 1 if stale else 0


# --- metrics


def metrics_page() -> str:
    """docs/metrics.md."""
    parts = [
        "# Metrics\n",
        _PRINTED,
        "Times are in seconds, lengths in tokens.",
        "`model` is a name that the engine serves, or `other`; it is never what a client typed.",
        "A series exists from its first use. OpenMetrics is served to those who ask for it.",
        "`process_*` and `python_*` are those of the Prometheus client library.\n",
        "## What clients live through\n",
        *_families(CLIENT_VIEW),
        "\n## Joined with the engine's own durations\n",
        *_families(JOINED),
        "\n## What the engine says about itself\n",
        "The engine's own values, as they were when its page was last read.",
        "[engines.md](engines.md) says what each engine has, and between which events it measures.\n",
        *_families(ENGINE_VIEW),
        "\n## The sidecar itself\n",
        *_families(ITSELF),
        "\n## Labels\n",
        *_table(
            ("Label", "Values"),
            ((f"`{label}`", _codes(values)) for label, values in LABELS.items() if values),
        ),
        "\n## Buckets\n",
        "Upper bounds; `+Inf` follows.\n",
        *_table(("Family", "Bounds"), ((f"`{f.name}`", _bounds(f)) for f in FAMILIES if f.buckets)),
    ]
    return "\n".join(parts) + "\n"


def _families(families: Iterable[Family]) -> Iterator[str]:
    rows = ((f"`{family.name}`", family.kind, _codes(family.labels), _meaning(family)) for family in families)
    return _table(("Family", "Type", "Labels", "Meaning"), rows)


def _meaning(family: Family) -> str:
    return family.help + (" Only with `metrics.detail: full`." if family.detail == "full" else "")


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _bounds(family: Family) -> str:
    return ", ".join(f"{bound:g}" if bound < 1e5 else f"{bound:.0f}" for bound in family.buckets)


# --- configuration


def configuration_page() -> str:
    """docs/configuration.md."""
    sections = [(name, info) for name, info in Config.model_fields.items() if _section(info)]
    parts = [
        "# Configuration\n",
        _PRINTED,
        "One YAML file, `sidecar serve --config FILE`.",
        "`sidecar check --config FILE` tells what is wrong with it.",
        "A key that is not listed here is an error, and so is one given twice.",
        "A duration is a number with one unit: `500ms`, `2s`, `1m`, `1h`.\n",
        "A flag goes before an environment variable, that before the file, that before the default.\n",
        *_table(
            ("Setting", "Flag", "Variable"),
            ((f"`{k}`", f"`--{k}`", f"`{v}`") for v, k in ENVIRONMENT.items()),
        ),
        "\nThe smallest file:\n\n```yaml\nupstream: http://127.0.0.1:8000\n```\n",
        "## Top level\n",
        *_settings(Config),
    ]
    for name, info in sections:
        section: Any = info.annotation
        parts += [f"\n## `{name}`\n", f"{section.__doc__}\n", *_settings(section, f"{name}.")]
    for name, info in Config.model_fields.items():
        if get_origin(info.annotation) is dict:
            of_each: Any = get_args(info.annotation)[1]
            parts += [f"\n## `{name}.NAME`\n", f"{of_each.__doc__}\n", *_settings(of_each, f"{name}.NAME.")]
    return "\n".join(parts) + "\n"


def _settings(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    rows = (
        (f"`{prefix}{name}`", _kind(info), _default(info), str(info.description))
        for name, info in section.model_fields.items()
        if not _section(info) and get_origin(info.annotation) is not dict
    )
    return _table(("Setting", "Type", "Default", "Meaning"), rows)


def _section(info: FieldInfo) -> bool:
    return isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)


def _kind(info: FieldInfo) -> str:
    words = [word for word in info.metadata if isinstance(word, str)]
    if words:
        return words[-1]
    if get_origin(info.annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(info.annotation))
    bounds = [
        f"{word} {getattr(m, k)}" for m in info.metadata for k, word in _BOUNDS.items() if hasattr(m, k)
    ]
    return ", ".join([_TYPES[info.annotation], *bounds])


_BOUNDS = {"ge": "at least", "le": "at most"}
_TYPES: dict[object, str] = {int: "number", bool: "`true` or `false`", str: "text"}


def _default(info: FieldInfo) -> str:
    value = info.default
    if value is PydanticUndefined:
        return "required"
    if value in ("", None):
        return "none"
    if isinstance(value, float) and "duration" in _kind(info):
        value = format_duration(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return "`[]`" if value == () else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


# --- engines


def engines_page() -> str:
    """docs/engines.md."""
    parts = [
        "# Engines\n",
        _PRINTED,
        "What the sidecar reads of each engine's own metrics page, and what it means there.",
        "A signal that an engine has not, or not any more, is missing; it is never shown as 0.",
        "Durations of an engine are compared with durations of the sidecar, never its times with ours.\n",
        "*Counted*: `live`, while requests run; `at_end`, once, when a request ends.",
        "The two describe different requests in one window.\n",
        "*Names*: the newest first; the first that the page has is read.",
        "*Recorded*: seen on a recorded page; `no`: known from the engine's source or documentation.\n",
        *_table(("Engine", "`engine.kind`", "Page", "Switch on", "Recorded"), map(_engine_row, _by_title())),
        "\n## Inside the answers\n",
        "What an engine says of a request in its own answer joins exactly, one request at a time.",
        "Where that can't be had, [its spans](tracing.md) do the same; its page joins means over a window.",
        "A sum with a minus is a difference of two of the engine's own durations. Stamps are never read.\n",
        *_table(
            ("Engine", "Where", "queue", "prefill", "decode", "Switched on by", "Remarks"),
            map(_in_band_row, IN_BAND),
        ),
    ]
    for engine in _by_title():
        if engine.signals:
            parts += [f"\n## {engine.title}\n", *_engine(engine)]
    return "\n".join(parts) + "\n"


def _in_band_row(row: InBand) -> tuple[str, ...]:
    where = ".".join((row.extra, *row.inside)) if row.extra != HEADERS else "the head"
    terms = (row.terms.get(part, ()) for part in ("queue", "prefill", "decode"))
    parts = (" ".join(f"`{name}`" for name in term) for term in terms)
    streams = "" if row.streams else "Only of answers in one piece."
    return row.engine, f"`{where}`", *parts, row.switched_on_by, " ".join(filter(None, (streams, row.note)))


def _by_title() -> list[Engine]:
    return sorted(ENGINES.values(), key=lambda engine: engine.title.lower())


def _engine_row(engine: Engine) -> tuple[str, ...]:
    page = f"`{engine.path}`" if engine.path else "none"
    return engine.title, f"`{engine.name}`", page, engine.enable, engine.recorded or "no"


def _engine(engine: Engine) -> Iterator[str]:
    if engine.never:
        yield f"Never read: {_codes(engine.never)}; reading it takes records away.\n"
    labels = (
        ("model", engine.model),
        ("added up over", engine.processes),
        ("read once of", engine.copies),
        ("total where empty", engine.totals),
    )
    told = "; ".join(f"{what} {_codes(names)}" for what, names in labels if names)
    yield f"Labels: {told or 'none'}.\n"
    yield from _table(
        ("Signal", "Names", "Recorded", "Counted", "Interval", "Clock", "Remarks"),
        (_signal_row(engine, row) for row in engine.signals),
    )
    missing = [signal for signal in SIGNALS if signal not in {row.signal for row in engine.signals}]
    if missing:
        yield f"\nMissing: {_codes(missing)}."


def _signal_row(engine: Engine, row: Signal) -> tuple[str, ...]:
    names = [name if isinstance(name, tuple) else (name,) for name in row.names]
    seen = ["yes" if engine.seen.issuperset(parts) else "no" for parts in names]
    interval = f"{row.interval.start} to {row.interval.end}" if row.interval else ""
    only = "; ".join(f"`{label}` {_codes(filter(None, values))}" for label, values in row.where.items())
    remarks = "; ".join(filter(None, (f"only {only}" if only else "", row.note)))
    value = f" `{row.value}`" if row.value else f" by `{row.by}`" if row.by else ""
    return (
        f"`{row.signal}`{value}",
        "<br>".join(" + ".join(f"`{part}`" for part in parts) for parts in names),
        "<br>".join(seen),
        f"`{row.cohort}`" if row.cohort else "",
        interval,
        (row.interval.clock or "not told") if row.interval else "",
        remarks,
    )


PAGES: dict[str, Callable[[], str]] = {
    "metrics.md": metrics_page,
    "configuration.md": configuration_page,
    "engines.md": engines_page,
}
