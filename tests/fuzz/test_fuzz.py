"""The fuzz target runs a fixed number of inputs, seeded with the beginnings of recordings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.replay import body_of, recording, recording_names

TARGET = Path(__file__).with_name("fuzz_stream.py")
RUNS = 20_000
SEED_BYTES = 1500


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info >= (3, 14), reason="atheris has no package for it"
)
def test_no_input_breaks_framing_or_dialects(tmp_path: Path) -> None:
    if not os.environ.get("CI"):
        pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, name in enumerate(recording_names()[::4]):
        body = body_of(recording(name).reads)[:SEED_BYTES]
        (corpus / str(number)).write_bytes(bytes([number % 7, 0, 40]) + body)
    command = [
        sys.executable,
        str(TARGET),
        f"-atheris_runs={RUNS}",
        "-seed=1",
        "-max_len=2048",
        "-timeout=10",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TARGET.parents[2])}
    done = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/", str(corpus)],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {RUNS}" in done.stderr or "Done" in done.stderr, done.stderr[-500:]
