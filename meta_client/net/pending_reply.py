"""The reply to one request, pending or done."""

import math
import time
from collections.abc import Callable
from typing import Protocol

from meta_client.errors import ConnectionLost, ReplyTimeout
from meta_client.net.wakeups import Waiter, wait_done
from meta_client.protocol.responses import Response
from zk.tree.broker_url import BrokerUrl


class Source(Protocol):
    """The connection that a reply arrives on."""

    @property
    def url(self) -> BrokerUrl: ...

    def read_for(self, reply: "PendingReply", deadline: float) -> None:
        """Read replies until *reply* is done or *deadline* (monotonic) has passed; return at once if another thread is
        reading."""

    def expire(self, opaque: int, after_s: float) -> None:
        """Fail the reply with ReplyTimeout, unless it is done."""


class PendingReply:
    """The reply to one request, pending or done. Any thread may wait."""

    __slots__ = ("_failure", "_on_done", "_response", "_source", "is_done", "opaque", "waiters")

    def __init__(self, source: "Source", opaque: int, on_done: "OnDone | None" = None) -> None:
        self.opaque = opaque
        self.is_done = False  # set with the outcome, like the next two
        self._response: Response | None = None
        self._failure: BaseException | None = None
        self._on_done = on_done
        self._source = source
        self.waiters: list[Waiter] = []  # until it is done

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
