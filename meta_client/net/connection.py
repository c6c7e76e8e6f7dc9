"""One TCP connection to a broker, shared by every thread of a client: many requests in flight, one reader at a time.

Any number of threads submit and wait. A waiting thread reads the socket itself if no other thread does: handing a reply
from one thread to another costs as much as handling it. The connection's reader thread reads replies that no thread
waits for (those with a callback, or left behind by the last reader) and checks the peer's liveness from time to time.
Locks are held for a few instructions. The turns `_reading` and the send queue's are held during I/O.
"""

import functools
import logging
import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from meta_client.errors import ClientClosed, ConnectionLost, ReplyTimeout
from meta_client.net.dialing import connected_socket
from meta_client.net.heartbeat import IDLE_S
from meta_client.net.login import log_in
from meta_client.net.pending_reply import OnDone, PendingReply, RequestsInFlight
from meta_client.net.security import PLAIN, Security
from meta_client.net.send_queue import SendQueue, Turn
from meta_client.net.tls import ByteStream
from meta_client.net.wakeups import wake
from meta_client.protocol.encoder import encode_flight
from meta_client.protocol.errors import MetaError, RemoteProtocolError
from meta_client.protocol.requests import Body, Request
from meta_client.protocol.responses import Response
from zk.forks import detach_descriptor, invalidate_after_fork
from zk.tree.broker_url import BrokerUrl

RECEIVE_BYTES = 64 * 1024  # more would be mapped and unmapped for every call
UNREAD_MAX = 16  # with more replies due, the reader thread reads even if no thread waits
WAITING_FEW = 4  # with more replies due, the reader thread reads for the waiting threads
LOOK_S = 1.0  # interval of checks on an idle connection
ENDING_S = 0.001  # between looks whether others have ended, at once: the socket is shut down
JOIN_S = 1.0  # the reader thread ends in less, unless it waits for the thread that closes

_log = logging.getLogger(__name__)


