"""Messages of one batch: each is sent into the relay's open transaction, deferred, or left where it is."""

from collections.abc import Sequence
from typing import Final

from meta_client.errors import NoBroker, NoPartition
from meta_client.outbox.destinations import Destinations, NotSeen
from meta_client.outbox.rows import OutboxRow, RowSource
from meta_client.producer.branch_batch import BranchHandle
from meta_client.producer.outgoing import parse_partition
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import LocalProtocolError, MetaError, one_line
from zk.tree.nodes import Partition
from zk.tree.paths import InvalidName

UNSENDABLE: Final = LocalProtocolError, InvalidName, TypeError, ValueError


class Unsendable(Exception):
    """The message of a row can't be sent at all."""

    def __init__(self, row: OutboxRow, error: Exception) -> None:
        super().__init__(one_line(error))
        self.row = row


class BrokerRefuses(Exception):
    """A broker that seemed to be up takes no messages."""

    def __init__(self, broker_id: int, error: Exception) -> None:
        super().__init__(one_line(error))
        self.broker_id = broker_id


class RelayBatch:
    """Rows of *source* that were sent in a transaction, and what became of the others. One thread."""

    def __init__(self, source: RowSource) -> None:
        self.source = source
        self.sent: list[tuple[OutboxRow, BranchHandle]] = []
        self.deferred: list[tuple[OutboxRow, Partition]] = []
        self.topics: dict[str, Exception] = {}  # that no broker takes
        self.unseen = set[str]()  # topics that are left to the next batch
        self.brokers: dict[int, Exception] = {}  # that are away, of deferred messages
        self.places: dict[tuple[str, int], Exception] = {}  # topics, of these, that a broker does not offer

    def send(self, waiting: Sequence[OutboxRow], destinations: Destinations, producer: Producer) -> None:
        """Send messages, without waiting for brokers. Raises Unsendable, BrokerRefuses."""
        for row in waiting:
            if row.topic in self.topics or row.topic in self.unseen:
                continue
            try:
                chosen = destinations.of(row)
            except (NoPartition, NoBroker) as error:
                self.topics[row.topic] = error
            except NotSeen:
                self.unseen.add(row.topic)
            except UNSENDABLE as error:
                raise Unsendable(row, error) from error
            else:
                if chosen.is_open:
                    self._add(row, chosen.partition, producer)
                else:
                    self.deferred.append((row, chosen.partition))

    def send_deferred(self, waiting: Sequence[OutboxRow], destinations: Destinations, producer: Producer) -> None:
        """Send messages that were deferred; those for brokers that are still away stay. Raises Unsendable,
        BrokerRefuses."""
        for row in waiting:
            partition = parse_partition(row.partition or "")
            place = row.topic, partition.broker_id
            if partition.broker_id in self.brokers or place in self.places or row.topic in self.unseen:
                continue
            try:
                destinations.check(*place)
            except NoPartition as error:
                self.places[place] = error
            except NoBroker as error:
                self.brokers[partition.broker_id] = error
            except NotSeen:
                self.unseen.add(row.topic)
            else:
                self._add(row, partition, producer)

    def unanswered(self) -> set[int]:
        """Return the brokers that have not answered a message."""
        found = set[int]()
        for _, handle in self.sent:
            try:
                handle.result(0)
            except MetaError:
                found.add(handle.partition.broker_id)
        return found

    def _add(self, row: OutboxRow, partition: Partition, producer: Producer) -> None:
        try:
            handle = producer.send_async(row.topic, row.payload, row.attribute, partition)
        except NoBroker as error:
            raise BrokerRefuses(partition.broker_id, error) from error
        except (NoPartition, *UNSENDABLE) as error:
            raise Unsendable(row, error) from error
        assert isinstance(handle, BranchHandle)  # the producer has joined the block
        self.sent.append((row, handle))
