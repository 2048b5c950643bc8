"""The command line of `sidecar emulate`."""

import argparse
import sys

import pytest

from sidecar.commands import emulate
from sidecar.emulator.clock import ClockError
from sidecar.emulator.costs import Pause, Slowdown, StepCosts
from sidecar.emulator.options import Api, Fault, Options
from sidecar.emulator.scheduler import Limits


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    emulate.add_arguments(parser)
    return parser.parse_args(arguments)


def test_without_options_it_is_the_default_engine() -> None:
    assert emulate._options(parsed()) == Options()
    assert parsed().listen == ("127.0.0.1", 8000)


# arguments; the options that are not the default's
OPTIONS = {
    "engine": (
        "--model a --model b --seed 7 --output-tokens 9 --max-model-len 500 "
        "--frontend-time 2ms --frontend-token-time 10us",
        {
            "models": ("a", "b"),
            "seed": 7,
            "natural_tokens": 9,
            "max_model_len": 500,
            "frontend_time": 0.002,
            "frontend_per_token": 0.00001,
        },
    ),
    "what has room in a step": (
        "--max-seqs 3 --max-step-tokens 100 --kv-blocks 50 --block-size 32 --no-prefix-caching "
        "--no-chunked-prefill",
        {"limits": Limits(3, 100, 50, 32, prefix_caching=False, chunked_prefill=False)},
    ),
    "how long a step takes": (
        "--step-time 80ms --prefill-token-time 500us --sequence-time 1.5s --context-token-time 2m "
        "--jitter 0.1",
        {"costs": StepCosts(0.08, 0.0005, 1.5, 120.0, 0.1)},
    ),
    "API": (
        "--stream-interval 8 --per-request-metrics --prompt-tokens-details --force-include-usage "
        "--request-id-headers --sse-keep-alive-interval 1s --max-queued 4",
        {"api": Api(8, True, True, True, True, 1.0, 4)},
    ),
    "telemetry": (
        "--otlp http://127.0.0.1:4318 --otlp-delay 100ms --truth /tmp/t",
        {"otlp": "http://127.0.0.1:4318", "otlp_delay": 0.1, "truth": "/tmp/t"},
    ),
    "wall clock": (
        "--clock-offset=-3600 --clock-drift=-2 --clock-step=-5@1.5 --clock-step 7@3",
        {"clock": ClockError(-3600.0, -2.0, ((-5.0, 1.5), (7.0, 3.0)))},
    ),
    "faults": (
        "--hold-back 300ms --cut 3 --error 0/2 --hang 12/5",
        {"hold_back": 0.3, "faults": (Fault("cut", 3), Fault("error", 0, 2), Fault("hang", 12, 5))},
    ),
    "slow phases and stalls": (
        "--slow-prefill 3 --slow-decode 2@60 --slow-decode 4@60-90 --stall 2s@30",
        {
            "costs": StepCosts(
                slow_prefill=(Slowdown(3.0),),
                slow_decode=(Slowdown(2.0, 60.0), Slowdown(4.0, 60.0, 90.0)),
                pauses=(Pause(2.0, 30.0),),
            )
        },
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_options(arguments, expected) -> None:
    options, default = emulate._options(parsed(*arguments.split())), Options()
    changed = {
        n: getattr(options, n) for n in Options.__slots__ if getattr(options, n) != getattr(default, n)
    }
    assert changed == expected


def test_every_option_is_explained_and_in_a_group() -> None:
    parser = argparse.ArgumentParser()
    emulate.add_arguments(parser)
    assert all(action.help for action in parser._actions)
    assert [g.title for g in parser._action_groups if g._group_actions] == ["options", *emulate.GROUPS]


# what is wrong; what is said, and that it ends with 2
CONTRADICTIONS = {
    "a context that the cache can't hold": (("--kv-blocks", "2", "--max-model-len", "33"), "--kv-blocks"),
    "a truth that can't be written": (("--truth", "/nowhere/t"), "--truth"),
}


@pytest.mark.parametrize(("arguments", "said"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused_with_a_reason(arguments, said, capsys) -> None:
    assert emulate.run(parsed("--listen", "127.0.0.1:0", *arguments)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.proto"])
def test_spans_without_their_package_say_what_to_install(missing, monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.proto", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert emulate.run(parsed("--otlp", "http://127.0.0.1:4318")) == 2
    assert "pip install 'inference-sidecar[tracing]'" in capsys.readouterr().err


def test_an_address_that_is_taken_ends_with_1(capsys) -> None:
    """192.0.2.1 is documentation's address (RFC 5737): no interface has it."""
    assert emulate.run(parsed("--listen", "192.0.2.1:1")) == 1
    assert "could not listen" in capsys.readouterr().err
