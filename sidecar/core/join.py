"""Where the time of one request went: the client's view and the engine's, joined by durations alone.

With `first` = f1 of a stream, a = min(t_up, first) and c = min(max(t_conn, a), first) (DESIGN section 6):

    ttft        first - t0  = upload (a - t0) + connect (c - a) + queue + prefill + unattributed
    generation  f_last - f1 = decode + stretch

Nobody outside sees the first token of an answer in one piece: there `first` is `e` less the engine's
decode, and the generation is the decode.

`queue`, `prefill`, `decode` are the engine's own durations; no time stamp of the engine is ever used.
`unattributed` is network, parsing, tokenisation, text that was held back, first delivery; an engine that
does not say its queue has that in it too. A stretch below zero means that the first text was held back
behind the first token (tool calls, stop strings): its size is part of `unattributed`.
"""

from typing import Literal

import msgspec

from sidecar.core.record import RequestRecord
from sidecar.core.server_timings import ServerTimings

Status = Literal["ok", "missing", "negative", "ambiguous"]
Source = Literal["in_band", "span", "none"]

MIN_TOLERANCE = 0.005  # seconds
TOLERANCE = 0.02  # of the interval

GENERATIONS = frozenset({"chat", "text_completion", "responses", "messages", "generate"})
PHASES = ("upload", "connect", "queue", "prefill", "unattributed", "decode", "stretch")
TOTALS = ("ttft", "generation")

_NOTHING = ServerTimings()


class PhaseBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of each phase, signed; None where it is not known or the request has no such phase."""

    status: Status
    source: Source
    upload: float
    connect: float
    queue: float | None = None
    prefill: float | None = None
    unattributed: float | None = None
    decode: float | None = None
    stretch: float | None = None
    ttft: float
    generation: float | None = None

    @property
    def held_back(self) -> float:
        """How long the first text was held back behind the first token, as far as that shows."""
        return max(-self.stretch, 0.0) if self.stretch is not None else 0.0

    def parts(self) -> dict[str, float]:
        """The phases and totals that are known, by name."""
        names = (*PHASES, *TOTALS)
        return {name: seconds for name in names if (seconds := getattr(self, name)) is not None}


def join(
    record: RequestRecord, timings: ServerTimings | None, source: Source, *, ambiguous: bool = False
) -> PhaseBreakdown | None:
    """The phases of a request; None when it is no generation, or came to no first token.

    `ambiguous`: what the engine said may be another request's, so it is not used.
    """
    first = record.f1 if record.streaming else record.e if record.outcome == "completed" else None
    if first is None or record.operation not in GENERATIONS:
        return None
    uploaded = first if record.t_up is None else min(record.t_up, first)
    connected = min(max(record.t_conn or uploaded, uploaded), first)
    upload, connect, total = uploaded - record.t0, connected - uploaded, first - record.t0
    generation = _generation(record)
    if ambiguous or (timings is not None and record.choices > 1):
        status: Status = "ambiguous"
        timings = _NOTHING
    elif timings is None or timings.prefill is None or not (record.streaming or timings.decode is not None):
        status = "missing"
        timings = timings or _NOTHING
    else:
        status = "ok"
    decode, unattributed, stretch = timings.decode, None, None
    if not record.streaming and decode is not None:
        total, generation = total - decode, decode
    if generation is None:
        decode = None
    if status == "ok":
        unattributed = total - upload - connect - (timings.queue or 0.0) - (timings.prefill or 0.0)
        if generation is not None and decode is not None:
            stretch = generation - decode
        if unattributed < -tolerance(total):
            status = "negative"
    return PhaseBreakdown(
        status=status,
        source=source if timings is not _NOTHING else "none",
        upload=upload,
        connect=connect,
        queue=timings.queue,
        prefill=timings.prefill,
        unattributed=unattributed,
        decode=decode,
        stretch=stretch,
        ttft=total,
        generation=generation,
    )


def tolerance(interval: float) -> float:
    """How far below zero a remainder may be for what clocks and scheduling do to it, seconds."""
    return max(MIN_TOLERANCE, TOLERANCE * interval)


def _generation(record: RequestRecord) -> float | None:
    if not record.streaming or record.f1 is None or record.f_last is None or record.outcome != "completed":
        return None
    return record.f_last - record.f1
