"""Reads back a whole topic with gets alone: no group, no stored offsets, no rebalance.

It returns exactly what the broker has acknowledged, as the broker's account in the final comparison.
"""

from collections.abc import Iterator

from meta_client.client import Client
from meta_client.consumer.batch import ReceivedMessage, decode_batch
from meta_client.net.calls import checked_value
from meta_client.net.opaques import next_opaque
from meta_client.protocol.errors import Moved, NotFound, RemoteProtocolError
from meta_client.protocol.requests import Get
from zk.tree.nodes import Partition

FETCH_BYTES = 1024 * 1024
TIMEOUT_S = 10.0
GROUP = "demo-reader"  # required in a get


def read_topic(client: Client, topic: str) -> Iterator[ReceivedMessage]:
    """Yield every message of *topic*, partition by partition. Raises MetaError, ZooKeeperError, InvalidMessage."""
    for partition in sorted(client.topology.view(topic, TIMEOUT_S).available):
        yield from _read_partition(client, topic, partition)


def _read_partition(client: Client, topic: str, partition: Partition) -> Iterator[ReceivedMessage]:
    offset = 0
    while True:
        url = client.topology.view(topic, TIMEOUT_S).urls[partition.broker_id]
        connection = client.connections.get(url, TIMEOUT_S)
        get = Get(topic, GROUP, partition.number, offset, FETCH_BYTES, next_opaque())
        try:
            body = checked_value(connection.submit(get).wait(TIMEOUT_S), f"get {topic}/{partition} at {offset}").body
        except Moved as moved:
            offset = moved.offset
            continue
        except NotFound:
            return
        batch, broken = decode_batch(topic, partition, offset, body)
        if broken is not None:
            raise broken
        if batch is None:
            raise RemoteProtocolError(f"get {topic}/{partition} at {offset}: {len(body)} bytes hold no whole message")
        yield from batch.messages
        offset = batch.next_offset
