"""How a request ended: the transport's view and the response's own, joined."""

from typing import get_args

import pytest

from sidecar.core.outcome import RULES, Outcome, Seen, conclude

STREAM = {"status": 200, "needs_terminal": True}

ENDS: dict[str, tuple[Seen, Outcome]] = {
    "a stream with its terminal marker": (Seen(end="clean", terminal=True, **STREAM), "completed"),
    "a clean end without one": (Seen(end="clean", output=True, **STREAM), "truncated"),
    "a clean end of something that is not read in depth": (Seen(end="clean", status=200), "completed"),
    "a redirect": (Seen(end="clean", status=307), "completed"),
    "an error event": (Seen(end="clean", error_reported=True, **STREAM), "error_in_stream"),
    "an error event and [DONE]": (
        Seen(end="clean", error_reported=True, terminal=True, **STREAM),
        "error_in_stream",
    ),
    "an error event and a cut": (Seen(end="cut", error_reported=True, **STREAM), "error_in_stream"),
    "the client leaves after an error event": (
        Seen(end="client_left", error_reported=True, output=True, **STREAM),
        "error_in_stream",
    ),
    "finish reason abort, even with [DONE]": (
        Seen(end="clean", failed_reason=True, terminal=True, **STREAM),
        "truncated",
    ),
    "the client leaves after finish reason abort": (
        Seen(end="client_left", failed_reason=True, terminal=True, **STREAM),
        "truncated",
    ),
    "FIN in the middle": (Seen(end="cut", output=True, **STREAM), "truncated"),
    "FIN after the terminal marker but before the body's end": (
        Seen(end="cut", terminal=True, **STREAM),
        "truncated",
    ),
    "FIN before the head": (Seen(end="cut", own_status=502), "upstream_reset"),
    "RST in the middle": (Seen(end="reset", output=True, **STREAM), "upstream_reset"),
    "RST before the head": (Seen(end="reset", own_status=502), "upstream_reset"),
    "no connection": (Seen(end="unreachable", own_status=502), "upstream_unreachable"),
    "a time limit before the head": (Seen(end="timeout", own_status=504), "timeout"),
    "a time limit in the middle": (Seen(end="timeout", **STREAM), "timeout"),
    "refused by the sidecar, too many connections": (Seen(end="rejected", own_status=503), "overloaded"),
    "refused by the sidecar, a bad request": (Seen(end="rejected", own_status=400), "client_error"),
    "refused by the sidecar, a slow upload": (Seen(end="rejected", own_status=408), "client_error"),
    "refused by the sidecar, an unusable answer": (
        Seen(end="rejected", own_status=502),
        "upstream_unreachable",
    ),
    "refused by the sidecar, the engine too slow": (Seen(end="rejected", own_status=504), "timeout"),
    "400": (Seen(end="clean", status=400), "client_error"),
    "404": (Seen(end="clean", status=404), "client_error"),
    "429": (Seen(end="clean", status=429), "overloaded"),
    "503": (Seen(end="clean", status=503), "overloaded"),
    "500": (Seen(end="clean", status=500), "upstream_error"),
    "500 to a streamed request": (Seen(end="clean", status=500, needs_terminal=True), "upstream_error"),
    "a 503 whose body is cut": (Seen(end="cut", status=503), "overloaded"),
    "the client leaves while it reads a 500": (Seen(end="client_left", status=500), "upstream_error"),
    "the client leaves before the head": (Seen(end="client_left"), "client_disconnected_before_output"),
    "the client leaves before output": (
        Seen(end="client_left", **STREAM),
        "client_disconnected_before_output",
    ),
    "the client leaves after output": (Seen(end="client_left", output=True, **STREAM), "client_disconnected"),
    "the client leaves after the terminal marker": (
        Seen(end="client_left", output=True, terminal=True, **STREAM),
        "completed",
    ),
}


@pytest.mark.parametrize(("seen", "outcome"), ENDS.values(), ids=ENDS.keys())
def test_the_outcome(seen: Seen, outcome: Outcome) -> None:
    assert conclude(seen) == outcome


def test_the_rules_can_say_every_outcome_and_no_other() -> None:
    assert {outcome for outcome, _ in RULES} == set(get_args(Outcome))
