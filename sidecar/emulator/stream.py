"""Writes one streamed response: after a step all events of that step at once, each an HTTP chunk of its own.

It writes past aiohttp's response, which would need a task woken for each write. A reader that is too slow
gets several tokens in one event, as with vLLM; nothing piles up but the text itself.
"""

import asyncio
from collections.abc import Iterable

from sidecar.emulator.options import Options
from sidecar.emulator.wire import KEEP_ALIVE, EventWriter

MOST_UNSENT = 64 * 1024


class Stream:
    """One response whose head is out. `chunked`: its client speaks HTTP/1.1."""

    def __init__(
        self, transport: asyncio.WriteTransport, writer: EventWriter, options: Options, chunked: bool
    ) -> None:
        self._transport, self._writer, self._chunked = transport, writer, chunked
        self._interval, self._hold_back = options.api.stream_interval, options.hold_back
        self._loop = asyncio.get_running_loop()
        self._left = [len(answer.pieces) for answer in writer.reply.answers]
        self._held = [0] * len(self._left)
        """Tokens of each choice that are in no event yet."""
        self._begun = False
        self._ready: list[bytes] = []
        self._released: asyncio.Future[None] | None = None
        self._keep_alive: asyncio.TimerHandle | None = None

    def deliver(self, choices: Iterable[int]) -> None:
        """Tokens of these choices were given, in this order."""
        blocked = self._transport.get_write_buffer_size() > MOST_UNSENT
        for choice in choices:
            self._held[choice] += 1
            self._left[choice] -= 1
            is_due = self._held[choice] >= self._interval or self._is_first(choice)
            if not self._left[choice] or (is_due and not blocked):
                self._send(self._writer.tokens(choice, self._held[choice]))
                self._held[choice] = 0
                self._begun = True
        self._flush()

    async def end(self, events: Iterable[bytes]) -> None:
        """Send the last events; returns when all is with the transport."""
        self._send(events)
        self._flush()
        if self._released is not None:
            await self._released
        self.close()

    def keep_alive(self, interval: float) -> None:
        """Send a comment every `interval` seconds until the first event."""
        self._keep_alive = self._loop.call_later(interval, self._comment, interval)

    def close(self) -> None:
        """No more comments."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()

    def _comment(self, interval: float) -> None:
        if not self._begun:
            self._send((KEEP_ALIVE,))
            self._flush()
            self.keep_alive(interval)

    def _is_first(self, choice: int) -> bool:
        """The first token of a choice goes out alone."""
        return len(self._writer.reply.answers[choice].pieces) - self._left[choice] == 1

    def _send(self, events: Iterable[bytes]) -> None:
        if self._chunked:
            self._ready += [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        else:
            self._ready += events

    def _flush(self) -> None:
        if not self._ready or self._released is not None:
            return
        if self._hold_back:
            self._released = self._loop.create_future()
            self._loop.call_later(self._hold_back, self._release)
        else:
            self._write()

    def _release(self) -> None:
        self._write()
        released, self._released = self._released, None
        if released is not None and not released.done():
            released.set_result(None)

    def _write(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._ready))
        self._ready.clear()
