"""Accepts connections on a port that speaks TLS, and plain ones from where the configuration allows them.

The first byte of a connection tells TLS from the wire's own lines. Until its handshake is over a connection is none of
the server's: there are few of those, each for a short time, and the oldest of the address with most of them makes room
for a new one. A handshake costs a signature, some milliseconds with an RSA key: each begins once its first record is
complete, and one at a time, with turns of the loop for others in between.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from meta_broker.access.addresses import is_in, network_of, parse_address, parse_range
from meta_broker.config.security_sections import TlsSection
from meta_client.errors import InvalidSecurity
from meta_client.net.tls import certificate_validity
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OPAQUE_ABSENT
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0  # from the connection to its first request
HANDSHAKES_MAX: Final = 1_000  # at a time
ACCEPTED_PER_TURN: Final = 32
PAUSE_S: Final = 0.5  # after the system refused to accept, as without descriptors
CLIENT_HELLO: Final = b"\x16"  # TLS: a handshake record; every line of the wire begins with a letter
DAY_S: Final = 86_400.0
ENDS_SOON_S: Final = 14 * DAY_S
RECORD_HEAD_BYTES: Final = 5  # of TLS: type, version and length; no line of the wire is shorter
RECORD_BYTES_MAX: Final = 1 << 14  # of TLS, without the head
IS_TLS: Final = b"this port speaks TLS: connect with it (tls=TlsConfig(...), --tls-ca)"


class PortTls:
    """The TLS of a broker's ports, renewed while it runs. *context* and *ends*, its certificate's end in seconds
    since 1970 (None: unknown), may be read by any thread."""

    def __init__(self, section: TlsSection) -> None:
        """Load the files. Raises InvalidSecurity."""
        self._load(section)

    def _load(self, section: TlsSection) -> None:
        assert section.certificate is not None
        self.context = section.server_context()
        validity = certificate_validity(section.certificate)
        self.ends = None if validity is None else validity.ends
        self._plain_from = tuple(map(parse_range, section.plain_from))
        if self.ends is not None and (left_s := self.ends - time.time()) < ENDS_SOON_S:
            told = "certificate ends soon, or has ended certificate=%s days=%.1f"
            log.warning(told, section.certificate, left_s / DAY_S)

    def renew(self, section: TlsSection) -> None:
        """Load the files again, for connections from now on; log it, and change nothing, if they can't be used, or if
        clients would refuse the new certificate by its dates and not the former one."""
        assert section.certificate is not None
        try:
            now, validity = time.time(), certificate_validity(section.certificate)
            has_ended = self.ends is not None and self.ends < now
            if validity is not None and not has_ended and not validity.begins <= now <= validity.ends:
                raise InvalidSecurity(
                    f"TLS: the certificate {section.certificate} has ended, or has not begun: name one that holds now"
                )
            self._load(section)
        except InvalidSecurity as error:
            log.error("TLS not renewed, the former certificate stays error=%s", error)
        else:
            log.info("TLS renewed certificate=%s", section.certificate)

    def allows_plain(self, address: str) -> bool:
        """Return whether a peer at *address* may speak without TLS."""
        parsed = parse_address(address)
        return parsed is not None and any(is_in(parsed, among) for among in self._plain_from)


class TlsListener:
    """Accepts on one socket until `close`. Loop thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        tls: PortTls,
        connect: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Take over *listening*, bound; *connect* makes the protocol of a connection."""
        self._loop = loop
        self._socket = listening
        self._tls = tls
        self._connect = connect
        self._opening: dict[asyncio.Task[None], str] = {}  # with the peer's network; oldest first
        self._starting = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Release the address, and end handshakes. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._opening):
            self._cancel(task)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection accepted error=%s", error)
                self._loop.remove_reader(self._socket)
                self._timer = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._socket, self._accept)
                return
            if len(self._opening) >= HANDSHAKES_MAX:
                self._cancel(self._expendable())
            task = self._loop.create_task(self._open(accepted, address[0]))
            self._opening[task] = network_of(address[0])
            task.add_done_callback(lambda task: self._opening.pop(task, None))

    def _expendable(self) -> "asyncio.Task[None]":
        """Return the oldest handshake of the network that has most of them."""
        [(crowd, _)] = Counter(self._opening.values()).most_common(1)
        return next(task for task, network in self._opening.items() if network == crowd)

    def _cancel(self, task: "asyncio.Task[None]") -> None:
        del self._opening[task]
        task.cancel()

    async def _open(self, accepted: socket.socket, address: str) -> None:
        """Hand a connection to its protocol once it may speak, or close it."""
        try:
            accepted.setblocking(False)
            async with asyncio.timeout(HANDSHAKE_S):
                first = await self._peek(accepted, RECORD_HEAD_BYTES)
                if first[:1] == CLIENT_HELLO:
                    length = int.from_bytes(first[3:RECORD_HEAD_BYTES])
                    await self._peek(accepted, RECORD_HEAD_BYTES + min(length, RECORD_BYTES_MAX))
                    async with self._starting:
                        await asyncio.sleep(0)
                    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                    await self._loop.connect_accepted_socket(
                        self._connect,
                        accepted,
                        ssl=self._tls.context,
                        ssl_handshake_timeout=HANDSHAKE_S,
                        ssl_shutdown_timeout=1.0,
                    )
                    return
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                if first and self._tls.allows_plain(address):
                    await self._loop.connect_accepted_socket(self._connect, accepted)
                    return
                if first:
                    log.warning("connection refused peer=%s reason=no TLS", address)
                    accepted.send(encode_result(Status.UNAVAILABLE, IS_TLS, OPAQUE_ABSENT))
                    accepted.shutdown(socket.SHUT_WR)
                    while await self._loop.sock_recv(accepted, 1 << 16):
                        pass  # unread bytes would reset the connection, and the peer might not see the reason
        except (OSError, TimeoutError) as error:  # ssl.SSLError too
            reason = str(error) or f"no handshake within {HANDSHAKE_S:g} s"
            log.log(logging.WARNING if isinstance(error, ssl.SSLError) else logging.DEBUG, _REFUSED, address, reason)
        except asyncio.CancelledError:
            log.debug(_REFUSED, address, "the broker stops, or has too many handshakes")
        with contextlib.suppress(OSError):
            accepted.shutdown(socket.SHUT_RDWR)  # a transport in the middle of a handshake does not close by itself
        accepted.close()

    async def _peek(self, accepted: socket.socket, count: int) -> bytes:
        """Wait for *count* bytes and return them, without taking them. Fewer: the peer sends no more."""
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        readable = self._loop.create_future()
        self._loop.add_reader(accepted, _done, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(accepted)
        with contextlib.suppress(BlockingIOError):
            return accepted.recv(count, socket.MSG_PEEK)
        return b""


_REFUSED: Final = "connection refused peer=%s reason=%s"


def _done(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)
