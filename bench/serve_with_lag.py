"""`sidecar serve` that compares its arrival stamps with the send times inside sse_upstream's events.

    python serve_with_lag.py --upstream http://127.0.0.1:8000 [the options of `sidecar serve`]

Stamp minus send time, both CLOCK_MONOTONIC of this machine, of every token event; percentiles in us go to
lag.json in the working directory when it ends.  For the scenarios `lag256` and `lagstep256`.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from sidecar.commands import serve
from sidecar.core.observation import Observation

SENT = re.compile(rb"@@([0-9a-f]{16})")


def watch(late: list[float]) -> None:
    """Every Observation also notes how late each token event's stamp is, in seconds."""
    response_data = Observation.response_data

    def noting(self: Observation, data: bytes, now: float) -> None:
        response_data(self, data, now)
        late.extend(now - int(sent, 16) / 1e9 for sent in SENT.findall(data))

    Observation.response_data = noting


def percentiles(late: list[float]) -> dict[str, float]:
    late.sort()
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {name: round(late[int((len(late) - 1) * share)] * 1e6, 1) for name, share in shares.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    serve.add_arguments(parser)
    late: list[float] = []
    watch(late)
    code = serve.run(parser.parse_args())
    if late:
        Path("lag.json").write_text(json.dumps(percentiles(late) | {"events": len(late)}))
    return code


if __name__ == "__main__":
    sys.exit(main())
