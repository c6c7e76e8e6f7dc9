"""Index of waiting dead letters, built from the records of a store. Pure.

Its memory is bounded by the store's byte limit, which counts each entry; bodies stay on disk.
"""

from typing import NamedTuple, Self

from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import Lsn, RecordHeader
from journal.records.newest import NewestByKey
from journal.records.record import Record
from zk.tree.nodes import Partition

ENTRY_BYTES = 1024  # cost of a message beside its frame: the record's header and reason, and its entry in memory


class MessageAddress(NamedTuple):
    """Address of a message: topic, partition, offset. Text form: `orders/0-3@1000`."""

    topic: str
    partition: Partition
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form. Raises ValueError."""
        where, at, offset = text.rpartition("@")
        topic, slash, partition = where.rpartition("/")
        found = Partition.maybe_parse(partition)
        if not (at and slash and topic and found and offset.isascii() and offset.isdigit()):
            raise ValueError(f"{text!r} names no message: write TOPIC/BROKER-PARTITION@OFFSET")
        return cls(topic, found, int(offset))


class DeadLetterEntry(NamedTuple):
    """One dead letter, without its body."""

    record: DeadLetter
    body_lsn: Lsn
    body_bytes: int

    @property
    def address(self) -> MessageAddress:
        """Address of the message."""
        return address_of(self.record)

    @property
    def cost(self) -> int:
        """Bytes it counts for."""
        return self.body_bytes + ENTRY_BYTES


def address_of(record: DeadLetter) -> MessageAddress:
    return MessageAddress(record.topic, Partition(record.broker_id, record.partition), record.offset)


class DeadLetterIndex(NewestByKey[MessageAddress, DeadLetterEntry]):
    """All waiting dead letters, oldest first."""

    def __init__(self) -> None:
        super().__init__(lambda entry: entry.cost)

    def apply(self, header: RecordHeader, record: Record) -> None:
        """Apply one record, live or in recovery."""
        if not isinstance(record, DeadLetter):
            return  # EPOCH
        address = address_of(record)
        match record.state:
            case DeadLetterState.WAITING:
                self.put(address, DeadLetterEntry(record, header.body_lsn, header.body_bytes))
            case DeadLetterState.TRIED if (known := self.find(address)) is not None:
                self.put(address, known._replace(record=record))
            case DeadLetterState.DELIVERED | DeadLetterState.DROPPED:
                self.remove(address)
            case _:
                pass  # of a message in a segment that was dropped
