"""Limits the number of open connections: those beyond it are rejected, with a reason."""

import asyncio
import functools
import logging
from collections.abc import Callable

from meta_broker.access.accounts import Limit, QuotaAccount
from meta_broker.fd_limits import REJECTING_MAX
from meta_broker.net.identified import Identified
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OPAQUE_ABSENT
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

LOG_S = 60.0  # between two lines about refused connections
GOODBYE_S = 2.0  # for the peer to read the reason and hang up


class ConnectionLimit:
    """Admits at most *connections_max* connections, *per_address_max* of one address, and as many of an account as its
    quota says. Loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connections_max: int, per_address_max: int) -> None:
        self._loop = loop
        self.connections_max = connections_max
        self.per_address_max = per_address_max
        self._by_network: dict[str, int] = {}  # open ones
        self.refused = 0  # since the start
        self._log_at = 0.0  # when a refusal is logged again
        self._rejecting: set[asyncio.Transport] = set()

    def admits(self, transport: asyncio.Transport, peer: Identified, account: QuotaAccount | None, others: int) -> bool:
        """Return whether *transport*, of *peer*, may be open beside *others*, in *account*; if not, it is rejected.

        `closed` follows one that is admitted.
        """
        of_address = self._by_network.get(peer.network, 0)
        if (reply := self._why_not(of_address, account, others, peer.name)) is None:
            self._by_network[peer.network] = of_address + 1
            return True
        self.refused += 1
        if (now := self._loop.time()) >= self._log_at:
            self._log_at = now + LOG_S
            log.warning(
                "connections refused open=%d peer=%s of_peer=%d total=%d",
                others,
                peer.network,
                of_address,
                self.refused,
            )
        if len(self._rejecting) < REJECTING_MAX:
            self._reject(transport, reply)
        else:
            transport.abort()
        return False

    def _why_not(self, of_address: int, account: QuotaAccount | None, others: int, conn: str) -> bytes | None:
        if others >= self.connections_max:
            return limit_reply(self.connections_max)
        if of_address >= self.per_address_max:
            return peer_reply(self.per_address_max)
        if account is not None and (why := account.why_no_connection()):
            account.refused(Limit.CONNECTIONS, self._loop.time(), conn)
            return encode_result(Status.TOO_MANY, why.encode(), OPAQUE_ABSENT)
        return None

    def closed(self, network: str) -> None:
        """Count an admitted connection no longer."""
        left = self._by_network[network] - 1
        if left:
            self._by_network[network] = left
        else:
            del self._by_network[network]

    def _reject(self, transport: asyncio.Transport, reply: bytes) -> None:
        self._rejecting.add(transport)
        transport.set_protocol(Rejection(self._loop, transport, functools.partial(self._rejecting.discard, transport)))
        transport.write(reply)
        if transport.can_write_eof():
            transport.write_eof()

    def abort(self) -> None:
        """Drop the connections that are being rejected."""
        for transport in list(self._rejecting):
            transport.abort()


def limit_reply(connections_max: int) -> bytes:
    """Return what a rejected connection reads: a 503 that answers no request.

    Genuine clients drop a reply with an opaque they have not used, and see the connection end; metaq's recognise it,
    and report its text.
    """
    text = f"{connections_max} connections are open: try again later, or raise broker.connections_max"
    return encode_result(Status.UNAVAILABLE, text.encode(), OPAQUE_ABSENT)


def peer_reply(per_address_max: int) -> bytes:
    """Return the same for a peer whose address has too many: a 429."""
    remedy = "close some, or raise broker.connections_per_address_max"
    text = f"{per_address_max} connections of your address are open: {remedy}"
    return encode_result(Status.TOO_MANY, text.encode(), OPAQUE_ABSENT)


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
