"""Messages that a listener does not take: how often they are offered, and what becomes of them then."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meta_client.consumer.batch import ReceivedMessage
from meta_client.consumer.exits import contained

_log = logging.getLogger(__name__)

RejectHandler = Callable[[ReceivedMessage, Exception], object]
OnReject = Literal["stop", "drop", "park"] | RejectHandler


class Retry(Exception):
    """Raise it in a listener: not now; the same message again in *after_s* seconds or a little later. It counts as
    a failure: `retries_max` of them in a row, and the message is refused."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class Reject(Exception):
    """Raise it in a listener: this message will never do, refuse it at once, whatever `retries_max` says."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is offered, and what is done with one that was refused.

    *refuse* returns once the message need not be delivered any more, and raises if it has to. None: the partition
    stops at the message.
    """

    retries_max: int | None = None  # None: for ever
    refuse: RejectHandler | None = None

    def __post_init__(self) -> None:
        if self.retries_max is not None and self.retries_max < 0:
            raise ValueError(f"retries_max {self.retries_max} is negative: give 0 or more, or None for no limit")

    def is_over(self, error: Exception, attempt: int) -> bool:
        """Whether a message whose *attempt*th delivery in a row raised *error* is refused."""
        return isinstance(error, Reject) or (self.retries_max is not None and attempt > self.retries_max)


def drop(message: ReceivedMessage, error: Exception) -> None:
    """Forget a message; the log is all that is left of it."""
    _log.error(
        "message dropped partition=%s/%s offset=%d id=%d error=%r",
        *(message.topic, message.partition, message.offset, message.message_id, error),
    )


def reject_handler(on_reject: OnReject, park: RejectHandler) -> RejectHandler | None:
    """What a RetryPolicy does; *park* is what "park" means. Raises ValueError for a word that means nothing."""
    if callable(on_reject):
        return contained(on_reject)
    match on_reject:
        case "stop":
            return None
        case "drop":
            return drop
        case "park":
            return park
    raise ValueError(f"on_reject {on_reject!r}: give 'stop', 'drop', 'park' or a function")


class Attempts:
    """How often the message at the head of a partition has failed, in a row."""

    def __init__(self) -> None:
        self._offset = -1
        self._count = 0

    def count(self, offset: int) -> int:
        """One more failure at *offset*; returns the number of this one."""
        self._count = self._count + 1 if offset == self._offset else 1
        self._offset = offset
        return self._count

    def clear(self) -> None:
        """Something was taken."""
        self._offset, self._count = -1, 0
