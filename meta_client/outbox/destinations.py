"""Destinations of a batch: the partition of each message, and whether its broker takes messages now."""

import math
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from meta_client.errors import Destination, NoBroker, NoPartition
from meta_client.metadata.topology import Directory, TopicView
from meta_client.outbox.rows import OutboxRow
from meta_client.outbox.waits import PassedOver
from meta_client.producer.outgoing import available_in, view_of
from meta_client.producer.producer import SEND_TIMEOUT_S, Producer
from meta_client.protocol.errors import one_line
from zk.tree.nodes import Partition

LOOKS_S: Final = 0.5  # of a batch, for topics that the client has not seen: thousands of them take many seconds


class NotSeen(Exception):
    """The client has not seen the topic, and a later batch looks for it."""


class ChosenPartition(NamedTuple):
    """Partition of a message. *is_open*: it takes messages now; otherwise this one is deferred, and others pass it."""

    partition: Partition
    is_open: bool


class Destinations:
    """Destinations of one batch. *over*: what gets nothing in it, up or not. *turns* count messages that may go
    anywhere."""

    def __init__(self, directory: Directory, producer: Producer, over: PassedOver, turns: Iterator[int]) -> None:
        self._directory = directory
        self._producer = producer
        self._over = over
        self._open: dict[str, tuple[TopicView, tuple[Partition, ...], frozenset[int]]] = {}
        self._turns = turns
        self._looks_end = math.inf

    def of(self, row: OutboxRow) -> ChosenPartition:
        """Return the partition of a message. Raises NoBroker or NoPartition if no broker takes messages of its topic
        now; NotSeen; InvalidName, ValueError and what the partitioner raises for one that can't be sent."""
        view, partitions, brokers = self._open.get(row.topic) or self._look(row.topic)
        chosen = self._producer.partition_for(view, row.payload, row.attribute, row.partition)
        if chosen is None:
            chosen = partitions[next(self._turns) % len(partitions)]
        return ChosenPartition(chosen, chosen.broker_id in brokers)

    def check(self, topic: str, broker_id: int) -> None:
        """Raise NoBroker unless a broker takes messages now; NoPartition if it takes others than those of *topic*;
        NotSeen."""
        where, why = Destination(topic, broker=broker_id), "it is not up"
        try:
            *_, brokers = self._open.get(topic) or self._look(topic)
        except (NoBroker, NoPartition) as error:
            brokers, why = frozenset(), one_line(error)
        if broker_id in brokers:
            return
        if self._directory.is_up(broker_id):
            raise NoPartition(f"broker {broker_id} does not offer this topic: create it there, or wait", where)
        raise NoBroker(why, where)

    def _look(self, topic: str) -> tuple[TopicView, tuple[Partition, ...], frozenset[int]]:
        if self._directory.maybe_view(topic) is None:
            if (now := time.monotonic()) > self._looks_end:
                raise NotSeen
            self._looks_end = min(self._looks_end, now + LOOKS_S)
        view = view_of(self._directory, topic, SEND_TIMEOUT_S)
        available = available_in(view)
        closed = {*self._over.brokers, *(broker_id for name, broker_id in self._over.places if name == topic)}
        partitions = tuple(each for each in available if each.broker_id not in closed)
        if not partitions:
            ids = ", ".join(map(str, sorted({each.broker_id for each in available})))
            raise NoBroker(f"broker {ids} takes no messages at the moment", Destination(topic))
        found = view, partitions, frozenset(each.broker_id for each in partitions)
        self._open[topic] = found
        return found
