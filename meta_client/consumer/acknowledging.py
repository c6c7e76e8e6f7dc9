"""Manual acknowledgement: the delivered and the acknowledged offset of a partition."""

import threading
from collections.abc import Callable

from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry


class AckWindow:
    """The unacknowledged part [acknowledged, delivered) of one partition, empty at first and after every seek. Any
    thread.

    An acknowledgement from before a seek or a rebalance falls outside and moves nothing.
    """

    def __init__(self, advance: Callable[[OffsetEntry], None]) -> None:
        """*advance* is called with progress, under the lock, so that none is reported after close()."""
        self._advance = advance
        self._lock = threading.Lock()  # guards the next two
        self._acknowledged = 0
        self._delivered: int | None = None  # None: nothing is delivered

    def open(self, offset: int, next_offset: int) -> None:
        """Extend the window before messages of [offset, next_offset) are delivered."""
        with self._lock:
            if self._delivered is None:
                self._acknowledged = self._delivered = offset
            self._delivered = max(self._delivered, next_offset)

    @property
    def is_open(self) -> bool:
        """True if the last delivery still counts."""
        return self._delivered is not None

    @property
    def is_settled(self) -> bool:
        """True if everything delivered is acknowledged."""
        with self._lock:
            return self._delivered is None or self._acknowledged >= self._delivered

    def pass_over(self, message: ReceivedMessage) -> None:
        """Skip *message*, which a filter rejects: it is acknowledged if everything before it is."""
        with self._lock:
            if self._delivered is not None and self._acknowledged == message.offset:
                self._move(message)

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Acknowledge everything up to and including *message*; False if its delivery no longer counts."""
        with self._lock:
            if self._delivered is None or not message.next_offset <= self._delivered:
                return False
            if message.next_offset > self._acknowledged:
                self._move(message)
            return True

    def close(self) -> int | None:
        """Empty the window; return the offset to deliver again from, None if it was empty."""
        with self._lock:
            was_open, self._delivered = self._delivered is not None, None
            return self._acknowledged if was_open else None

    def _move(self, message: ReceivedMessage) -> None:
        self._acknowledged = message.next_offset
        self._advance(OffsetEntry(message.topic, message.partition, message.next_offset, message.message_id))
