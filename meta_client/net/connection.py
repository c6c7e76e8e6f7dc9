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

from meta_client.errors import ClientClosed, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.net.dialing import connected_socket
from meta_client.net.heartbeat import IDLE_S, Beat, HeartBeat
from meta_client.net.login import log_in
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import OnDone, PendingReply
from meta_client.net.security import PLAIN, Security
from meta_client.net.send_queue import SendQueue, Turn
from meta_client.net.tls import ByteStream
from meta_client.net.wakeups import wake
from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_flight
from meta_client.protocol.errors import MetaError, RemoteProtocolError, printable_line
from meta_client.protocol.requests import OPAQUE_ABSENT, Quit, Request, Version
from meta_client.protocol.responses import Response, Result
from meta_client.protocol.version import Capabilities
from zk.forks import detach_descriptor, invalidate_after_fork
from zk.tree.broker_url import BrokerUrl

OUTSTANDING_MAX = 65_536  # replies due at a time; bounds the memory that a runaway caller takes
RECEIVE_BYTES = 64 * 1024  # more would be mapped and unmapped for every call
KEPT_BYTES_MAX = 8 * 1024 * 1024  # of buffers for long answers, in one connection
UNREAD_MAX = 16  # with more replies due, the reader thread reads even if no thread waits
WAITING_FEW = 4  # with more replies due, the reader thread reads for the waiting threads
LOOK_S = 1.0  # interval of checks on an idle connection
ENDING_S = 0.001  # between looks whether others have ended, at once: the socket is shut down
JOIN_S = 1.0  # the reader thread ends in less, unless it waits for the thread that closes

_log = logging.getLogger(__name__)


class Connection:
    """A live connection, or the remains of one: a broken connection stays broken (Connections makes a new one)."""

    def __init__(self, url: BrokerUrl, connected: ByteStream) -> None:
        """Take over *connected*, made by open(), and start the reader thread."""
        self.url = url
        self._socket = connected
        self._lock = threading.Lock()  # guards the next three, except that the queue sends without it
        self._pending: dict[int, PendingReply] = {}
        self._failure: BaseException | None = None
        self._outgoing = SendQueue(connected)
        self._received_at = time.monotonic()  # last byte in
        self.is_refused = False  # by a broker at its connection limit
        self._capabilities: Capabilities | None = None  # two threads may both ask: the reply is the same
        self._reading = Turn()  # guards the next four
        self._decoder = ResponseDecoder(buffers=BodyBuffers(KEPT_BYTES_MAX))
        self._readable = select.poll()
        self._beat = HeartBeat()
        self._beat_opaque: int | None = None
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

    def submit(self, request: Request, on_done: OnDone | None = None, *, is_urgent: bool = True) -> PendingReply:
        """Send *request*, which needs an unused opaque (next_opaque), and return its pending reply.

        *on_done* is called with the reply once it is done, on the thread that reads: it must not block. A request that
        is not *is_urgent* may be delayed to share a system call while other replies are due: it is sent with the first
        request after PATIENCE_S (send_queue), or once a thread waits for its reply.

        Returns once the bytes are handed to the operating system or to a sending thread. Raises NotConnected or
        TooManyRequests if nothing was sent, LocalProtocolError for an invalid request. If the connection breaks later,
        the reply's wait() raises ConnectionLost.
        """
        (reply,) = self._submit([request], on_done, is_urgent=is_urgent)
        return reply

    def submit_all(self, requests: Sequence[Request]) -> list[PendingReply]:
        """Send *requests* together, in order: all or none. Raises as submit."""
        return self._submit(requests, None)

    def _submit(
        self, requests: Sequence[Request], on_done: OnDone | None, *, is_urgent: bool = True
    ) -> list[PendingReply]:
        pieces = encode_flight(requests)
        replies: list[PendingReply] = []
        for request in requests:
            assert not isinstance(request, Quit), "quit has no answer"
            replies.append(PendingReply(self, request.opaque, on_done))
        with self._lock:
            if self._failure is not None:
                raise NotConnected(
                    f"connection to {self.url} is lost ({self._failure}): try again for a new one"
                ) from self._failure
            if len(self._pending) + len(replies) > OUTSTANDING_MAX:
                raise TooManyRequests(f"{OUTSTANDING_MAX} answers are due from {self.url}: wait for some of them first")
            has_time = not is_urgent and bool(self._pending)
            for reply in replies:
                assert reply.opaque not in self._pending, "an opaque is used once"
                self._pending[reply.opaque] = reply
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

    def capabilities(self, timeout_s: float) -> Capabilities:
        """Return the capabilities in the peer's version text; asked once. Raises ReplyTimeout, ConnectionLost,
        RemoteError."""
        if (known := self._capabilities) is None:
            response = self.submit(Version(next_opaque())).wait(timeout_s)
            text = response.message if isinstance(response, Result) and response.is_success else b""
            known = self._capabilities = Capabilities.parse(text)
        return known

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
        """Fail the reply of *opaque* with ReplyTimeout of *after_s* seconds, unless it is done."""
        with self._lock:
            reply = self._pending.pop(opaque, None)
        if reply is not None:
            reply.fail(ReplyTimeout(f"{after_s:g} s"))
            wake([reply])

    # -- reading: by one thread at a time, which holds `_reading` -------------------------------------------------

    def read_for(self, reply: PendingReply, deadline: float) -> None:
        """Read replies until *reply* is done, as Source.read_for.

        Sends the request first if it was delayed. While many replies are due, the reader thread reads for all waiting
        threads: each of them would soon have its own reply and stop reading.
        """
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

    def _on_unawaited(self, response: Response) -> None:
        if response.opaque == self._beat_opaque:
            self._beat_opaque = None
            self._obey(self._beat.answered(good=isinstance(response, Result) and response.is_success))
        elif response.opaque == OPAQUE_ABSENT and isinstance(response, Result) and not response.is_success:
            self.is_refused = True  # a broker at its limit answers before any request, with the opaque we never use
            self._break(ConnectionLost(f"the broker takes no further connection: {printable_line(response.text)}"))
        # else: abandoned, as after a time-out or a transaction's END

    def _obey(self, beat: Beat) -> None:
        match beat:
            case Beat.SEND:
                self._beat_opaque = next_opaque()
                self._outgoing.add(encode_flight([Version(self._beat_opaque)]))
                self._outgoing.send(self._break)
            case Beat.GIVE_UP:
                self._break(ConnectionLost("no good answer to three heartbeats"))
            case Beat.WAIT:
                pass

    def _break(self, failure: BaseException) -> None:
        """Fail all pending replies and wake the reader thread, which closes the socket. Any thread; only the first call
        counts."""
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
