"""Manual acknowledgement: which messages of a partition are out, and up to where they are acknowledged."""

import threading
from collections.abc import Callable

from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry


class AckWindow:
    """[acknowledged, delivered) of one partition, empty at first and after every seek. Any thread.

    An acknowledgement from before a seek or a rebalance falls outside and moves nothing.
    """

    def __init__(self, advance: Callable[[OffsetEntry], None]) -> None:
        """*advance* is told of progress; under the lock, so that what closes the window has the last word."""
        self._advance = advance
        self._lock = threading.Lock()  # guards the next two
        self._acknowledged = 0
        self._delivered: int | None = None  # None: nothing is out

    def open(self, offset: int, next_offset: int) -> None:
        """What stands in [offset, next_offset) is about to be handed over."""
        with self._lock:
            if self._delivered is None:
                self._acknowledged = self._delivered = offset
            self._delivered = max(self._delivered, next_offset)

    @property
    def is_open(self) -> bool:
        """Whether what was handed over last still counts."""
        return self._delivered is not None

    @property
    def is_settled(self) -> bool:
        """Whether everything that is out is acknowledged."""
        with self._lock:
            return self._delivered is None or self._acknowledged >= self._delivered

    def pass_over(self, message: ReceivedMessage) -> None:
        """*message* is not handed over, a filter rejects it: consumed, if everything before it is."""
        with self._lock:
            if self._delivered is not None and self._acknowledged == message.offset:
                self._move(message)

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Everything of the partition up to and including *message* is consumed; False: it no longer counts."""
        with self._lock:
            if self._delivered is None or not message.next_offset <= self._delivered:
                return False
            if message.next_offset > self._acknowledged:
                self._move(message)
            return True

    def close(self) -> int | None:
        """Nothing counts any more that is out; returns where it would have to be delivered again from."""
        with self._lock:
            was_open, self._delivered = self._delivered is not None, None
            return self._acknowledged if was_open else None

    def _move(self, message: ReceivedMessage) -> None:
        self._acknowledged = message.next_offset
        self._advance(OffsetEntry(message.topic, message.partition, message.next_offset, message.message_id))
