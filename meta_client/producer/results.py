"""Result of a send, and what a caller waits for it with."""

from typing import NamedTuple, Protocol

from zk.tree.nodes import Partition


class SendResult(NamedTuple):
    """Place of a message. *offset* is None in a transaction: it is assigned by the commit."""

    message_id: int  # any int64, neither ordered nor unique forever (spec 3.4)
    partition: Partition  # written `B-p`
    offset: int | None  # bytes since the partition's birth, of the message's first byte


class Handle(Protocol):
    """A message on its way. Any thread."""

    @property
    def is_done(self) -> bool:
        """True if `result` returns or raises at once."""

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Wait for the broker's answer, *timeout_s* at most; None: until the send's own time limit.

        Durable at the broker on return, in its flush mode. Raises SendFailed, or ReplyTimeout while it is under way.
        """
