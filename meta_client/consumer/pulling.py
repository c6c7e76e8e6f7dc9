"""Delivery to a user's thread by fetch() and iteration: messages fetched ahead, and those handed out.

Bounded: once *bytes_max* are fetched ahead, no partition of the subscription is fetched until messages are taken. With
automatic acknowledgement a message is consumed when the next one is asked for, not when it is handed out: after a crash
in between it is delivered again.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from threading import TIMEOUT_MAX

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.assignments import Assignments
from meta_client.consumer.delivery import DeliveryFailure, DeliveryResult, consumed_up_to
from meta_client.consumer.error_policy import Attempts
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetTracker
from meta_client.net.deadline import check_timeout
from zk.tree.nodes import TopicPartition

CHUNK = 256  # messages that an iteration takes at a time


class Fetched:
    """Messages of one partition, fetched ahead or handed out."""

    __slots__ = ("bytes", "delivery", "done", "is_valid", "messages", "out", "rest")

    def __init__(self, delivery: "PullDelivery", messages: list[ReceivedMessage], rest: ReceivedMessage) -> None:
        self.delivery = delivery
        self.messages = messages
        # Last message before the next chunk, perhaps filtered out: consumed with the last of *messages*.
        self.rest = rest
        self.bytes = rest.next_offset - messages[0].offset
        self.out = 0  # number handed out
        self.done = 0  # number consumed
        self.is_valid = True  # False: the partition was removed or sought

    def hand_over(self) -> bool:
        """Note that the next message is handed out now; False if it was sought or rolled back."""
        window = self.delivery.window
        return window is None or window.hand_over(self.messages[self.out])


class PullBuffer:
    """Messages fetched ahead for one consumer. Uses the lock of the assignments."""

    def __init__(
        self, assignments: Assignments, tracker: OffsetTracker, bytes_max: int, unpark: Callable[[], None]
    ) -> None:
        """*unpark* is called when there is room again."""
        self._assignments = assignments
        self._changed = assignments.changed  # guards all below
        self._tracker = tracker
        self._bytes_max = bytes_max
        self._unpark = unpark
        self._ahead: deque[Fetched] = deque()
        self._bytes = 0  # of `_ahead`
        self._was_full = False  # since the last check: requests may be parked for lack of room
        self._handed: list[Fetched] = []  # not fully consumed
        self._last: list[Fetched] = []  # handed out by the last call of poll() or next_chunk()
        self._is_taken = False  # all of them: poll() has returned
        self._is_closed = False

    @property
    def has_room(self) -> bool:
        """True if more may be fetched ahead."""
        return self._bytes < self._bytes_max

    @property
    def is_empty(self) -> bool:
        """True if nothing is fetched ahead."""
        return not self._ahead

    def put(self, fetched: Fetched) -> None:
        """Add messages fetched ahead."""
        with self._changed:
            self._ahead.append(fetched)
            self._bytes += fetched.bytes
            self._changed.notify_all()

    def unconsumed_from(self, delivery: "PullDelivery") -> int | None:
        """Return the offset of a partition's first message that is fetched ahead, or handed out and not consumed."""
        with self._changed:
            self.report()
            for fetched in (*self._handed, *self._ahead):
                if fetched.delivery is delivery and fetched.is_valid:
                    return fetched.messages[fetched.done].offset
            return None

    def pass_over(self, delivery: "PullDelivery", last: ReceivedMessage) -> bool:
        """Skip messages up to *last*: they are consumed with the partition's messages held here; False if there are
        none."""
        with self._changed:
            for fetched in (*reversed(self._ahead), *reversed(self._handed)):
                if fetched.delivery is delivery and fetched.is_valid:
                    fetched.rest = last
                    return True
            return False

    def discard(self, delivery: "PullDelivery") -> None:
        """Drop the messages of a partition, after reporting its consumed ones."""
        with self._changed:
            self.report()
            for fetched in (*self._ahead, *self._handed, *self._last):
                fetched.is_valid = fetched.is_valid and fetched.delivery is not delivery
            self._was_full |= not self.has_room
            self._bytes -= sum(fetched.bytes for fetched in self._ahead if not fetched.is_valid)
            self._ahead = deque(fetched for fetched in self._ahead if fetched.is_valid)
            self._handed = [fetched for fetched in self._handed if fetched.is_valid]
        self._tell_room()

    def report(self) -> None:
        """Report consumed messages to the tracker. Any thread."""
        with self._changed:
            for fetched in self._handed:
                if fetched.done:
                    is_all = fetched.done == len(fetched.messages)
                    fetched.delivery.consumed(
                        fetched.messages[: fetched.done], fetched.rest if is_all else fetched.messages[fetched.done - 1]
                    )
            self._handed = [fetched for fetched in self._handed if fetched.done < len(fetched.messages)]

    def poll(self, count: int, timeout_s: float | None) -> list[ReceivedMessage]:
        """Return *count* messages at most; none only after the timeout or close(). Messages taken before are consumed
        now, and the returned ones at the next call."""
        deadline = None if timeout_s is None else time.monotonic() + min(check_timeout(timeout_s), TIMEOUT_MAX)
        taken: list[ReceivedMessage] = []
        with self._changed:
            self._take_over()
            if self._wait(deadline):
                while self._ahead and len(taken) < count:
                    taken += self._hand_out(count - len(taken), one_by_one=False).messages
        self._tell_room()
        self._is_taken = True  # last: what a ^C keeps from the caller is handed out again
        return taken

    def iterate(self) -> Iterator[ReceivedMessage]:
        """Yield messages until the consumer is closed. A message is consumed when the next one is asked for. The user's
        thread, as poll()."""
        while (fetched := self.next_chunk()) is not None:
            try:
                for message in fetched.messages:
                    if not self.may_yield(fetched) and not self.wait_for(fetched):
                        break  # another member may own it now
                    fetched.out += 1
                    yield message
                    fetched.done = fetched.out
            finally:
                self.give_back(fetched)

    def next_chunk(self) -> Fetched | None:
        """Return the next messages of an iteration; the previous ones are consumed now. None once the consumer is
        closed."""
        with self._changed:
            self._take_over()
            fetched = self._hand_out(CHUNK, one_by_one=True) if self._wait(None) else None
        self._tell_room()
        return fetched

    def may_yield(self, fetched: Fetched) -> bool:
        """Return True if the next message of a chunk may be handed out; if not, call wait_for()."""
        return fetched.is_valid and not self._assignments.is_paused and fetched.hand_over()

    def finish_handed(self) -> None:
        """Mark all handed-out messages as consumed."""
        with self._changed:
            self._mark_taken()
            for fetched in self._handed:
                fetched.done = fetched.out
            self.report()

    def close(self) -> None:
        """Release all waiting threads. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self, deadline: float | None) -> bool:
        """Wait for messages that may be handed out; False after *deadline* or close()."""
        while self._assignments.is_paused or not self._ahead:
            left = None if deadline is None else deadline - time.monotonic()
            if self._is_closed or (left is not None and left <= 0):
                return False
            self._assignments.wait_changed(left)
        return not self._is_closed

    def wait_for(self, fetched: Fetched) -> bool:
        """Wait until a pause ends; return True if the chunk still counts."""
        with self._changed:
            while self._assignments.is_paused and fetched.is_valid and not self._is_closed:
                self._assignments.wait_changed(None)
            return fetched.is_valid and not self._is_closed and fetched.hand_over()

    def _take_over(self) -> None:
        """Mark all handed-out messages as consumed, and take back what the last call has not: an iteration may go on
        later, as `async for` ends some time after its break, and a ^C may have come before poll() returned."""
        self._mark_taken()
        for fetched in reversed(self._last):
            self.give_back(fetched)
        self._last = []
        self.finish_handed()

    def _mark_taken(self) -> None:
        if self._is_taken:
            for fetched in self._last:
                fetched.out = len(fetched.messages)
            self._is_taken = False

    def _hand_out(self, count: int, *, one_by_one: bool) -> Fetched:
        """Remove and return the first messages of one partition, *count* at most; there are some. *one_by_one*: the
        user does not get them together."""
        self._was_full |= not self.has_room
        first = self._ahead[0]
        taken, rest = first.messages[:count], first.messages[count:]
        fetched = Fetched(first.delivery, taken, taken[-1] if rest else first.rest)
        left = Fetched(first.delivery, rest, first.rest) if rest else None
        if fetched.delivery.window is not None:
            together = () if one_by_one else taken
            fetched.delivery.window.open(together, taken[0].offset, fetched.rest.next_offset)
            if fetched.rest is not taken[-1]:
                fetched.delivery.window.pass_over(taken[-1].next_offset, fetched.rest)
        if fetched.delivery.window is None:
            self._handed.append(fetched)
        self._last.append(fetched)  # before it leaves the buffer: after a ^C in between it comes twice
        self._bytes += (left.bytes if left is not None else 0) - first.bytes
        if left is not None:
            self._ahead[0] = left
        else:
            self._ahead.popleft()
        return fetched

    def give_back(self, fetched: Fetched) -> None:
        """Return the unyielded rest of a chunk to the buffer, in order."""
        with self._changed:
            left = fetched.messages[fetched.out :]
            if not left or not fetched.is_valid:
                return
            back = Fetched(fetched.delivery, left, fetched.rest)
            self._ahead.appendleft(back)
            self._bytes += back.bytes
            del fetched.messages[fetched.out :]
            if fetched.messages:
                fetched.rest = fetched.messages[-1]
            else:
                self._handed = [it for it in self._handed if it is not fetched]
            self._changed.notify_all()

    def _tell_room(self) -> None:
        """Unpark the partitions that found no room, if there is some again."""
        with self._changed:
            if not (self._was_full and self.has_room):
                return
            self._was_full = False
        self._unpark()


class PullDelivery:
    """Delivers one partition to the buffer."""

    def __init__(
        self, buffer: PullBuffer, tracker: OffsetTracker, message_filter: MessageFilter, window: AckWindow | None
    ) -> None:
        self.window = window
        self._buffer = buffer
        self._tracker = tracker
        self._filter = message_filter
        self._attempts = Attempts()

    def has_room(self) -> bool:
        return self._buffer.has_room

    def unconsumed_from(self) -> int | None:
        unacknowledged = None if self.window is None else self.window.unacknowledged_from
        return self._buffer.unconsumed_from(self) if unacknowledged is None else unacknowledged

    def discard(self, key: TopicPartition, *, is_seek: bool) -> None:
        self._buffer.discard(self)
        if self.window is not None:
            self.window.close()
        if is_seek:
            self._filter.clear(key)

    def deliver(self, batch: Batch, goes_on: Callable[[], bool] = lambda: True) -> DeliveryResult:
        del goes_on  # nothing is handed out here: see PullBuffer.may_yield
        last = batch.last
        try:
            wanted = batch.messages if self._filter.passes_all else self._filter.filter(batch.messages)
        except Exception as error:
            return DeliveryResult(batch.offset, None, DeliveryFailure(error, self._attempts.count(batch.messages[0])))
        if wanted:
            self._buffer.put(Fetched(self, wanted, last))
        elif not self._buffer.pass_over(self, last):
            if self.window is None or self.window.unacknowledged_from is None:
                return DeliveryResult(batch.next_offset, consumed_up_to(last))
            self.window.pass_over(batch.offset, last)
        return DeliveryResult(batch.next_offset)

    def consumed(self, messages: list[ReceivedMessage], last: ReceivedMessage) -> None:
        """Record *messages*, and everything up to and including *last*, as consumed. Under the buffer's lock."""
        self._filter.remember(messages)
        self._tracker.advance(consumed_up_to(last))
