"""Number of messages of a partition that are not delivered: offsets count bytes, so that its broker has to count.

A batch that ends where the log does is all there is. Behind any other, the broker is asked, while somebody
reads the lag.
"""

import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from meta_client.net.calls import wait_result
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.protocol.answers import parse_counted
from meta_client.protocol.errors import MetaError
from meta_client.protocol.requests import Count

COUNT_S: Final = 1.0  # between two counts of a partition
COUNT_S_MAX: Final = 5.0  # for one count, which may take several answers
LAG_READ_S: Final = 120.0  # once read, the lag is expected to be read again in this time: scrapes come each minute


@dataclass(slots=True, eq=False)
class Backlog:
    """Messages of one partition that are not delivered. A runner calls it, and the thread that reads answers; any
    thread may read the `lag`."""

    topic: str
    number: int
    _behind: tuple[int, int] = (-1, 0)  # an offset, and how many messages begin there or after it
    _batch: tuple[int, int, int] = (-1, -1, 0)  # offset, next offset and messages of the newest batch
    _asked_at: float = -COUNT_S
    _lag_read_at: float = -LAG_READ_S
    _asked: tuple[Transport, int] | None = None  # the newest request, with its opaque

    def lag(self, offset: int) -> int | None:
        """Return how many messages there are from *offset* on, where the partition continues; None: unknown."""
        self._lag_read_at = time.monotonic()
        (behind, messages), (start, after, size) = self._behind, self._batch
        if behind == offset:
            return messages
        return size + messages if (start, after) == (offset, behind) else None

    def received(self, offset: int, after: int, messages: int, log_end: int) -> bool:
        """Record a batch of the messages [*offset*, *after*); True: the caller should call `request_count`."""
        now, (behind, before) = time.monotonic(), self._behind
        self._batch = offset, after, messages
        if after >= log_end:
            self._behind = after, 0
        elif now > self._lag_read_at + LAG_READ_S:
            self._behind = -1, 0  # it gets old, and nobody reads it
        elif now < self._asked_at + COUNT_S:
            if behind == offset and before > messages:
                self._behind = after, before - messages  # and those that came since
        else:
            self._asked_at = now
            return True
        return False

    def request_count(self, connection: Transport, offset: int) -> None:
        """Have the broker count from *offset* on, without waiting for it. Ends the count before. Raises NotConnected,
        TooManyRequests."""
        if self._asked is not None:
            before, opaque = self._asked
            before.abandon(opaque)
        self._send_count(connection, _Count(offset, self._asked_at), offset)

    def _send_count(self, connection: Transport, count: "_Count", at: int) -> None:
        request = Count(self.topic, self.number, at, next_opaque())
        self._asked = connection, request.opaque
        connection.submit(request, partial(self._answered, connection, count, at))

    def _answered(self, connection: Transport, count: "_Count", at: int, reply: PendingReply) -> None:
        if count.began != self._asked_at or time.monotonic() > count.began + COUNT_S_MAX:
            return
        try:
            start, after, end, messages = parse_counted(wait_result(reply, 0, f"count {self.topic}").message)
            count.messages += messages
            if start != at or start == after < end:
                return  # retention took some, as the next fetch tells; or the broker makes no progress
            if after < end:
                self._send_count(connection, count, after)
            else:
                self._behind = count.offset, count.messages
        except MetaError:
            return  # unknown: a broker that can't answer this is asked for messages, too, and that is logged


@dataclass(slots=True, eq=False)
class _Count:
    """Count of the messages from *offset* on, as far as a broker has answered."""

    offset: int
    began: float
    messages: int = 0
