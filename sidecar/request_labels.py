"""Labels of the operator's own, from a request header (`labels` in the configuration), on counters only.

A header is what a client typed, so a value becomes a label only if it is allowed, or among the first few; any
other is `other`. A request without the header has the empty label, which Prometheus takes for none.
"""

from collections.abc import Iterable, Mapping

from sidecar.catalogue import OTHER
from sidecar.config import RequestLabel

MAX_VALUE = 64  # characters; a longer value is `other`


class RequestLabels:
    """Turns the headers of a request into the values of the configured labels."""

    def __init__(self, rules: Mapping[str, RequestLabel]) -> None:
        self.names = tuple(rules)
        self._rules = tuple((rule.header.lower().encode(), rule) for rule in rules.values())
        self._known: tuple[set[str], ...] = tuple(set(rule.allow) for rule in rules.values())
        self.overflowed = dict.fromkeys(rules, 0)

    def values(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
        """One value a label, in the order of `names`."""
        if not self._rules:
            return ()
        given: dict[bytes, bytes] = {}
        for name, value in headers:
            given.setdefault(name.lower(), value)
        return tuple(
            self._value(number, rule, given.get(header)) for number, (header, rule) in enumerate(self._rules)
        )

    def _value(self, number: int, rule: RequestLabel, raw: bytes | None) -> str:
        text = (raw or b"").strip().decode("utf-8", "replace")
        known = self._known[number]
        if not text or text in known:
            return text
        if not rule.allow and len(known) < rule.max and len(text) <= MAX_VALUE and text.isprintable():
            known.add(text)
            return text
        if not rule.allow:
            self.overflowed[self.names[number]] += 1
        return OTHER
