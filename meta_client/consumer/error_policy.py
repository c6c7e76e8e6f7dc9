"""Error policy: how often a failed message is delivered, and its handling once it is rejected."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meta_client.consumer.listener_exit import isolated
from meta_client.consumer.messages.received_message import ReceivedMessage

_log = logging.getLogger(__name__)

RejectHandler = Callable[[ReceivedMessage, Exception], object]
OnReject = Literal["stop", "drop", "dead_letter"] | RejectHandler


class Retry(Exception):
    """Raise in a listener to get the same message again after *after_s* seconds or a little more. Counts as a failure:
    after `retries_max` of them in a row the message is rejected."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class Reject(Exception):
    """Raise in a listener to reject the message at once, regardless of `retries_max`."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """Limit of retries, and handling of a rejected message.

    *reject* returns once the message is disposed of, and raises if it has to be delivered again. None: the partition
    stops at the message.
    """

    retries_max: int | None = None  # None: no limit
    reject: RejectHandler | None = None

    def __post_init__(self) -> None:
        if self.retries_max is not None and self.retries_max < 0:
            raise ValueError(f"retries_max {self.retries_max} is negative: give 0 or more, or None for no limit")

    def is_exhausted(self, error: Exception, attempt: int) -> bool:
        """Return True if a message whose *attempt*th delivery in a row raised *error* is rejected."""
        return isinstance(error, Reject) or (self.retries_max is not None and attempt > self.retries_max)


def drop(message: ReceivedMessage, error: Exception) -> None:
    """Log the message, and drop it."""
    _log.error(
        "message dropped partition=%s/%s offset=%d id=%d error=%r",
        *(message.topic, message.partition, message.offset, message.message_id, error),
    )


def reject_handler(on_reject: OnReject, dead_letter: RejectHandler) -> RejectHandler | None:
    """Return the handler for *on_reject*; *dead_letter* serves "dead_letter". Raises ValueError for an unknown word."""
    if callable(on_reject):

        @isolated
        @functools.wraps(on_reject)
        def reject(refused: tuple[ReceivedMessage, Exception]) -> object:
            return on_reject(*refused)

        return lambda message, error: reject((message, error))
    match on_reject:
        case "stop":
            return None
        case "drop":
            return drop
        case "dead_letter":
            return dead_letter
    raise ValueError(f"on_reject {on_reject!r}: give 'stop', 'drop', 'dead_letter' or a function")


class Attempts:
    """Count of consecutive failures of the message at the head of a partition."""

    def __init__(self) -> None:
        self._head: tuple[int, int] | None = None  # offset and id: after a promotion another message may be there
        self._count = 0

    def count(self, message: ReceivedMessage) -> int:
        """Record a failure of *message*; return its number."""
        head = message.offset, message.message_id
        self._count = self._count + 1 if head == self._head else 1
        self._head = head
        return self._count

    def clear(self) -> None:
        self._head, self._count = None, 0
