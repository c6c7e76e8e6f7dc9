"""Rejects connections beyond the limit, with a reason."""

import asyncio
from collections.abc import Callable

from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OPAQUE_ABSENT
from meta_client.protocol.status import Status

GOODBYE_S = 2.0  # for the peer to read the reason and hang up


def limit_reply(connections_max: int) -> bytes:
    """Return what a rejected connection reads: a 503 that answers no request.

    Genuine clients drop a reply with an opaque they have not used, and see the connection end; metaq's recognise it,
    and report its text.
    """
    text = f"{connections_max} connections are open: try again later, or raise broker.connections_max"
    return encode_result(Status.UNAVAILABLE, text.encode(), OPAQUE_ABSENT)


class Rejection(asyncio.Protocol):
    """Takes over a transport: sends one line and waits a moment for the peer to hang up. Loop thread only.

    Closing at once would reset the connection if the peer has sent something, and its system could discard the line
    unread.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, ended: Callable[[], None]
    ) -> None:
        self._ended = ended
        self._timer = loop.call_later(GOODBYE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        del data  # ignored

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        self._ended()


def reject(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, line: bytes, ended: Callable[[], None]
) -> None:
    """Send *line* over *transport*, then end it; *ended* is called once it is closed."""
    transport.set_protocol(Rejection(loop, transport, ended))
    transport.write(line)
    if transport.can_write_eof():
        transport.write_eof()
