"""The truth of each sequence, for tests that join what others measured with what happened.

All values are seconds of the engine's monotonic clock, differences of planned instants; `null` is what did
not come. Arrival to queue is `frontend`, then `queue`, `prefill`, `decode`; `e2e` is their sum. `ttft` is
the first token since the arrival, `first_text` the first that a client can see, `gaps` the number of gaps
between tokens, of which `longest_gap` is the longest.
"""

from collections import deque
from typing import IO, Any

import msgspec

from sidecar.emulator.engine import Ended
from sidecar.emulator.options import OptionsError

KEPT = 10_000


class Truths:
    """Keeps the latest in memory, and all in a file if there is one."""

    def __init__(self, path: str | None) -> None:
        """Raises OptionsError when the file can't be opened."""
        self.latest: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._file = None if path is None else _opened(path)

    def add(self, ended: Ended) -> None:
        """A sequence ended."""
        line = truth(ended)
        self.latest.append(line)
        if self._file is not None:
            self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "ab", buffering=0)
    except OSError as failed:
        raise OptionsError(f"--truth: {failed}") from failed


def truth(ended: Ended) -> dict[str, Any]:
    """One line: `id` is the bare request id, `choice` the index of the sequence in its response."""
    run, sequence = ended.run, ended.sequence
    since = sequence.arrived
    return {
        "id": run.name,
        "choice": ended.choice,
        "finish_reason": ended.finish_reason,
        "prompt_tokens": sequence.work.prompt_tokens,
        "cached_tokens": sequence.cached_tokens,
        "output_tokens": sequence.tokens,
        "preemptions": sequence.preemptions,
        "frontend": sequence.queued - since,
        "queue": _between(sequence.queued, sequence.started),
        "prefill": _between(sequence.started, sequence.first),
        "decode": _between(sequence.first, sequence.last),
        "ttft": _between(since, sequence.first),
        "first_text": _between(since, run.text_at.get(ended.choice)),
        "e2e": _between(since, sequence.last if sequence.finished else None),
        "gaps": max(0, sequence.tokens - 1),
        "longest_gap": sequence.longest_gap if sequence.tokens > 1 else None,
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
