"""Which partition a message belongs to, where that is not left to the round robin. Pure.

Who wants the messages of one key in order gives the key as their attribute and `partitioner=ByAttribute()`. The
choice is made among all partitions that the topic is known to have, whether their brokers are up or not: a key whose
broker is away waits for it, since its next message anywhere else would overtake those that are on their way there.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from journal.checksum import crc32
from zk.nodes import Partition


class ToPlace(NamedTuple):
    """A message for which a partition is to be chosen."""

    topic: str
    attribute: str | None
    payload: bytes
    partitions: tuple[Partition, ...]
    """By number. All that the topic has had since the client first looked, brokers that are away included; within a
    transaction those of its broker alone."""
    available: tuple[Partition, ...]
    """Those of them whose broker is up."""


Partitioner = Callable[[ToPlace], Partition | None]
"""Returns one of `partitions`, or None to leave the choice to the round robin over those that are up.

Called on the sending thread, once a message: it must not block, and any thread may call it.
"""


class ByAttribute:
    """A partitioner: messages of one attribute go to one partition, in order; those without go round robin.

    Adding partitions moves keys to others. So does a client that begins while a broker is away, which it can't know
    of: *expected* names what a topic has, as in `{"orders": {0: 4, 1: 4}}`, four partitions on each of the brokers 0
    and 1. Every producer must then be given the same. Any thread. Raises ValueError for counts below one.
    """

    def __init__(self, expected: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self._expected: Final = {topic: _listed(topic, counts) for topic, counts in (expected or {}).items()}

    def __call__(self, message: ToPlace) -> Partition | None:
        partitions = self._expected.get(message.topic) or message.partitions
        if message.attribute is None or not partitions:
            return None
        return partitions[key_hash(message.attribute) % len(partitions)]


def key_hash(key: str) -> int:
    """The CRC-32 of *key* in UTF-8: the same in every process, release and language. Raises UnicodeEncodeError."""
    return crc32(key.encode())


def _listed(topic: str, counts: Mapping[int, int]) -> tuple[Partition, ...]:
    if not counts or min(counts.values()) < 1 or min(counts) < 0:
        raise ValueError(f"expected partitions of {topic}: {dict(counts)}: give {{broker id: how many}}, one at least")
    return tuple(Partition(broker_id, number) for broker_id in sorted(counts) for number in range(counts[broker_id]))
