"""The processes of a run: the upstream emulator, the proxies under test, the load client."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SYSTEM_BINARIES = "/usr/sbin:/usr/local/sbin"  # where distributions put nginx and haproxy, off many PATHs
PROBE = b'{"model":"demo-model","messages":[{"role":"user","content":"hi"}],"stream":false}'

Spec = dict[str, Any]


def load_variants() -> dict[str, Spec]:
    return json.loads((HERE / "variants.json").read_text())


def find_program(name: str, python: str) -> str | None:
    """A command of variants.json: the Python's own directory first, so that a venv's Envoy is found."""
    path = os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", ""), SYSTEM_BINARIES])
    return python if name == "@PYTHON@" else shutil.which(name, path=path)


def missing(spec: Spec, python: str) -> bool:
    """Whether a variant's program, or the module that it needs, is not installed."""
    if not spec.get("cmd"):
        return False
    if find_program(spec["cmd"][0], python) is None:
        return True
    module = spec.get("module")
    return (
        bool(module)
        and subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode != 0
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.read()


class Upstream:
    """The emulator of an inference server."""

    def __init__(self, cpus: set[int]) -> None:
        self.port = free_port()
        self._process = subprocess.Popen([HERE / "sse_upstream", str(self.port)], preexec_fn=pinned(cpus))
        self.pid = self._process.pid
        wait_until_answering(self.port, 5, self._process)

    def set(self, tokens: int, rate: int, step: bool = False, delay_us: int = 5000) -> None:
        """What later streams do; `rate` in tokens/s a stream, 0 as fast as they are read."""
        get(self.port, f"/__set?n={tokens}&rate={rate}&delay_us={delay_us}&step={int(step)}")

    def stats(self) -> dict[str, int]:
        return json.loads(get(self.port, "/__stats"))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(5)


class Peer:
    """One proxy under test, pinned with all its threads, in a process group of its own."""

    def __init__(self, name: str, spec: Spec, upstream: int, python: str, cpus: set[int]) -> None:
        self.name = name
        self.port, self.admin_port = free_port(), free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="sidecar-bench-"))
        self._fields = {
            "@PORT@": str(self.port), "@PORT2@": str(self.admin_port), "@UP@": str(upstream),
            "@DIR@": str(self.directory), "@HERE@": str(HERE), "@ROOT@": str(ROOT), "@PYTHON@": python,
        }  # fmt: skip
        for template in spec.get("templates", []):
            source = HERE / template
            (self.directory / source.stem).write_text(self._fill(source.read_text()))
        command = [find_program(spec["cmd"][0], python) or spec["cmd"][0], *map(self._fill, spec["cmd"][1:])]
        env = os.environ | {key: self._fill(value) for key, value in spec.get("env", {}).items()}
        with open(self.directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=env,
                cwd=self.directory,
                preexec_fn=pinned(cpus),
                process_group=0,
            )
        self.pid = self._process.pid
        self._wait_until_ready()

    def _fill(self, text: str) -> str:
        for field, value in self._fields.items():
            text = text.replace(field, value)
        return text

    def _wait_until_ready(self) -> None:
        try:
            wait_until_answering(self.port, 30, self._process, "/v1/chat/completions", PROBE)
        except RuntimeError as failed:
            log = (self.directory / "log").read_text(errors="replace")[-800:]
            self.close()
            raise RuntimeError(f"{self.name} {failed}: {log}") from None

    def terminate(self) -> None:
        """SIGTERM to the group, SIGKILL after 5 s.  What it wrote stays until close()."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
                self._process.wait(5)
                return
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                return

    def close(self) -> None:
        if self._process.poll() is None:
            self.terminate()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pinned(cpus: set[int]) -> Any:
    """For Popen: every thread and child of the new process stays on these CPUs."""
    return lambda: os.sched_setaffinity(0, cpus)


def wait_until_answering(
    port: int,
    seconds: float,
    process: subprocess.Popen[bytes],
    path: str = "/v1/models",
    body: bytes | None = None,
) -> None:
    """Returns at the first answer; raises RuntimeError when the process ended or time is up."""
    headers = {"content-type": "application/json"}
    end = time.monotonic() + seconds
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError as problem:
            if process.poll() is not None:
                raise RuntimeError(f"ended with exit code {process.returncode}") from None
            if time.monotonic() > end:
                raise RuntimeError(f"is not ready after {seconds:g} s ({problem!r})") from None
            time.sleep(0.1)


def start_load(port: int, arguments: list[str], cpus: set[int]) -> subprocess.Popen[str]:
    command = [HERE / "sse_load", "-p", str(port), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=pinned(cpus))


def load_result(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    """The load client's JSON line.  The client ends by itself; one that does not is killed."""
    try:
        out, _ = process.communicate(timeout=seconds + 20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RuntimeError("the load client hangs") from None
    return json.loads(out.splitlines()[-1])