class Connection(RequestsInFlight):
    """A connection of threads. Any thread."""

    def __init__(self, url: BrokerUrl, connected: ByteStream) -> None:
        """Take over *connected*, made by open(), and start the reader thread."""
        super().__init__(url)
        self._socket = connected
        self._lock = threading.Lock()  # guards the pending replies, the failure and the queue, which sends without it
        self._outgoing = SendQueue(connected)
        self._received_at = time.monotonic()  # last byte in
        self._reading = Turn()  # guards the decoder, the heartbeat and the next
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)
        invalidate_after_fork(self, functools.partial(detach_descriptor, connected))
        self._called = threading.Event()  # the reader thread is needed
        self._reader = threading.Thread(target=self._read, name=f"metaq {url}", daemon=True)
        self._reader.start()

    @classmethod
    def open(cls, url: BrokerUrl, timeout_s: float, security: Security = PLAIN) -> Self:
        """Connect to *url*, and log in if *security* has credentials. Raises NotConnected (LoginFailed)."""
        connected = connected_socket(url, timeout_s, security.tls)
        try:
            connection = cls(url, connected)
        except BaseException:
            connected.close()
            raise
        if security.credentials is not None:
            try:
                log_in(connection, security.credentials, timeout_s)
            except BaseException:
                connection.close()
                raise
        return connection

    @property
    def is_broken(self) -> bool:
        """True if nothing can be sent any more. Checks the socket for a disconnect, unless replies are due: their
        reader will see it."""
        if self._failure is None and not self._pending:
            self._read_in_turn(lambda: self._read_some(0.0) if self._readable.poll(0) else None)
        return self._failure is not None

    @property
    def outstanding(self) -> int:
        """Number of replies due."""
        return len(self._pending)

    def _submit(self, requests: Sequence[Request], on_done: OnDone | None, *, is_urgent: bool) -> list[PendingReply]:
        """Requests that are not urgent are sent with the first request after PATIENCE_S (send_queue)."""
        pieces = encode_flight(requests)
        with self._lock:
            has_time = not is_urgent and bool(self._pending)
            replies = self._add_pending(requests, on_done)
            if has_time:
                self._outgoing.delay(replies[0].opaque, b"".join(pieces))
            else:
                self._outgoing.add(pieces)
            if self._outgoing.is_delay_over:
                self._outgoing.end_delay()
                has_time = False
        if not has_time:
            self._outgoing.send(self._break)
        if (on_done is not None or len(self._pending) > UNREAD_MAX) and not self._reading.is_taken:
            self._called.set()
        return replies

    def close(self) -> None:
        """Fail pending replies with ConnectionLost and end the reader thread. Idempotent; must not be called on the
        reader thread. A signal's handler may call it: the thread that it has interrupted then frees the socket."""
        self._break(ClientClosed(f"the connection to {self.url} was closed by this client"))
        self._reader.join(JOIN_S)

    def abandon(self, opaque: int) -> bool:
        """Drop the pending reply of *opaque*; False if it is done already."""
        with self._lock:
            return self._pending.pop(opaque, None) is not None

    def expire(self, opaque: int, after_s: float) -> None:
        with self._lock:
            reply = self._pending.pop(opaque, None)
        if reply is not None:
            reply.fail(ReplyTimeout(f"{after_s:g} s"))
            wake([reply])

    # -- reading: by one thread at a time, which holds `_reading` -------------------------------------------------

    def read_for(self, reply: PendingReply, deadline: float) -> None:
        """Send the request first if it was delayed. While many replies are due, the reader thread reads for all waiting
        threads: each of them would soon have its own reply and stop reading."""
        if self._outgoing.is_delayed(reply.opaque):
            with self._lock:
                self._outgoing.end_delay()
            self._outgoing.send(self._break)
        if len(self._pending) > WAITING_FEW:
            if not self._reading.is_taken:
                self._called.set()
            return

        def read() -> None:
            while not reply.is_done and self._failure is None and (left_s := deadline - time.monotonic()) > 0:
                self._read_some(left_s)

        self._read_in_turn(read)

    def _read_in_turn(self, read: Callable[[], None]) -> None:
        """Call *read*, unless another thread reads; then the reader thread takes over if replies are still due."""
        token, has_read = object(), False
        try:
            try:
                if has_read := self._reading.try_acquire(token):
                    read()
            finally:
                self._reading.release(token)
        except BaseException:
            self._reading.release(token)
            self._called.set()
            raise
        if has_read and self._is_awaited:
            self._called.set()

    @property
    def _active_at(self) -> float:
        return max(self._received_at, self._outgoing.sent_at)

    @property
    def _is_awaited(self) -> bool:
        return bool(self._pending) or self._beat_opaque is not None

    def _read(self) -> None:
        """Run the reader thread."""
        try:
            while self._failure is None:
                self._called.wait(LOOK_S)
                self._called.clear()
                self._read_in_turn(self._read_all)
        finally:
            for turn in (self._reading, self._outgoing.sending):  # for good; their holders end at once
                while not turn.try_acquire(self):
                    time.sleep(ENDING_S)
            self._socket.close()

    def _read_all(self) -> None:
        self._read_some(0.0)
        while self._is_awaited and self._failure is None:
            self._read_some(IDLE_S)

    def _read_some(self, timeout_s: float) -> None:
        """Read what is there or arrives within *timeout_s*; without input, do what the heartbeat requires."""
        wait_s = min(timeout_s, self._beat.wait_s(self._active_at, time.monotonic()))
        is_readable = self._readable.poll(math.ceil(wait_s * 1000))  # an interrupt here loses nothing
        try:
            if not is_readable:
                self._obey(self._beat.check(self._active_at, time.monotonic()))
                return
            self._deliver(self._receive())
        except ssl.SSLWantReadError:
            return  # less than TLS can decrypt
        except RemoteProtocolError as error:
            self._deliver(self._decoder.completed_before_failure)
            self._break(error)
        except (OSError, MetaError) as error:
            self._break(error)
        except BaseException as error:  # ^C in the middle of a reply: the start of the next one is unknown
            self._break(error)
            raise

    def _receive(self) -> list[Response]:
        """Receive what is there, and return the responses that it completes."""
        if isinstance(self._socket, socket.socket) and (room := self._decoder.body_room) is not None:
            if count := self._socket.recv_into(room):
                self._received_at = time.monotonic()
                return self._decoder.body_received(count)
        elif chunk := self._socket.recv(RECEIVE_BYTES):  # TLS makes bytes of its own, always
            self._received_at = time.monotonic()
            return self._decoder.receive_data(chunk)
        raise ConnectionLost("the broker closed it")

    def _deliver(self, responses: list[Response]) -> None:
        """Complete the replies to *responses*, then wake their waiters."""
        with self._lock:
            replies = [self._pending.pop(response.opaque, None) for response in responses]
        try:
            for reply, response in zip(replies, responses, strict=True):
                if reply is not None:
                    reply.succeed(response)
                else:
                    self._on_unawaited(response)
        except BaseException as error:  # ^C: these replies are no longer pending, so no other thread can complete them
            for reply in replies:
                if reply is not None and not reply.is_done:
                    reply.fail(error)
            raise
        finally:
            wake(filter(None, replies))

    def _write(self, pieces: list[Body]) -> None:
        self._outgoing.add(pieces)
        self._outgoing.send(self._break)

    def _break(self, failure: BaseException) -> None:
        """Wake the reader thread, too, which closes the socket. Any thread."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            pending, self._pending = self._pending, {}
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                _log.debug("already disconnected broker=%s", self.url)
        self._called.set()
        for reply in pending.values():
            reply.fail(failure)
        wake(pending.values())
        if not isinstance(failure, ClientClosed):
            _log.info("connection lost broker=%s pending=%d error=%s", self.url, len(pending), failure)
