"""Requests in flight on a connection, of threads or of a loop, and their replies, pending or done."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from meta_client.errors import ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.net.heartbeat import Beat, HeartBeat
from meta_client.net.opaques import next_opaque
from meta_client.net.wakeups import Waiter, wait_done
from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_flight
from meta_client.protocol.errors import printable_line
from meta_client.protocol.requests import OPAQUE_ABSENT, Body, Quit, Request, Version
from meta_client.protocol.responses import Response, Result
from meta_client.protocol.version import Capabilities
from zk.tree.broker_url import BrokerUrl

OUTSTANDING_MAX: Final = 65_536  # replies due at a time; bounds the memory that a runaway caller takes
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024  # of buffers for long answers, in one connection


class PendingReply:
    """The reply to one request, pending or done. Any thread may wait."""

    __slots__ = ("_failure", "_on_done", "_response", "_source", "is_done", "opaque", "waiters")

    def __init__(self, source: "RequestsInFlight", opaque: int, on_done: "OnDone | None" = None) -> None:
        self.opaque = opaque
        self.is_done = False  # set with the outcome, like the next two
        self._response: Response | None = None
        self._failure: BaseException | None = None
        self._on_done = on_done
        self._source = source
        self.waiters: list[Waiter] = []  # until it is done

    @property
    def is_answered(self) -> bool:
        """True once there is a response; False also if it is done without one, as when the connection was lost."""
        return self._response is not None

    def wait_until_done(self, timeout_s: float) -> None:
        """Wait until the reply is done or *timeout_s* seconds have passed."""
        if not self.is_done:
            deadline = time.monotonic() + timeout_s
            self._source.read_for(self, deadline)
            wait_done(self, deadline)

    def wait(self, timeout_s: float) -> Response:
        """Return the response. Raises ReplyTimeout (final: a late reply is dropped) or ConnectionLost."""
        if not self.is_done:
            self.wait_until_done(timeout_s)
            if not self.is_done:
                self._source.expire(self.opaque, timeout_s)
                wait_done(self, math.inf)  # if expire() came too late, another thread is about to complete the reply
        if self._response is not None:
            return self._response
        url = self._source.url
        if isinstance(self._failure, ReplyTimeout):
            raise ReplyTimeout(
                f"{url} gave no answer within {self._failure}: the request may have acted, look before repeating it"
            )
        raise ConnectionLost(
            f"connection to {url} lost before the answer ({self._failure}): "
            "the request may have acted, look before repeating it"
        ) from self._failure

    def succeed(self, response: Response) -> None:
        """Complete with *response*. Call this or `fail`, once; the caller then wakes the *waiters*."""
        self._response = response
        self.is_done = True
        if self._on_done is not None:
            self._on_done(self)

    def fail(self, failure: BaseException) -> None:
        """Complete with *failure*. The caller then wakes the *waiters*."""
        self._failure = failure
        self.is_done = True
        if self._on_done is not None:
            self._on_done(self)


OnDone = Callable[[PendingReply], None]


class RequestsInFlight(ABC):
    """Base of a connection, or of the remains of one: a broken connection stays broken (Connections makes a new one).

    Subclasses say which threads may call, and guard what is here.
    """

    def __init__(self, url: BrokerUrl) -> None:
        self.url = url
        self.is_refused = False  # by a broker at its connection limit
        self._pending: dict[int, PendingReply] = {}
        self._failure: BaseException | None = None
        self._decoder = ResponseDecoder(buffers=BodyBuffers(KEPT_BYTES_MAX))
        self._beat = HeartBeat()
        self._beat_opaque: int | None = None
        self._capabilities: Capabilities | None = None  # two threads may both ask: the reply is the same

    def submit(self, request: Request, on_done: OnDone | None = None, *, is_urgent: bool = True) -> PendingReply:
        """Send *request*, which needs an unused opaque (next_opaque), and return its pending reply.

        *on_done* is called with the reply once it is done, where replies are read: it must not block. A request that is
        not *is_urgent* may be delayed to share a system call while other replies are due, or once a thread waits for
        its reply. In a loop all requests of one iteration are sent together.

        Returns once the bytes are handed to the operating system or to a sending thread. Raises NotConnected or
        TooManyRequests if nothing was sent, LocalProtocolError for an invalid request. If the connection breaks later,
        the reply's wait() raises ConnectionLost.
        """
        (reply,) = self._submit([request], on_done, is_urgent=is_urgent)
        return reply

    def submit_all(self, requests: Sequence[Request]) -> list[PendingReply]:
        """Send *requests* together, in order: all or none. Raises as submit."""
        return self._submit(requests, None, is_urgent=True)

    def capabilities(self, timeout_s: float) -> Capabilities:
        """Return the capabilities in the peer's version text; asked once. In a loop, inside `run`. Raises ReplyTimeout,
        ConnectionLost, RemoteError."""
        if (known := self._capabilities) is None:
            response = self.submit(Version(next_opaque())).wait(timeout_s)
            text = response.message if isinstance(response, Result) and response.is_success else b""
            known = self._capabilities = Capabilities.parse(text)
        return known

    @abstractmethod
    def _submit(self, requests: Sequence[Request], on_done: OnDone | None, *, is_urgent: bool) -> list[PendingReply]:
        """Send what _add_pending has taken."""

    @abstractmethod
    def _write(self, pieces: list[Body]) -> None: ...

    @abstractmethod
    def _break(self, failure: BaseException) -> None:
        """Fail everything pending and close the socket. The first failure counts."""

    @abstractmethod
    def read_for(self, reply: PendingReply, deadline: float) -> None:
        """Read replies until *reply* is done or *deadline* (monotonic) has passed; return at once if another thread is
        reading."""

    @abstractmethod
    def expire(self, opaque: int, after_s: float) -> None:
        """Fail the reply of *opaque* with ReplyTimeout of *after_s* seconds, unless it is done."""

    def _add_pending(self, requests: Sequence[Request], on_done: OnDone | None) -> list[PendingReply]:
        """Return the pending replies of *requests*, which are sent next. Raises NotConnected, TooManyRequests."""
        if self._failure is not None:
            text = f"connection to {self.url} is lost ({self._failure}): try again for a new one"
            raise NotConnected(text) from self._failure
        pending = self._pending
        if len(pending) + len(requests) > OUTSTANDING_MAX:
            raise TooManyRequests(f"{OUTSTANDING_MAX} answers are due from {self.url}: wait for some of them first")
        replies: list[PendingReply] = []
        for request in requests:
            assert not isinstance(request, Quit), "quit has no answer"
            opaque = request.opaque
            assert opaque not in pending, "an opaque is used once"
            reply = pending[opaque] = PendingReply(self, opaque, on_done)
            replies.append(reply)
        return replies

    def _on_unawaited(self, response: Response) -> None:
        """Take a response that nobody awaits: to a heartbeat, of a broker that refuses, or to what was abandoned, as
        after a time-out or a transaction's END."""
        if response.opaque == self._beat_opaque:
            self._beat_opaque = None
            self._obey(self._beat.answered(good=isinstance(response, Result) and response.is_success))
        elif response.opaque == OPAQUE_ABSENT and isinstance(response, Result) and not response.is_success:
            self.is_refused = True  # a broker at its limit answers before any request, with the opaque we never use
            self._break(ConnectionLost(f"the broker takes no further connection: {printable_line(response.text)}"))

    def _obey(self, beat: Beat) -> None:
        match beat:
            case Beat.SEND:
                self._beat_opaque = next_opaque()
                self._write(encode_flight([Version(self._beat_opaque)]))
            case Beat.GIVE_UP:
                self._break(ConnectionLost("no good answer to three heartbeats"))
            case Beat.WAIT:
                pass
