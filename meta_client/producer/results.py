"""Result of a send, what a caller waits for it with, and what a broker's refusal means (spec 7.4)."""

from typing import NamedTuple, Protocol

from meta_client.errors import (
    Destination,
    NotReplicated,
    PartitionClosed,
    SendFailed,
    SendRefused,
    SendUnknown,
    TryAgain,
)
from meta_client.protocol.answers import is_not_replicated, is_try_again
from meta_client.protocol.errors import MetaError, RemoteError, printable_line
from meta_client.protocol.status import Status
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


def put_failure(error: MetaError, where: Destination) -> SendFailed:
    """Return what *error*, in place of the answer to a put, says of its messages."""
    match error:
        case RemoteError(status=Status.FORBIDDEN):
            text = "an operator closed this partition: send to another one, or have it opened"
            return PartitionClosed(text, where, error.status)
        case RemoteError() if is_not_replicated(error.text):
            return NotReplicated(error.text, where)
        case RemoteError() if is_try_again(error.status, error.text):
            return TryAgain(f"the broker refused for now: {_words(error.text)}", where, error.status)
        case RemoteError():
            text = f"the broker refused: {_words(error.text) or 'it gave no reason'}; see its log, then send again"
            return SendRefused(text, where, error.status)
    return SendUnknown(str(error), where)


def _words(text: str) -> str:
    return " ".join(printable_line(text).split())
