"""Choice of a message's partition, instead of round robin. Pure.

To keep the messages of one key in order, send the key as their attribute with `partitioner=ByAttribute()`. The choice
is made among all known partitions of the topic, whether their brokers are up or not: a key whose broker is down waits
for it, since its next message elsewhere would overtake those queued there.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from journal.checksum import crc32
from meta_client.metadata.topology import TopicView
from meta_client.protocol.trace_context import split_traceparent
from zk.tree.nodes import Partition


class PartitionContext(NamedTuple):
    """A message whose partition is to be chosen."""

    topic: str
    attribute: str | None
    payload: bytes
    partitions: tuple[Partition, ...]
    """By number: all that the topic has had since the client's first look, of brokers that are down too; within a
    transaction only those of its broker."""
    available: tuple[Partition, ...]
    """The `partitions` whose broker is up."""


Partitioner = Callable[[PartitionContext], Partition | None]
"""Returns one of `partitions`, or None for round robin over those whose broker is up.

Called on the sending thread, once per message: it must not block, and must be thread-safe.
"""


class ByAttribute:
    """Partitioner that keeps messages of one attribute in one partition, in order; messages without one go round robin.

    Adding partitions moves keys to others. So does a client started while a broker is down, as it does not know its
    partitions: *expected* names the partitions of a topic, as in `{"orders": {0: 4, 1: 4}}`, four on each of the
    brokers 0 and 1. Give every producer the same. Any thread. Raises ValueError for counts below one.
    """

    def __init__(self, expected: Mapping[str, Mapping[int, int]] | None = None) -> None:
        self._expected: Final = {topic: _listed(topic, counts) for topic, counts in (expected or {}).items()}

    def __call__(self, message: PartitionContext) -> Partition | None:
        partitions = self._expected.get(message.topic) or message.partitions
        if message.attribute is None or not partitions:
            return None
        return partitions[key_hash(message.attribute) % len(partitions)]


def choose(
    partitioner: Partitioner, view: TopicView, payload: bytes, attribute: str | None, broker_id: int | None
) -> Partition | None:
    """Return the choice of *partitioner*, among the partitions of *broker_id* if a transaction is bound to that.

    Raises TypeError for a choice that is no partition, and what *partitioner* raises.
    """
    if attribute is not None:
        attribute, _ = split_traceparent(attribute)  # a message that is forwarded has a trace context there
    known, available = view.known, view.available
    if broker_id is not None:
        known = available = view.on_broker(broker_id)
    chosen = partitioner(PartitionContext(view.topic, attribute, payload, known, available))
    if chosen is not None and not isinstance(chosen, Partition):
        raise TypeError(f"the partitioner chose {chosen!r} for {view.topic}: return a partition it got, or None")
    return chosen


def key_hash(key: str) -> int:
    """Return the CRC-32 of *key* in UTF-8: the same in every process, release and language. Raises
    UnicodeEncodeError."""
    return crc32(key.encode())


def _listed(topic: str, counts: Mapping[int, int]) -> tuple[Partition, ...]:
    if not counts or min(counts.values()) < 1 or min(counts) < 0:
        raise ValueError(f"expected partitions of {topic}: {dict(counts)}: give {{broker id: how many}}, one at least")
    return tuple(Partition(broker_id, number) for broker_id in sorted(counts) for number in range(counts[broker_id]))
