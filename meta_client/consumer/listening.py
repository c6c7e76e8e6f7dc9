"""Delivery to listeners: users' functions that runner threads call (spec 8.7).

A return consumes the messages, an exception delivers them again later. The ancestor treats a message too large for a
fetch as rejected (spec 8.6), and redelivers rolled-back messages without back-off or limit; here only exceptions of the
listener count, and every repetition backs off longer.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.delivery import DeliveryFailure, DeliveryResult, consumed_up_to
from meta_client.consumer.error_policy import Attempts, ErrorPolicy, Retry
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from zk.tree.nodes import TopicPartition

BatchListener = Callable[[Batch], object]
MessageListener = Callable[[ReceivedMessage], object]
QUICK_S = 0.0002
_Delivered = TypeVar("_Delivered")
_Item = TypeVar("_Item")


class _ListenerDelivery(Generic[_Delivered]):
    """State of a partition that a listener is called for."""

    def __init__(
        self,
        listener: Callable[[_Delivered], object],
        policy: ErrorPolicy,
        message_filter: MessageFilter,
        window: AckWindow | None,
    ) -> None:
        self.window = window
        self._listener = listener
        self._policy = policy
        self._filter = message_filter
        self._attempts = Attempts()

    def has_room(self) -> bool:
        return True

    def unconsumed_from(self) -> int | None:
        return None if self.window is None else self.window.unacknowledged_from

    def discard(self, key: TopicPartition, *, is_seek: bool) -> None:
        if is_seek:
            self._filter.clear(key)
        if self.window is not None:
            self.window.close()

    def _repeated(self, error: Exception, attempt: int) -> DeliveryFailure | None:
        """Return the failure if what failed is delivered again; None if it is rejected."""
        if self._policy.is_exhausted(error, attempt):
            return None
        return DeliveryFailure(error, attempt, error.after_s if isinstance(error, Retry) else 0.0)


class MessageDelivery(_ListenerDelivery[ReceivedMessage]):
    """Delivers one message at a time; those after a failed one wait for it."""

    def deliver(self, batch: Batch, goes_on: Callable[[], bool] = lambda: True) -> DeliveryResult:
        if self.window is not None:
            self.window.open((), batch.offset, batch.next_offset)
        following = enumerate(batch.messages)
        while True:
            try:
                return self._go_through(batch, following, goes_on)
            except _NotTaken as error:
                index, cause = error.index, error.cause
            if (failure := self._failure(batch.messages[index], cause)) is not None:
                return self._taken(batch, index)._replace(failure=failure)

    def _go_through(
        self, batch: Batch, following: Iterator[tuple[int, ReceivedMessage]], goes_on: Callable[[], bool]
    ) -> DeliveryResult:
        """Deliver the messages left in *following*, while *goes_on* returns True. Raises _NotTaken."""
        listener, window = self._listener, self.window
        accepts = None if self._filter.passes_all else self._filter.accepts
        index = 0
        try:
            for index, message in _paced(following, goes_on):  # noqa: B007 - the handler below uses it
                if window is not None and not window.hand_over(message):
                    following = iter(())  # rolled back or sought: skip the rest of the batch
                    break
                if accepts is None or accepts(message):
                    listener(message)
                elif window is not None:
                    window.pass_over(message.offset, message)
        except Exception as error:
            raise _NotTaken(index, error) from error
        for index, _ in following:
            return self._taken(batch, index)
        self._attempts.clear()
        return self._taken(batch, len(batch.messages))

    def _taken(self, batch: Batch, count: int) -> DeliveryResult:
        """Return the outcome after the first *count* messages of *batch* were delivered."""
        next_offset = batch.messages[count - 1].next_offset if count else batch.offset
        if self.window is not None or not count:
            return DeliveryResult(next_offset)
        self._filter.remember(batch.messages[:count])
        return DeliveryResult(next_offset, consumed_up_to(batch.messages[count - 1]))

    def _failure(self, message: ReceivedMessage, error: Exception) -> DeliveryFailure | None:
        """Return the failure of *message* after *error*; None if it was rejected and disposed of."""
        attempt = self._attempts.count(message)
        if (failure := self._repeated(error, attempt)) is not None:
            return failure
        if self._policy.reject is None:
            self._attempts.clear()  # after resume() the message has all its retries again
            return DeliveryFailure(error, attempt, stops=True)
        try:
            self._policy.reject(message, error)
        except Exception as failed:
            failed.__context__ = error
            return DeliveryFailure(failed, attempt)
        return None


def _paced(following: Iterator[_Item], goes_on: Callable[[], bool]) -> Iterator[_Item]:
    """Yield what is left in *following* while *goes_on* returns True. It is asked before each, but not again within
    QUICK_S, as it costs more than a quick listener."""
    asked_at = -math.inf
    while True:
        if (at := time.monotonic()) >= asked_at + QUICK_S:
            if not goes_on():
                return
            asked_at = at
        if (item := next(following, None)) is None:
            return
        yield item


class _NotTaken(Exception):
    """The listener, or the filter, raised *cause* at message *index* of a batch."""

    def __init__(self, index: int, cause: Exception) -> None:
        self.index = index
        self.cause = cause


class BatchDelivery(_ListenerDelivery[Batch]):
    """Delivers a whole batch, again if it fails. A batch that has failed too often is delivered message by message, as
    batches of one, so that only the failing message is rejected."""

    def __init__(
        self, listener: BatchListener, policy: ErrorPolicy, message_filter: MessageFilter, window: AckWindow | None
    ) -> None:
        super().__init__(listener, policy, message_filter, window)
        self._singly = MessageDelivery(
            lambda message: listener(Batch.of(message)), ErrorPolicy(0, policy.reject), message_filter, window
        )

    def deliver(self, batch: Batch, goes_on: Callable[[], bool] = lambda: True) -> DeliveryResult:
        if self.window is not None:
            self.window.open(batch, batch.offset, batch.next_offset)
        try:
            if self._filter.passes_all:
                self._listener(batch)
            else:
                wanted = self._filter.filter(batch.messages)
                end = wanted[-1].next_offset if wanted else batch.offset
                if self.window is not None and end < batch.next_offset:
                    self.window.pass_over(end, batch.last)
                if wanted:
                    self._listener(Batch(batch.topic, batch.partition, batch.offset, batch.next_offset, wanted))
        except Exception as error:
            if (failure := self._repeated(error, self._attempts.count(batch.messages[0]))) is not None:
                return DeliveryResult(batch.offset, None, failure)
        else:
            self._attempts.clear()
            if self.window is not None:
                return DeliveryResult(batch.next_offset)
            self._filter.remember(batch)
            return DeliveryResult(batch.next_offset, consumed_up_to(batch.last))
        outcome = self._singly.deliver(batch, goes_on)
        if outcome.next_offset == batch.next_offset:
            self._attempts.clear()
        return outcome
