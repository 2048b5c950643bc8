"""The body of one request on its way to the engine, small ones kept for the one retry."""

from aiohttp import StreamReader

from sidecar.proxy.front import ClientConnection
from sidecar.proxy.upstream import UpstreamConnection
from sidecar.proxy.watch import Watch

KEPT_BODY = 262144  # bytes


class Upload:
    """Reads the body from the client and writes it to the engine, in the client's framing."""

    __slots__ = ("_chunked", "_client", "_content", "_t0", "_watch", "body", "complete", "kept")

    def __init__(
        self, content: StreamReader, client: ClientConnection, watch: Watch, t0: float, *, chunked: bool
    ) -> None:
        self._content, self._client, self._watch = content, client, watch
        self._t0, self._chunked = t0, chunked
        self.body: bytes | None = None  # all of it, until it is sent, where it came with the head
        self.kept: bytes | None = b""  # what could be sent again; None: no longer all of it
        self.complete = False

    def take(self) -> None:
        """Take a body that has come with the head."""
        if self._content.is_eof():
            self.body = self._content.read_nowait(-1)
            self.complete = True

    @property
    def ended(self) -> bool:
        """The client has sent all of it, read or not."""
        return self.complete or self._content.is_eof()

    def tell(self, body: bytes | None) -> None:
        """Tell of a body that came with the head, sent or not."""
        if body:
            self._watch.tell_data(body, self._client.read_at)
        if self.complete:
            self._tell_end()

    def framed(self) -> bytes | None:
        """The whole body as it goes to the engine, once; None when it has yet to come."""
        body, self.body = self.body, None
        if body is None:
            return None
        self.kept = body if len(body) <= KEPT_BODY else None
        return self._frame(body) + (b"0\r\n\r\n" if self._chunked else b"")

    def again(self) -> None:
        """Make ready to send it a second time."""
        self.body = self.kept if self.complete else None

    async def pump(self, engine: UpstreamConnection) -> None:
        """Send it as it comes; what could be sent again on a retry comes first.

        Raises RequestPayloadError or ConnectionError when the client's framing is broken or it left.
        """
        if self.kept:
            engine.write(self._frame(self.kept))
        while piece := await self._content.readany():
            engine.write(self._frame(piece))
            self._keep(piece)
            self._watch.tell_data(piece, self._client.read_at)
            await engine.drain()
        if self._chunked:
            engine.write(b"0\r\n\r\n")
        self.complete = True
        self._tell_end()

    async def gather(self) -> None:
        """Wait for all of it. Raises as `pump`."""
        pieces = []
        while piece := await self._content.readany():
            pieces.append(piece)
            self._watch.tell_data(piece, self._client.read_at)
        self.body = b"".join(pieces)
        self.complete = True
        self._tell_end()

    def _tell_end(self) -> None:
        self._watch.tell("request_end", max(self._t0, self._client.read_at))

    def _frame(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked and piece else piece

    def _keep(self, piece: bytes) -> None:
        if self.kept is not None:
            self.kept = self.kept + piece if len(self.kept) + len(piece) <= KEPT_BODY else None
