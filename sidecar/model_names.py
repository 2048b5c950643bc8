"""Which names may be a `model` label: what the engine says it serves, never what a client typed.

A client can type anything, so a name of a client's as a label would let one client fill the page, and
show to whoever reads it what was typed.
"""

from collections.abc import Iterable

from sidecar.catalogue import OTHER

MAX_NAME = 256  # characters of a served name; a page with a control character in it is not parsed at all


class ModelNames:
    """The names that may be a `model` label: what the engine serves, the first `max_models` of it."""

    def __init__(self, max_models: int) -> None:
        self._max = max_models
        self._known: set[str] = set()
        self._refused: set[str] = set()
        self.served: tuple[str, ...] = ()

    def learn(self, names: Iterable[str]) -> None:
        """Replace the served names. One that was a label stays one: its series exist."""
        self.served = tuple(dict.fromkeys(names))
        self._refused.clear()
        for name in self.served:
            if name in self._known or not (0 < len(name) <= MAX_NAME and name.isprintable()):
                continue
            (self._known if len(self._known) < self._max else self._refused).add(name)

    def label(self, raw: str | None) -> str:
        """The label for what a request named; for one that named nothing, the only served model."""
        name = self._resolve(raw)
        return name if name in self._known else OTHER

    def overflows(self, raw: str | None) -> bool:
        """Is it served, and `other` only because there are too many?"""
        return self._resolve(raw) in self._refused

    def _resolve(self, raw: str | None) -> str:
        if raw is None:
            return self.served[0] if len(self.served) == 1 else OTHER
        return raw
