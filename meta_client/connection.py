"""One TCP connection to a broker, shared by every thread of a client: many requests in flight, one reader at a time.

Threads: any number submit and wait. Who waits reads, if nobody does: handing an answer from one thread to another
costs as much as handling it. A thread of the connection's own reads what nobody waits for: answers that are called
back, or that the last reader left behind; now and then it looks whether the peer is still there. Locks are held for
a few instructions, but for `_writing` and `_reading`, which are held while bytes go out and are waited for.
"""

import functools
import logging
import math
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Self

from meta_client.errors import ClientClosed, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.heartbeat import IDLE_S, Beat, HeartBeat
from meta_client.opaques import next_opaque
from meta_client.pending_reply import OnDone, PendingReply
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import JOIN_BYTES_MAX, encode_flight
from meta_client.protocol.errors import MetaError, RemoteProtocolError, one_line
from meta_client.protocol.requests import OPAQUE_ABSENT, Quit, Request, Version
from meta_client.protocol.responses import Response, Result
from meta_client.protocol.version import Capabilities
from meta_client.sleepers import wake
from zk.broker_url import BrokerUrl
from zk.forks import blank, made_here

OUTSTANDING_MAX = 65_536  # answers due at a time; a caller that runs away must not take the process with it
# A buffer above 128 KiB is mapped and unmapped for every call, which costs ten times as much as reading a short answer:
# taken only while there is that much to read.
RECEIVE_BYTES = 64 * 1024
RECEIVE_BYTES_BULK = 256 * 1024
UNREAD_MAX = 16  # answers due before somebody reads, though nobody waits for one yet
WAITING_FEW = 4  # answers due, up to which who waits reads
LOOK_S = 1.0  # how often an idle connection is looked at
IO_TIMEOUT_S = 10  # a broker that takes no byte for this long is as good as gone; reading waits in poll() instead

_log = logging.getLogger(__name__)


