"""A connection too many: it is told why, and ended."""

import asyncio
from collections.abc import Callable

from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OPAQUE_ABSENT
from meta_client.protocol.status import Status

GOODBYE_S = 2.0  # for the peer to read why and to hang up
REFUSED_MAX = 256  # told why at a time; further ones are dropped without a word


def refusal_line(connections_max: int) -> bytes:
    """What a connection too many reads: a 503 that answers no request.

    Genuine clients drop an answer with an opaque they have not used, and see the end of the connection; metaq's
    know it, and tell its text.
    """
    text = f"{connections_max} connections are open: try again later, or raise broker.connections_max"
    return encode_result(Status.UNAVAILABLE, text.encode(), OPAQUE_ABSENT)


class Refusal(asyncio.Protocol):
    """Takes over a transport: sends one line and waits, for a moment, until the peer has hung up.

    Closing at once would reset the connection if the peer has sent something, and its system could throw the line
    away unread. Loop thread only.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, ended: Callable[[], None]
    ) -> None:
        self._ended = ended
        self._timer = loop.call_later(GOODBYE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        del data  # whatever it asks for

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        self._ended()


def refuse(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, line: bytes, ended: Callable[[], None]
) -> None:
    """Send *line* over *transport*, then end it; *ended* is called once it is gone."""
    transport.set_protocol(Refusal(loop, transport, ended))
    transport.write(line)
    if transport.can_write_eof():
        transport.write_eof()
