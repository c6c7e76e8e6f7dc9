"""One TCP connection to a broker, shared by every thread of a client: many requests in flight, one reader.

Threads: any number submit and wait; one, owned by the connection, reads. Locks are held for a few instructions,
but for `_writing`, which is held while bytes go out.
"""

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self

from meta_client.errors import ClientClosed, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.heartbeat import Beat, HeartBeat
from meta_client.opaques import next_opaque
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import MetaError, RemoteProtocolError, one_line
from meta_client.protocol.requests import OPAQUE_ABSENT, Quit, Request, Version
from meta_client.protocol.responses import Response, Result
from meta_client.protocol.version import Capabilities
from zk.broker_url import BrokerUrl

OUTSTANDING_MAX = 65_536  # answers due at a time; a caller that runs away must not take the process with it
RECEIVE_BYTES = 256 * 1024  # four of the genuine broker's socket buffers
JOIN_BYTES_MAX = 64 * 1024  # below, copying a buffer into a neighbour is cheaper than a system call
SEND_TIMEOUT_S = 10.0  # a broker that takes no byte for this long is as good as gone

_log = logging.getLogger(__name__)


class PendingReply:
    """The answer to one request, now or later. Any thread may wait."""

    __slots__ = ("_arrived", "_connection", "_failure", "_on_done", "_response", "opaque")

    def __init__(self, connection: "Connection", opaque: int, on_done: "OnDone | None" = None) -> None:
        self.opaque = opaque
        self._on_done = on_done
        self._connection = connection
        self._response: Response | None = None
        self._failure: BaseException | None = None
        self._arrived = threading.Lock()  # held until the outcome is here: the cheapest event there is
        self._arrived.acquire()

    @property
    def is_done(self) -> bool:
        """Whether the outcome is here."""
        return not self._arrived.locked()

    def join(self, timeout_s: float) -> None:
        """Return once the outcome is here, or *timeout_s* seconds have passed."""
        if self._arrived.acquire(timeout=timeout_s):
            self._arrived.release()

    def wait(self, timeout_s: float) -> Response:
        """The response. Raises ReplyTimeout, now and ever after: a late answer is dropped. Or ConnectionLost."""
        url = self._connection.url
        if not self._arrived.acquire(timeout=max(0.0, timeout_s)):
            self._connection.expire(self.opaque, timeout_s)
            self._arrived.acquire()  # it has arrived, or does so at this moment
        self._arrived.release()
        if self._response is not None:
            return self._response
        if isinstance(self._failure, ReplyTimeout):
            raise ReplyTimeout(
                f"{url} gave no answer within {self._failure}: the request may have acted, look before repeating it"
            )
        raise ConnectionLost(
            f"connection to {url} lost before the answer ({self._failure}): "
            "the request may have acted, look before repeating it"
        ) from self._failure

    def _succeed(self, response: Response) -> None:
        self._response = response
        self._arrived.release()
        if self._on_done is not None:
            self._on_done(self)

    def _fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._arrived.release()
        if self._on_done is not None:
            self._on_done(self)


