"""Manual acknowledgement: the delivered and the acknowledged offset of a partition."""

import threading
from collections.abc import Callable, Iterable

from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry


class AckWindow:
    """The unacknowledged part [acknowledged, delivered) of one partition, empty at first and after every seek. Any
    thread.

    A message delivered before a seek or a rollback counts only once it is delivered again, by its id: a broker that
    lost it in a promotion gives its offset to another.
    """

    def __init__(self, advance: Callable[[OffsetEntry], None]) -> None:
        """*advance* is called with progress, under the lock, so that none is reported after close()."""
        self._advance = advance
        self._lock = threading.Lock()  # guards all below
        self._acknowledged = 0
        self._delivered: int | None = None  # None: nothing is delivered
        self._is_rolled_back = False  # until resume(); what lies behind may still be on its way
        self._end = 0  # of all that was ever delivered
        self._end_closed = 0  # the same, when it was closed last; 0 once that much is acknowledged again
        self._passed: dict[int, ReceivedMessage] = {}  # by offset: the last one of what was passed over
        self._again: dict[int, int] = {}  # ids of messages below `_end_closed` delivered since, by next offset

    def open(self, messages: Iterable[ReceivedMessage], offset: int, next_offset: int) -> None:
        """Extend the window before *messages*, those to deliver of [offset, next_offset), are delivered; without them
        if hand_over() is called for each."""
        with self._lock:
            if self._is_rolled_back:
                return
            if self._delivered is None:
                self._acknowledged = self._delivered = offset
            self._delivered = max(self._delivered, next_offset)
            self._end = max(self._end, next_offset)
            if offset < self._end_closed:
                self._again.update((m.next_offset, m.message_id) for m in messages if m.offset < self._end_closed)

    def hand_over(self, message: ReceivedMessage) -> bool:
        """Note that *message* is delivered now, one of a range that was opened without its messages; False if the range
        no longer counts: it was sought or rolled back."""
        with self._lock:
            if self._delivered is None:
                return False
            if message.offset < self._end_closed:
                self._again[message.next_offset] = message.message_id
            return True

    @property
    def unacknowledged_from(self) -> int | None:
        """Offset of the first message that is delivered and not acknowledged; None: there is none."""
        with self._lock:
            if self._is_rolled_back:
                return self._acknowledged
            return None if self._delivered is None or self._acknowledged >= self._delivered else self._acknowledged

    def pass_over(self, offset: int, last: ReceivedMessage) -> None:
        """Skip the messages from *offset* up to and including *last*, which a filter rejects: they are acknowledged
        once everything before them is."""
        with self._lock:
            if self._delivered is not None:
                self._passed[offset] = last
                if offset <= self._acknowledged < last.next_offset:
                    self._move(last)

    def acknowledge(self, message: ReceivedMessage) -> bool:
        """Acknowledge everything up to and including *message*; False if its delivery no longer counts."""
        with self._lock:
            if self._delivered is None or not message.next_offset <= self._delivered:
                return False
            if message.offset < self._end_closed and self._again.get(message.next_offset) != message.message_id:
                return False
            if message.next_offset > self._acknowledged:
                self._move(message)
            return True

    def close(self) -> int | None:
        """Empty the window; return the offset to deliver again from, None if it was empty."""
        with self._lock:
            was_open, self._delivered = self._delivered is not None, None
            self._end_closed = self._end
            self._again.clear()
            self._passed.clear()
            return self._acknowledged if was_open else None

    def rollback(self) -> int | None:
        """Empty the window as close() does, and keep it empty until resume()."""
        with self._lock:
            self._is_rolled_back |= self._delivered is not None
        return self.close()

    def resume(self) -> None:
        """Let deliveries count again: they come from where the partition was rolled back to, or sought."""
        with self._lock:
            self._is_rolled_back = False

    def _move(self, message: ReceivedMessage) -> None:
        self._acknowledged = message.next_offset
        while (offset := next(iter(self._passed), None)) is not None and offset <= self._acknowledged:
            last = self._passed.pop(offset)
            if last.next_offset > self._acknowledged:
                message, self._acknowledged = last, last.next_offset
        if self._acknowledged >= self._end_closed:
            self._end_closed = 0
            self._again.clear()
        self._advance(OffsetEntry(message.topic, message.partition, message.next_offset, message.message_id))
