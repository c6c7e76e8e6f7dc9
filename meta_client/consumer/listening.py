"""Delivery to listeners: functions of the user's that runner threads call (spec 8.7).

Returning means taken, raising means again, later. The ancestor sends a message that was too large for a fetch the
way of a refused one (spec 8.6), and redelivers what was rolled back without a rest and without a limit; here only
what the listener raises counts, and every repetition rests longer.
"""

from collections.abc import Callable, Iterator

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.batch import Batch, ReceivedMessage
from meta_client.consumer.delivery import Failure, Outcome, consumed_up_to
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.refusing import Attempts, Retry, RetryPolicy
from meta_client.consumer.sifting import Sieve

BatchListener = Callable[[Batch], object]
MessageListener = Callable[[ReceivedMessage], object]


class MessageDelivery:
    """One message after the other; what comes after one that failed waits for it."""

    def __init__(self, listener: MessageListener, policy: RetryPolicy, sieve: Sieve, window: AckWindow | None) -> None:
        self.window = window
        self._listener = listener
        self._policy = policy
        self._sieve = sieve
        self._attempts = Attempts()

    def has_room(self) -> bool:
        return True

    def is_settled(self) -> bool:
        return self.window is None or self.window.is_settled

    def forget(self, key: TopicPartition, *, is_seek: bool) -> None:
        if is_seek:
            self._sieve.forget(key)
        if self.window is not None:
            self.window.close()

    def deliver(self, batch: Batch) -> Outcome:
        if self.window is not None:
            self.window.open(batch.offset, batch.next_offset)
        following = enumerate(batch.messages)
        while True:
            try:
                return self._go_through(batch, following)
            except _NotTaken as error:
                index, cause = error.index, error.cause
            if (failure := self._failure(batch.messages[index], cause)) is not None:
                return self._stopped_before(batch, index, failure)

    def _go_through(self, batch: Batch, following: Iterator[tuple[int, ReceivedMessage]]) -> Outcome:
        """Deliver what *following* has left. Raises _NotTaken."""
        listener, window = self._listener, self.window
        accepts = None if self._sieve.passes_all else self._sieve.accepts
        index = 0
        try:
            for index, message in following:  # noqa: B007 - the handler below uses it
                if accepts is None or accepts(message):
                    listener(message)
                    if window is not None and not window.is_open:
                        break  # rolled back, or sought: the rest of the batch is not wanted
                elif window is not None:
                    window.pass_over(message)
        except Exception as error:
            raise _NotTaken(index, error) from error
        self._attempts.clear()
        return self._taken(batch, len(batch.messages))

    def _taken(self, batch: Batch, count: int) -> Outcome:
        """The first *count* messages of *batch* were taken."""
        next_offset = batch.messages[count - 1].next_offset if count else batch.offset
        if self.window is not None or not count:
            return Outcome(next_offset)
        self._sieve.remember(batch.messages[:count])
        return Outcome(next_offset, consumed_up_to(batch.messages[count - 1]))

    def _stopped_before(self, batch: Batch, index: int, failure: Failure) -> Outcome:
        return self._taken(batch, index)._replace(failure=failure)

    def _failure(self, message: ReceivedMessage, error: Exception) -> Failure | None:
        """What to do after *message* raised *error*; None: it is refused and done with."""
        attempt = self._attempts.count(message.offset)
        if not self._policy.is_over(error, attempt):
            return Failure(error, attempt, error.after_s if isinstance(error, Retry) else 0.0)
        if self._policy.refuse is None:
            self._attempts.clear()  # whoever lets the partition go on means to try as often again
            return Failure(error, attempt, stops=True)
        try:
            self._policy.refuse(message, error)
        except Exception as failed:
            failed.__context__ = error
            return Failure(failed, attempt)
        return None


class _NotTaken(Exception):
    """The listener, or the filter, raised *cause* at message *index* of a batch."""

    def __init__(self, index: int, cause: Exception) -> None:
        self.index = index
        self.cause = cause


class BatchDelivery:
    """A whole batch at a time, again if it fails. One that has failed too often is delivered message by message,
    as batches of one: so it is known which of them is to blame, and only that one is refused."""

    def __init__(self, listener: BatchListener, policy: RetryPolicy, sieve: Sieve, window: AckWindow | None) -> None:
        self.window = window
        self._listener = listener
        self._policy = policy
        self._sieve = sieve
        self._attempts = Attempts()
        no_repetition = RetryPolicy(0, policy.refuse)
        self._singly = MessageDelivery(lambda message: listener(Batch.of(message)), no_repetition, sieve, window)

    def has_room(self) -> bool:
        return True

    def is_settled(self) -> bool:
        return self.window is None or self.window.is_settled

    def forget(self, key: TopicPartition, *, is_seek: bool) -> None:
        if is_seek:
            self._sieve.forget(key)
        if self.window is not None:
            self.window.close()

    def deliver(self, batch: Batch) -> Outcome:
        if self.window is not None:
            self.window.open(batch.offset, batch.next_offset)
        try:
            if self._sieve.passes_all:
                self._listener(batch)
            elif wanted := self._sieve.sift(batch.messages):
                self._listener(Batch(batch.topic, batch.partition, batch.offset, batch.next_offset, wanted))
        except Exception as error:
            attempt = self._attempts.count(batch.offset)
            if not self._policy.is_over(error, attempt):
                return Outcome(
                    batch.offset, None, Failure(error, attempt, error.after_s if isinstance(error, Retry) else 0.0)
                )
        else:
            self._attempts.clear()
            if self.window is not None:
                return Outcome(batch.next_offset)
            self._sieve.remember(batch.messages)
            return Outcome(batch.next_offset, consumed_up_to(batch.messages[-1]))
        outcome = self._singly.deliver(batch)
        if outcome.failure is None:
            self._attempts.clear()
        return outcome