OnDone = Callable[[PendingReply], None]


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
        self._outgoing: deque[tuple[bytes, bytes]] = deque()  # whoever has `_writing` sends all of it
        self._active_at = time.monotonic()  # last byte in or out; any thread writes, only the reader reads
        self.is_refused = False  # by a broker that has too many; reader thread writes
        self._capabilities: Capabilities | None = None  # threads may ask twice, and hear the same
        self._beat = HeartBeat()  # this and the opaque: reader thread alone
        self._beat_opaque: int | None = None
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
            connected.settimeout(SEND_TIMEOUT_S)  # reading waits in poll() instead
            return cls(url, connected)
        except BaseException:
            connected.close()
            raise

    @property
    def is_broken(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._failure is not None

    @property
    def outstanding(self) -> int:
        """How many answers are due."""
        return len(self._pending)

    def submit(self, request: Request, on_done: OnDone | None = None) -> PendingReply:
        """Send *request*, which needs an opaque of its own (next_opaque), and return what will be its answer.

        *on_done* is called with it once the outcome is there, mostly on the reader thread: it must only hand it over.

        Returns once the bytes are with the operating system. Raises NotConnected or TooManyRequests when nothing
        was sent, LocalProtocolError for what can't be. A connection that breaks later is told by wait().
        """
        (reply,) = self._submit([request], on_done)
        return reply

    def submit_all(self, requests: Sequence[Request]) -> list[PendingReply]:
        """As submit, for several that leave together, in their order. Either all are sent, or none."""
        return self._submit(requests, None)

    def _submit(self, requests: Sequence[Request], on_done: "OnDone | None") -> list[PendingReply]:
        pieces = [encode_request(request) for request in requests]
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
            reply._fail(ReplyTimeout(f"{after_s:g} s"))

    def _send(self, pieces: Sequence[tuple[bytes, bytes]]) -> None:
        """Send, together with what other threads queued meanwhile: one system call for many small requests."""
        self._outgoing.extend(pieces)
        with self._writing:
            try:
                self._drain()
            except OSError as error:
                self._outgoing.clear()
                self._break(error)  # half a command may be out: nothing can follow it

    def _drain(self) -> None:
        joined: list[bytes] = []
        joined_bytes = 0
        while self._outgoing:
            for piece in self._outgoing.popleft():
                if joined and joined_bytes + len(piece) > JOIN_BYTES_MAX:
                    self._socket.sendall(b"".join(joined))
                    joined, joined_bytes = [], 0
                joined.append(piece)  # a large one stays alone, and joining one is not a copy
                joined_bytes += len(piece)
        if joined:
            self._socket.sendall(b"".join(joined))
            self._active_at = time.monotonic()

    def _read(self) -> None:
        """The reader thread."""
        decoder = ResponseDecoder()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            while self._failure is None:
                wait_s = self._beat.wait_s(self._active_at, time.monotonic())
                if not poll.poll(wait_s * 1000 + 1):
                    self._check_heart()
                elif not (chunk := self._socket.recv(RECEIVE_BYTES)):
                    raise ConnectionLost("the broker closed it")
                else:
                    self._active_at = time.monotonic()
                    self._deliver(decoder.receive_data(chunk))
        except RemoteProtocolError as error:
            self._deliver(decoder.completed_before_failure)
            self._break(error)
        except (OSError, MetaError) as error:
            self._break(error)
        finally:
            with self._writing:  # a sender ends at once: the socket is shut down by now
                self._socket.close()

    def _deliver(self, responses: list[Response]) -> None:
        with self._lock:
            replies = [self._pending.pop(response.opaque, None) for response in responses]
        for reply, response in zip(replies, responses, strict=True):
            if reply is not None:
                reply._succeed(response)
            elif response.opaque == self._beat_opaque:
                self._beat_opaque = None
                self._obey(self._beat.answered(good=isinstance(response, Result) and response.is_success))
            elif response.opaque == OPAQUE_ABSENT and isinstance(response, Result) and not response.is_success:
                self.is_refused = True  # we never use that opaque: a connection too many is told so before it asks
                raise ConnectionLost(f"the broker takes no further connection: {one_line(response.text)}")
            # else: nobody waits (any more), as after a time-out or a transaction's END

    def _check_heart(self) -> None:
        self._obey(self._beat.check(self._active_at, time.monotonic()))

    def _obey(self, beat: Beat) -> None:
        match beat:
            case Beat.SEND:
                self._beat_opaque = next_opaque()
                self._send([encode_request(Version(self._beat_opaque))])
            case Beat.GIVE_UP:
                raise ConnectionLost("no good answer to three heart-beats")
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
        for reply in pending.values():
            reply._fail(failure)
        if not isinstance(failure, ClientClosed):
            _log.info("connection lost broker=%s pending=%d error=%s", self.url, len(pending), failure)
