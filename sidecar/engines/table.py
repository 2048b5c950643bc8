"""The shape of an engine's table: its canonical signals under the names that its metrics page gives them.

A table is data: `reader.read` is the one piece of code that reads a page by it, and `docs/engines.md` is
printed from it. Interval and clock are in words, since they say what a number may be compared with.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
Cohort = Literal["", "live", "at_end"]
Clock = Literal["", "monotonic", "wall"]

NOTHING: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Interval(NamedTuple):
    """From which event to which, on which clock of the engine's host."""

    start: str
    end: str
    clock: Clock


class Signal(NamedTuple):
    """A canonical signal (`catalogue.SIGNALS`) and where it is on the page.

    `names` are the metric's names, the newest first: the first that the page has is read. A tuple among
    them is a sum of metrics, all of which must be there. A histogram's name goes without its suffix.
    """

    signal: str
    kind: Kind
    names: tuple[str | tuple[str, ...], ...]
    cohort: Cohort = ""  # counted while requests run, or once, when they end
    interval: Interval | None = None
    factor: float = 1.0  # what makes seconds, tokens or a ratio of the metric's unit
    where: Mapping[str, tuple[str, ...]] = NOTHING  # label -> values that count; "" is a label not there
    value: str = ""  # the reason or kind, when the metric's name tells it
    by: str = ""  # or the label that tells it
    largest: bool = False  # of several engine processes the largest value, not the sum
    note: str = ""


class Engine(NamedTuple):
    """An engine: how its page is found and recognised, and what is on it."""

    name: str
    title: str
    path: str  # of the metrics page; "" where there is none
    enable: str  # what to switch on
    marks: tuple[str, ...]  # a page with a metric that begins so is this engine's
    signals: tuple[Signal, ...]
    model: tuple[str, ...] = ()  # labels that hold the served model, the first that is there
    processes: tuple[str, ...] = ()  # labels that tell engine processes behind one address apart: added up
    copies: tuple[str, ...] = ()  # labels whose series repeat the same numbers: one of them is read
    totals: tuple[str, ...] = ()  # labels of which the empty value is the total of the others
    version: tuple[str, str] | None = None  # path and JSON key that tell the version
    owner: str = ""  # what its `/v1/models` says in `owned_by`
    never: tuple[str, ...] = ()  # paths that must not be read: reading them takes something away
    recorded: str = ""  # of which version there is a recorded page
    seen: frozenset[str] = frozenset()  # the names above that the recorded page has values of
