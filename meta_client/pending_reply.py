"""The answer to one request, before and after it is here."""

import math
import time
from collections.abc import Callable
from typing import Protocol

from meta_client.errors import ConnectionLost, ReplyTimeout
from meta_client.protocol.responses import Response
from meta_client.sleepers import Sleeper, sleep_until
from zk.broker_url import BrokerUrl


class Source(Protocol):
    """The connection that the answer comes over, as its PendingReply sees it."""

    @property
    def url(self) -> BrokerUrl: ...

    def read_for(self, reply: "PendingReply", deadline: float) -> None:
        """Take answers off the socket until *reply* is here or *deadline* (monotonic) has passed; return at once when
        somebody else does so."""

    def expire(self, opaque: int, after_s: float) -> None:
        """Make it ReplyTimeout, unless the outcome is here."""


class PendingReply:
    """The answer to one request, now or later. Any thread may wait."""

    __slots__ = ("_failure", "_on_done", "_response", "_source", "is_done", "opaque", "sleepers")

    def __init__(self, source: "Source", opaque: int, on_done: "OnDone | None" = None) -> None:
        self.opaque = opaque
        self.is_done = False  # the outcome is here; set by it, like the next two
        self._response: Response | None = None
        self._failure: BaseException | None = None
        self._on_done = on_done
        self._source = source
        self.sleepers: list[Sleeper] = []  # until then

    def join(self, timeout_s: float) -> None:
        """Return once the outcome is here, or *timeout_s* seconds have passed."""
        if not self.is_done:
            deadline = time.monotonic() + timeout_s
            self._source.read_for(self, deadline)
            sleep_until(self, deadline)

    def wait(self, timeout_s: float) -> Response:
        """The response. Raises ReplyTimeout, now and ever after: a late answer is dropped. Or ConnectionLost."""
        if not self.is_done:
            self.join(timeout_s)
            if not self.is_done:
                self._source.expire(self.opaque, timeout_s)
                sleep_until(self, math.inf)  # for whoever has the outcome in hand by then
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
        """The answer has come. Once, or `fail`; whoever calls it wakes the *sleepers* then."""
        self._response = response
        self.is_done = True
        if self._on_done is not None:
            self._on_done(self)

    def fail(self, failure: BaseException) -> None:
        """No answer will come."""
        self._failure = failure
        self.is_done = True
        if self._on_done is not None:
            self._on_done(self)


OnDone = Callable[[PendingReply], None]
