"""Receives the requests of one connection, and accounts for what has arrived of incomplete ones. Pure."""

from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.decoder import RequestDecoder
from meta_client.protocol.limits import Limits
from meta_client.protocol.requests import Dropped, Request

CROWDED_BYTES = 4096  # taken at once by a connection that waits for its turn
TRICKLE_BYTES = 1024  # less of an incomplete request, within idle_seconds_max, is no sign of life


class RequestReceiver(RequestDecoder):
    """A decoder with the place where bytes arrive: the rest of a large body, or a chunk that all connections share,
    as it is empty again before another one reads."""

    def __init__(self, limits: Limits, buffers: BodyBuffers, chunk: memoryview) -> None:
        super().__init__(limits, buffers)
        self._chunk = chunk
        self._is_body = False  # what is being received
        self._arrived = b""  # and not decoded yet
        self._trickled = 0  # bytes since the last sign of life
        self._reported = 0  # bytes held of an incomplete body, as `changed_bytes` returned them last

    def room(self, *, is_crowded: bool) -> memoryview:
        """Return where to put the next bytes. *is_crowded*: they will not be decoded at once."""
        room = self.body_room
        self._is_body = room is not None
        if room is None:
            room = self._chunk[:CROWDED_BYTES] if is_crowded else self._chunk
        return room

    def arrived(self, count: int) -> list[Request | Dropped]:
        """Take *count* bytes in `room`. Returns the request that they complete if they are of a large body; else call
        `decode`, before anything more arrives."""
        if self._is_body:
            return self.body_received(count)
        self._arrived = bytes(self._chunk[:count])
        return []

    @property
    def undecoded(self) -> int:
        """Number of bytes that `decode` is for."""
        return len(self._arrived)

    def decode(self) -> list[Request | Dropped]:
        """Return the requests that the bytes taken last complete. Raises RemoteProtocolError."""
        arrived, self._arrived = self._arrived, b""
        return self.receive_data(arrived)

    def discard(self) -> None:
        """Drop what was taken and not decoded."""
        self._arrived = b""

    def is_sign_of_life(self, count: int, *, made_progress: bool) -> bool:
        """Count *count* bytes. True: a request was completed, or enough arrived of one."""
        self._trickled += count
        if alive := made_progress or self._trickled >= TRICKLE_BYTES:
            self._trickled = 0
        return alive

    def changed_bytes(self) -> int | None:
        """Return the bytes held of an incomplete body; None: none is held, as before."""
        held = self.body_bytes_held
        if not held and not self._reported:
            return None
        self._reported = held
        return held
