"""The demo's output: a live table on a terminal, lines elsewhere, and the summary of both."""

import importlib.util
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sidecar.emulator.readings import MEANINGS, QUANTILES, Row, View

if TYPE_CHECKING:
    from rich.console import RenderableType

INSTALL = "pip install 'inference-sidecar[demo]'"
HEADS = tuple(f"p{100 * q:g}" for q in QUANTILES)
REFRESHES_PER_SECOND = 4
WIDE = 122
"""Columns of a terminal that has room for the meanings."""


class Screen(Protocol):
    """Where views go."""

    def show(self, view: View) -> None:
        """Show the view of now."""


class Lines:
    """One line a view, for logs and pipes."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def show(self, view: View) -> None:
        """Print one line."""
        measured = "  ".join(f"{row.name} {_joined(row)}" for row in view.rows if row.name != "E2E")
        since = time.monotonic() - self._started
        print(
            f"{since:4.0f} s  {measured} ms  in flight {view.in_flight}  {counts(view.outcomes)}", flush=True
        )


class Live:
    """A table that is drawn again and again. Needs `rich`."""

    def __init__(self, head: list[str], color: bool) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        console = Console(no_color=None if color else True)
        self._head, self._columns = head, 2 if console.width >= WIDE else 1
        self.live = RichLive(console=console, refresh_per_second=REFRESHES_PER_SECOND)

    def show(self, view: View) -> None:
        """Draw the table."""
        self.live.update(_drawn(self._head, view, self._columns))


@contextmanager
def screen(head: list[str], terminal: bool, color: bool) -> Iterator[Screen]:
    """The screen for this output; without `rich` a terminal gets lines, and is told what to install."""
    if terminal and importlib.util.find_spec("rich") is not None:
        live = Live(head, color)
        with live.live:
            yield live
        return
    print("\n".join(head), flush=True)
    if terminal:
        print(f"(for a live table: {INSTALL})", flush=True)
    yield Lines()


def summary(view: View, ends: Mapping[str, int]) -> str:
    """The last words: everything measured, as text; `ends` is how requests ended for the load's clients."""
    lines = ["", f"{'':6}{''.join(f'{head:>11}' for head in HEADS)}{'values':>9}  source"]
    lines += [_summed(row) for row in view.rows]
    if view.lag is not None and view.lag.count:
        lines += ["", "How much later than the engine planned the sidecar saw first tokens:"]
        lines += [_summed(view.lag)]
    lines += ["", f"The clients say: {sum(ends.values())} requests, {counts(ends)}."]
    lines += [f"The sidecar says: {sum(view.outcomes.values())} requests, {counts(view.outcomes)}."]
    return "\n".join(lines)


def counts(outcomes: Mapping[str, int]) -> str:
    """Outcomes in one line."""
    return ", ".join(f"{name} {count}" for name, count in outcomes.items())


def milliseconds(seconds: float | None) -> str:
    """A time for reading; a dash for what is not there."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _spelled(seconds: float | None) -> str:
    return milliseconds(seconds) + (" ms" if seconds is not None else "")


def _joined(row: Row) -> str:
    return "/".join(milliseconds(seconds) for seconds in row.quantiles)


def _summed(row: Row) -> str:
    times = "".join(f"{_spelled(seconds):>11}" for seconds in row.quantiles)
    return f"{row.name:6}{times}{row.count:>9}  {row.source}"


def _drawn(head: list[str], view: View, words: int) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    lines = [Text(line, style="dim" if line.startswith(" ") else "") for line in head]
    end = Text("Ctrl-C ends it.", style="dim")
    return Group(*lines, Text(""), _latencies(view, words), _outcomes(view), end)


def _latencies(view: View, words: int) -> "RenderableType":
    """`words` is the number of columns of text that there is room for."""
    from rich.table import Table

    table = Table(title="What the clients live through", title_justify="left")
    table.add_column("")
    for quantile in HEADS:
        table.add_column(quantile, justify="right", style="bold cyan", min_width=9)
    table.add_column("values", justify="right", style="dim")
    for column in ("from", "what it is")[:words]:
        table.add_column(column, style="dim")
    for row in view.rows:
        times = [_spelled(seconds) for seconds in row.quantiles]
        table.add_row(row.name, *times, str(row.count), *(row.source, MEANINGS[row.name])[:words])
    return table


def _outcomes(view: View) -> "RenderableType":
    from rich.table import Table

    table = Table(title="How requests ended", title_justify="left")
    table.add_column("outcome")
    table.add_column("requests", justify="right", style="bold cyan")
    for name, count in view.outcomes.items():
        table.add_row(name, str(count), style=None if name == "completed" else "yellow")
    table.add_row("in flight now", str(view.in_flight), style="dim")
    return table
