"""W3C Trace Context: what is continued, what begins anew, who is sampled."""

import pytest

from sidecar.core.tracecontext import TraceContext, chosen, derive

RANDOM = bytes(range(1, 25))
NEW = bytes(range(1, 17)).hex()
SPAN = bytes(range(17, 25)).hex()
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{PARENT}-01".encode()

CASES = [
    ("no caller", None, True, TraceContext(NEW, None, SPAN, None)),
    ("a caller that samples", CALLER, True, TraceContext(TRACE, PARENT, SPAN, True)),
    ("a caller that does not", CALLER[:-1] + b"0", True, TraceContext(TRACE, PARENT, SPAN, False)),
    ("not a traceparent", b"00-zz", True, TraceContext(NEW, None, SPAN, None)),
    ("an untrusted caller", CALLER, False, TraceContext(NEW, None, SPAN, None, (TRACE, PARENT))),
    ("an untrusted caller without a trace", None, False, TraceContext(NEW, None, SPAN, None)),
]


@pytest.mark.parametrize(
    ("traceparent", "trust", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_derive(traceparent: bytes | None, trust: bool, expected: TraceContext) -> None:
    assert derive(traceparent, RANDOM, trust=trust) == expected


def of(low: str, sampled: bool | None = None) -> TraceContext:
    return TraceContext("f" * 16 + low, None, SPAN, sampled)


CHOICES = [
    ("the caller's yes", of("f" * 16, True), 0.0, True),
    ("the caller's no", of("0" * 16, False), 1.0, False),
    ("all", of("f" * 16), 1.0, True),
    ("none", of("0" * 16), 0.0, False),
    ("below the half", of("7" + "f" * 15), 0.5, True),
    ("at the half", of("8" + "0" * 15), 0.5, False),
    ("only the low 64 bits count", TraceContext("0" * 16 + "f" * 16, None, SPAN, None), 0.9, False),
]


@pytest.mark.parametrize(("trace", "ratio", "yes"), [r[1:] for r in CHOICES], ids=[r[0] for r in CHOICES])
def test_chosen(trace: TraceContext, ratio: float, yes: bool) -> None:
    assert chosen(trace, ratio) is yes


def test_the_ratio_decides_as_opentelemetrys_own_sampler() -> None:
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    for ratio in (0.001, 0.1, 1 / 3, 0.75):
        sampler = TraceIdRatioBased(ratio)
        for low in range(0, 1 << 64, 1 << 58):
            trace_id = f"{1:016x}{low:016x}"
            decided = sampler.should_sample(None, int(trace_id, 16), "n").decision.is_sampled()
            assert chosen(TraceContext(trace_id, None, SPAN, None), ratio) is decided
