"""Which refused messages wait, as the records of a store add up to it. Pure.

Bounded by the store's bytes: what is kept of a message in memory is counted, its body stays on disk.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

from journal.frame import Header, Lsn
from journal.refusals import Refused, RefusedState
from zk.nodes import Partition

ENTRY_BYTES = 1024  # what a message costs beside its frame: the record's head and reason, and its entry in memory


class Place(NamedTuple):
    """Names a message for ever. Its text, `orders/0-3@1000`, is what people type."""

    topic: str
    partition: Partition
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        where, at, offset = text.rpartition("@")
        topic, slash, partition = where.rpartition("/")
        found = Partition.maybe_parse(partition)
        if not (at and slash and topic and found and offset.isascii() and offset.isdigit()):
            raise ValueError(f"{text!r} names no message: write TOPIC/BROKER-PARTITION@OFFSET")
        return cls(topic, found, int(offset))


class Waiting(NamedTuple):
    """One refused message, without its body."""

    record: Refused
    body_lsn: Lsn
    body_bytes: int

    @property
    def place(self) -> Place:
        """Which message it is."""
        return place_of(self.record)

    @property
    def cost(self) -> int:
        """The bytes that it counts for."""
        return self.body_bytes + ENTRY_BYTES


def place_of(record: Refused) -> Place:
    """Which message *record* is about."""
    return Place(record.topic, Partition(record.broker_id, record.partition), record.offset)


class WaitingMessages:
    """All that waits, the one that was refused first in front."""

    def __init__(self) -> None:
        self._waiting: dict[Place, Waiting] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    def get(self, place: Place) -> Waiting | None:
        return self._waiting.get(place)

    def apply(self, header: Header, record: Refused) -> None:
        """One more record, live or read back: the same for both."""
        place = place_of(record)
        known = self._waiting.get(place)
        match record.state:
            case RefusedState.WAITING:
                self.bytes -= known.cost if known else 0
                self._waiting[place] = stored = Waiting(record, header.body_lsn, header.body_bytes)
                self.bytes += stored.cost
            case RefusedState.TRIED if known is not None:
                self._waiting[place] = known._replace(record=record)
            case RefusedState.DELIVERED | RefusedState.DROPPED if known is not None:
                del self._waiting[place]
                self.bytes -= known.cost
            case _:
                pass  # of a message that was stored in a segment which has been dropped
