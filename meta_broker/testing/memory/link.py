"""A connection to a broker in memory. Every request is encoded, so that one the wire cannot carry is refused here,
too.
"""

import threading
from collections.abc import Callable, Sequence

from meta_broker.testing.memory.broker import EXTENSIONS, MemoryBroker
from meta_client.errors import ClientClosed, ConnectionLost, NotConnected, ReplyTimeout
from meta_client.net.pending_reply import OnDone, PendingReply
from meta_client.net.wakeups import wake
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Quit, Request
from meta_client.protocol.version import Capabilities, version_text
from zk.tree.broker_url import BrokerUrl


class MemoryLink:
    """Implements connection.Connection for its callers. Any thread."""

    is_refused = False

    def __init__(self, url: BrokerUrl, broker: MemoryBroker, forget: Callable[["MemoryLink"], None]) -> None:
        self.url = url
        self._broker = broker
        self._forget = forget
        self._lock = threading.Lock()  # guards _pending and _failure
        self._pending: dict[int, PendingReply] = {}
        self._failure: Exception | None = None

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    def submit(self, request: Request, on_done: OnDone | None = None, *, is_urgent: bool = True) -> PendingReply:
        """Send *request*; the reply arrives on this thread if the broker need not wait. Raises NotConnected,
        LocalProtocolError.
        """
        assert not isinstance(request, Quit), "quit has no answer"
        encode_request(request)
        del is_urgent  # nothing is buffered here

        def done(reply: PendingReply) -> None:
            with self._lock:
                self._pending.pop(reply.opaque, None)
            wake([reply])
            if on_done is not None:
                on_done(reply)

        reply = PendingReply(self, request.opaque, done)
        with self._lock:
            if self._failure is not None:
                raise NotConnected(f"connection to {self.url} is lost ({self._failure}): try again for a new one")
            self._pending[request.opaque] = reply
        self._broker.ask(request, self, reply)
        return reply

    def submit_all(self, requests: Sequence[Request]) -> list[PendingReply]:
        """Submit the requests one after the other."""
        return [self.submit(request) for request in requests]

    def capabilities(self, timeout_s: float) -> Capabilities:
        """Return the broker's capabilities, without a request."""
        del timeout_s
        return Capabilities.parse(version_text("memory", EXTENSIONS).encode())

    def abandon(self, opaque: int) -> bool:
        """Drop an unneeded request; False if it has been answered or failed already."""
        with self._lock:
            return self._pending.pop(opaque, None) is not None

    def expire(self, opaque: int, after_s: float) -> None:
        """Fail the request with ReplyTimeout, unless its outcome is here."""
        with self._lock:
            reply = self._pending.pop(opaque, None)
        if reply is not None:
            reply.fail(ReplyTimeout(f"{after_s:g} s"))

    def read_for(self, reply: PendingReply, deadline: float) -> None:
        """Do nothing: the thread that ends the wait delivers the reply (see PendingReply's Source)."""
        del reply, deadline

    def close(self) -> None:
        """Fail pending requests. Idempotent."""
        self.break_(ClientClosed(f"the connection to {self.url} was closed by this client"))

    def break_(self, failure: Exception | None = None) -> None:
        """Break the connection, as a crash of the broker does."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure or ConnectionLost("the broker is gone")
            pending, self._pending = self._pending, {}
        self._broker.gone(self)
        self._forget(self)
        for reply in pending.values():
            reply.fail(self._failure)
