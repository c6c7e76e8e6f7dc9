"""Client errors beyond the protocol's, by what the caller does next.

Every message is one line with topic, partition, branch and broker as far as known, and a remedy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.status import Status
from meta_client.protocol.xa import XaCode, XaFailure
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition


def text_of(error: BaseException) -> str:
    """Return `repr(error)` of a user's exception, whose own code may raise."""
    try:
        return repr(error)
    except Exception:
        return f"{type(error).__name__} without a text: its repr() raises"


class ClientClosed(MetaError):
    """The client, or this part of it, was closed by this process. Make a new one."""


class ConnectionLost(MetaError):
    """The connection broke while an answer was due: the request may have acted or not. Check before repeating it."""


class NotConnected(ConnectionLost):
    """There was no connection to send on: nothing was sent, so repeating is safe."""


class LoginFailed(NotConnected):
    """The broker does not know this user and password, or did not prove that it does: nothing was sent. Correct the
    credentials or the address."""


class ReplyTimeout(MetaError):
    """The answer did not arrive in time: the request may have acted or may still act. Check before repeating it."""


class TooManyRequests(MetaError):
    """Too many answers are due on one connection: nothing was sent. Wait for some of them first."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of a message, as far as it was decided."""

    topic: str
    partition: Partition | None = None
    broker: BrokerUrl | int | None = None

    def __str__(self) -> str:
        to = self.topic if self.partition is None else f"{self.topic}/{self.partition}"
        match self.broker:
            case None:
                return to
            case int():
                return f"{to} on broker {self.broker}"
        return f"{to} on {self.broker}"


class SendFailed(MetaError):
    """A message was not sent, or its outcome is unknown; the subclass tells which."""

    def __init__(self, text: str, destination: Destination) -> None:
        super().__init__(f"send to {destination}: {text}")
        self.text = text
        self.destination = destination


class NoPartition(SendFailed):
    """The partition, or any partition of the topic, is not offered by a broker. Nothing was sent."""


class NoBroker(SendFailed):
    """The partition's broker is down or can't be reached. Nothing was sent; try again later."""


class BufferFull(SendFailed):
    """Too many bytes are unacknowledged. Nothing was sent: wait, or flush."""


class SendRefused(SendFailed):
    """The broker did not store the message: its text says why. Send again after correcting that. `status` is the
    broker's."""

    def __init__(self, text: str, destination: Destination, status: int) -> None:
        super().__init__(text, destination)
        self.status = status


class PartitionClosed(SendRefused):
    """An operator closed the partition: send to another one."""


class TryAgain(SendRefused, NoBroker):
    """The broker takes no writes for now, as without enough slaves in sync, with a full disk, or while it stops.
    Nothing was stored: send again later, or to another broker."""


class NotReplicated(SendFailed):
    """The message is on the master and not yet on its slaves. Consumers see it after replication, unless the master is
    lost before. Sending it again may duplicate it."""


class SendUnknown(SendFailed):
    """The message was sent and no answer came: it may be stored or not. Sending again may duplicate it."""


class TransactionFailed(MetaError):
    """A local transaction did not commit, and never will. Do its work again."""


class TransactionUnknown(MetaError):
    """A local transaction's commit was sent and no answer came: it may have committed or not. Look for its messages
    before doing its work again."""


class TransactionMisuse(MetaError):
    """Transaction calls in an order that makes no sense. Fix the calling code; nothing was sent."""


class NotSupported(MetaError):
    """The broker's version text does not promise the extension. Do it another way, or on a newer broker."""


class InvalidGroup(MetaError, ValueError):
    """A text that can't be a consumer group's name. Choose another."""


class ClientXaError(XaError):
    """An XA code from the client itself, without or despite a broker's answer. Handle it as XaError."""

    def __init__(self, code: XaCode, text: str, what: str) -> None:
        """*what*: verb, branch and broker, as in "PREPARE 1_YQ==_Yg== on broker 0"."""
        super().__init__(Status.GATEWAY_TIMEOUT, text, what, XaFailure(code, text))
        self.args = (f"{what}: {code.name}: {text}",)  # no status: none was received


class BranchRefused(ClientXaError):
    """The quota of this client allows no further branch at the broker: nothing began there. Finish some, or begin again
    later."""


class OwnershipLost(MetaError):
    """Another consumer of the group owns these partitions now: progress there was not stored, and this consumer stops
    delivering from them. It rebalances by itself: nothing to do."""

    def __init__(self, partitions: Sequence[tuple[str, Partition]]) -> None:
        shown = ", ".join(f"{topic}/{partition}" for topic, partition in partitions[:10])
        more = f" and {len(partitions) - 10} more" if len(partitions) > 10 else ""
        super().__init__(f"{shown}{more}: owned by another consumer of the group since")
        self.partitions = tuple(partitions)


class ConsumerMisuse(MetaError):
    """Consumer calls in an order that makes no sense. Fix the calling code."""


class InvalidSecurity(MetaError):
    """A certificate, key or password that can't be used. Correct the file or the setting that the text names."""


class NothingToRead(MetaError):
    """The topic has no partitions. Correct its name, or start a broker that has it."""


class BrokerAway(MetaError):
    """Neither the partition's broker nor a slave of it is up. Start it, or wait."""


class NoDatabase(MetaError):
    """The argument is no usable database, or the package for it is not installed. Fix the code."""


class NotInTransaction(MetaError):
    """The connection commits each statement by itself: what is to go with the caller's rows would be stored without
    them. Fix the code."""
