"""The demo as a user runs it: three seconds, output to a pipe."""

import re
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

DEMO = (sys.executable, "-m", "sidecar", "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


def test_a_demo_of_three_seconds_ends_with_0_and_a_summary() -> None:
    done = subprocess.run(
        (*DEMO, "--seconds", "3", "--rate", "20"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"clients   http://127\.0\.0\.1:\d+/v1/chat/completions", done.stdout)
    assert re.search(r"^ +\d+ s  TTFT .* in flight \d+", done.stdout, re.MULTILINE)
    clients = re.search(r"The clients say: (\d+) requests, (.*)\.", done.stdout)
    sidecar = re.search(r"The sidecar says: (\d+) requests, (.*)\.", done.stdout)
    assert clients is not None
    assert sidecar is not None
    assert int(clients[1]) > 0
    assert int(sidecar[1]) <= int(clients[1]), "who left before the sidecar took the request is not counted"
    assert "completed" in sidecar[2]
    assert re.search(r"TTFT +[\d.]+ ms .* measured less planned", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_it_with_0(number) -> None:
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        for line in demo.stdout:
            if "TTFT" in line:
                break
        demo.send_signal(number)
        rest, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (0, "")
    assert "The sidecar says" in rest


def test_a_part_that_can_not_start_is_an_error_with_its_reason() -> None:
    """192.0.2.1 is documentation's address (RFC 5737): no interface has it."""
    arguments = (*DEMO[:-4], "--listen", "192.0.2.1:1", "--admin", "127.0.0.1:0", "--seconds", "3")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "`sidecar serve` ended with code 1" in done.stderr
    assert "Traceback" not in done.stderr
