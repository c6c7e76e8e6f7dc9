"""Receives the requests of one connection, and accounts for what has arrived of incomplete ones. Pure."""

from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.decoder import RequestDecoder
from meta_client.protocol.limits import Limits
from meta_client.protocol.requests import Dropped, Request

TRICKLE_BYTES = 1024  # less of an incomplete request, within idle_seconds_max, is no sign of life


class RequestReceiver(RequestDecoder):
    """A decoder with the place where bytes arrive: the rest of a large body, or a chunk that all connections share,
    as it is empty again before another one reads."""

    def __init__(self, limits: Limits, buffers: BodyBuffers, chunk: memoryview) -> None:
        super().__init__(limits, buffers)
        self._chunk = chunk
        self._is_body = False  # what is being received
        self._trickled = 0  # bytes since the last sign of life
        self._reported = 0  # bytes held of an incomplete body, as `changed_bytes` returned them last

    def room(self) -> memoryview:
        """Return where to put the next bytes."""
        room = self.body_room
        self._is_body = room is not None
        return self._chunk if room is None else room

    def arrived(self, count: int) -> list[Request | Dropped]:
        """Return the requests that *count* bytes in `room` complete. Raises RemoteProtocolError."""
        return self.body_received(count) if self._is_body else self.receive_data(bytes(self._chunk[:count]))

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
