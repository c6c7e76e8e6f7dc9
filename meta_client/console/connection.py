"""A connection to the console: uvicorn's, with an end to the waiting for a request.

uvicorn waits for a request for as long as its peer likes, and refuses whatever comes once there are too many
connections: some that say nothing would keep everybody out. What is no body, behind an answer, fails in its loop.
"""

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from meta_client.console.live import STREAM_S_MAX

CONNECTIONS_MAX: Final = 128
REQUEST_S_MAX: Final = 15.0  # from the connection, or the answer before, to a whole head
ANSWER_S_MAX: Final = STREAM_S_MAX + 60.0  # then the peer has stopped reading


class ConsoleConnection(H11Protocol):
    """Ends if no request arrives in time, and sooner if it waits the longest and others need its place."""

    _limit: asyncio.TimerHandle | None = None
    _is_answering: bool | None = None
    _waits_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= CONNECTIONS_MAX - 1:  # at CONNECTIONS_MAX requests are refused
            waiting = [each for each in self.connections if isinstance(each, ConsoleConnection) and each.waits]
            if waiting:
                min(waiting, key=lambda each: each._waits_since).abort()
        super().connection_made(transport)
        self._renew()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._renew()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._renew()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request. One that has its answer, or a part of it, only ends: uvicorn's answer would be a
        second one, which h11 refuses to send."""
        if not self.waits:  # a request whose body is none: nothing of it is carried out
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._limit is not None:
            self._limit.cancel()

    @property
    def waits(self) -> bool:
        """True if nothing is being answered on it."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def abort(self) -> None:
        """Give its place to others, at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _renew(self) -> None:
        """Begin another time limit if it has begun to wait, or to answer."""
        if self._is_answering is (is_answering := not self.waits):
            return
        self._is_answering, self._waits_since = is_answering, self.loop.time()
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(ANSWER_S_MAX if is_answering else REQUEST_S_MAX, self.abort)