class Connection:
    """A live connection, or the remains of one: once broken it stays broken, see Connections for another."""

    def __init__(self, url: BrokerUrl, connected: socket.socket) -> None:
        """Take over *connected*, which open() makes, and start reading."""
        self.url = url
        self._socket = connected
        self._lock = threading.Lock()  # guards the next two
        self._pending: dict[int, PendingReply] = {}
        self._failure: BaseException | None = None
        self._writing = threading.Lock()
        # Whoever has `_writing` sends all of it; bounded by OUTSTANDING_MAX.
        self._outgoing: deque[bytes] = deque()
        self._active_at = time.monotonic()  # last byte in or out
        self.is_refused = False  # by a broker that has too many
        self._capabilities: Capabilities | None = None  # threads may ask twice, and hear the same
        self._reading = threading.Lock()  # guards the next five
        self._decoder = ResponseDecoder()
        self._receive_bytes = RECEIVE_BYTES
        self._readable = select.poll()
        self._beat = HeartBeat()
        self._beat_opaque: int | None = None
        self._readable.register(connected, select.POLLIN)
        made_here(self, functools.partial(blank, connected))
        self._called = threading.Event()  # the reader thread is needed
        self._reader = threading.Thread(target=self._read, name=f"metaq {url}", daemon=True)
        self._reader.start()

    @classmethod
    def open(cls, url: BrokerUrl, timeout_s: float) -> Self:
        """Connect. Raises NotConnected."""
        try:
            connected = socket.create_connection((url.host, url.port), timeout=timeout_s)
        except OSError as error:
            raise NotConnected(f"no connection to {url} ({error}): is the broker up and its port reachable?") from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # The system's own time limits, and a socket that blocks: Python's would ask poll() before every call.
            connected.settimeout(None)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", IO_TIMEOUT_S, 0))
            return cls(url, connected)
        except BaseException:
            connected.close()
            raise

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be sent any more. What the peer has done by now counts, unless answers are due: whoever
        waits for them will see it."""
        if self._failure is None and not self._pending and self._reading.acquire(blocking=False):
            try:
                if self._readable.poll(0):
                    self._read_some(0.0)
            finally:
                self._stop_reading()
        return self._failure is not None

    @property
    def outstanding(self) -> int:
        """How many answers are due."""
        return len(self._pending)

    def submit(self, request: Request, on_done: OnDone | None = None) -> PendingReply:
        """Send *request*, which needs an opaque of its own (next_opaque), and return what will be its answer.

        *on_done* is called with it once the outcome is there, on whichever thread reads: it must not wait for anything.

        Returns once the bytes are with the operating system, or with a thread that is sending. Raises NotConnected or
        TooManyRequests when nothing was sent, LocalProtocolError for what can't be. A connection that breaks later is
        told by wait().
        """
        (reply,) = self._submit([request], on_done)
        return reply

    def submit_all(self, requests: Sequence[Request]) -> list[PendingReply]:
        """As submit, for several that leave together, in their order. Either all are sent, or none."""
        return self._submit(requests, None)

    def _submit(self, requests: Sequence[Request], on_done: OnDone | None) -> list[PendingReply]:
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
            for reply in replies:
                assert reply.opaque not in self._pending, "an opaque is used once"
                self._pending[reply.opaque] = reply
        self._send(pieces)
        if (on_done is not None or len(self._pending) > UNREAD_MAX) and not self._reading.locked():
            self._called.set()
        return replies

    def capabilities(self, timeout_s: float) -> Capabilities:
        """What the peer's version text promises; asked once. Raises ReplyTimeout, ConnectionLost, RemoteError."""
        if (known := self._capabilities) is None:
            response = self.submit(Version(next_opaque())).wait(timeout_s)
            text = response.message if isinstance(response, Result) and response.is_success else b""
            known = self._capabilities = Capabilities.parse(text)
        return known

    def close(self) -> None:
        """Fail what is pending with ConnectionLost and end the reader. Idempotent; not for the reader thread."""
        self._break(ClientClosed(f"the connection to {self.url} was closed by this client"))
        self._reader.join()

    def abandon(self, opaque: int) -> bool:
        """Drop a request that nobody waits for; False if it has been answered or failed already."""
        with self._lock:
            return self._pending.pop(opaque, None) is not None

    def expire(self, opaque: int, after_s: float) -> None:
        """Wait no more for an answer: unless the outcome is here, it becomes ReplyTimeout after *after_s* seconds."""
        with self._lock:
            reply = self._pending.pop(opaque, None)
        if reply is not None:
            reply.fail(ReplyTimeout(f"{after_s:g} s"))
            wake([reply])

    def _send(self, pieces: Sequence[bytes]) -> None:
        """Send, or leave it to the thread that does: one system call for many small requests, and no waiting in line.

        Who sends takes along what others queue meanwhile, and looks again after letting go, so that nothing stays
        behind. It is soon free: encoding a request takes longer than sending one.
        """
        self._outgoing.extend(pieces)
        while self._outgoing and self._writing.acquire(blocking=False):
            try:
                self._drain()
            except OSError as error:
                self._outgoing.clear()
                self._break(error)  # half a command may be out: nothing can follow it
            except BaseException as error:  # ^C, and the same holds
                self._outgoing.clear()
                self._break(error)
                raise
            finally:
                self._writing.release()

    def _drain(self) -> None:
        outgoing = self._outgoing
        while outgoing:
            small: list[bytes] = []  # that are sent as one
            room = JOIN_BYTES_MAX
            while outgoing and (room := room - len(outgoing[0])) >= 0:
                small.append(outgoing.popleft())
            self._socket.sendall(b"".join(small) if small else outgoing.popleft())
            self._active_at = time.monotonic()

    # -- reading: by one thread at a time, which holds `_reading` -------------------------------------------------

    def read_for(self, reply: PendingReply, deadline: float) -> None:
        """As PendingReply's Source says.

        Where many wait, the reader thread reads for all: each of them would soon have its own answer and leave.
        """
        if len(self._pending) > WAITING_FEW:
            if not self._reading.locked():
                self._called.set()
            return
        if not self._reading.acquire(blocking=False):
            return
        try:
            while not reply.is_done and self._failure is None and (left_s := deadline - time.monotonic()) > 0:
                self._read_some(left_s)
        finally:
            self._stop_reading()

    def _stop_reading(self) -> None:
        """Let go of `_reading`; whatever is awaited then, and may have been left to us, the reader thread takes."""
        self._reading.release()
        if self._is_awaited:
            self._called.set()

    @property
    def _is_awaited(self) -> bool:
        return bool(self._pending) or self._beat_opaque is not None

    def _read(self) -> None:
        """The reader thread."""
        try:
            while self._failure is None:
                self._called.wait(LOOK_S)
                self._called.clear()
                if self._reading.acquire(blocking=False):
                    try:
                        self._read_some(0.0)
                        while self._is_awaited and self._failure is None:
                            self._read_some(IDLE_S)
                    finally:
                        self._stop_reading()
        finally:
            with self._reading, self._writing:  # who reads or sends ends at once: the socket is shut down by now
                self._socket.close()

    def _read_some(self, timeout_s: float) -> None:
        """Take what is there, or comes within *timeout_s*; do what is due for the heart-beat if nothing does."""
        wait_s = min(timeout_s, self._beat.wait_s(self._active_at, time.monotonic()))
        is_readable = self._readable.poll(math.ceil(wait_s * 1000))  # an interrupt here loses nothing
        try:
            if not is_readable:
                self._obey(self._beat.check(self._active_at, time.monotonic()))
                return
            if not (chunk := self._socket.recv(self._receive_bytes)):
                raise ConnectionLost("the broker closed it")
            self._receive_bytes = RECEIVE_BYTES_BULK if len(chunk) >= RECEIVE_BYTES else RECEIVE_BYTES
            self._active_at = time.monotonic()
            self._deliver(self._decoder.receive_data(chunk))
        except RemoteProtocolError as error:
            self._deliver(self._decoder.completed_before_failure)
            self._break(error)
        except (OSError, MetaError) as error:
            self._break(error)
        except BaseException as error:  # ^C in the middle of an answer: nobody could tell where the next one begins
            self._break(error)
            raise

    def _deliver(self, responses: list[Response]) -> None:
        """Bring what came in one read, then wake who sleeps for it."""
        with self._lock:
            replies = [self._pending.pop(response.opaque, None) for response in responses]
        try:
            for reply, response in zip(replies, responses, strict=True):
                if reply is not None:
                    reply.succeed(response)
                else:
                    self._on_unawaited(response)
        except BaseException as error:  # ^C: what we hold by now, nobody else can bring
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
            self.is_refused = True  # we never use that opaque: a connection too many is told so before it asks
            self._break(ConnectionLost(f"the broker takes no further connection: {one_line(response.text)}"))
        # else: nobody waits (any more), as after a time-out or a transaction's END

    def _obey(self, beat: Beat) -> None:
        match beat:
            case Beat.SEND:
                self._beat_opaque = next_opaque()
                self._send(encode_flight([Version(self._beat_opaque)]))
            case Beat.GIVE_UP:
                self._break(ConnectionLost("no good answer to three heart-beats"))
            case Beat.WAIT:
                pass

    def _break(self, failure: BaseException) -> None:
        """Fail everything pending and wake the reader, which closes the socket. Any thread; the first one counts."""
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
