"""Reads messages for the message browser: from an offset or a time on, or by key or id. Blocks; bounded."""

import itertools
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from meta_client.client import Client
from meta_client.consumer.position import milliseconds
from meta_client.consumer.routing import plan_routes
from meta_client.errors import BrokerAway, NotSupported
from meta_client.operations.positions import Positions, PutTimes, Range
from meta_client.operations.reading import message_start, read_partition
from meta_client.operations.searching import Hit, Wanted, search_partition
from zk.brokers.cluster import read_brokers
from zk.tree.nodes import Partition, TopicPartition

MESSAGES_MAX: Final = 50  # of a page
FETCH_BYTES: Final = 256 * 1024
LOOKED_AT_MAX: Final = 20_000  # messages of one run
READ_S: Final = 10.0
SEARCH_S: Final = 30.0  # a broker runs concurrent searches one after the other


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages of one partition from *offset* on, which holds [start, end). *next_offset*: of the page behind them."""

    hits: tuple[Hit, ...]
    start: int
    end: int
    offset: int
    next_offset: int


def read_page(client: Client, topic: str, partition: Partition, at: int | datetime | str) -> Reading:
    """Read from an offset, a time, `earliest` or `latest` on. Raises MetaError, ZooKeeperError."""
    key = topic, partition
    positions, found = _range(client, key, milliseconds(at) if isinstance(at, datetime) else None)
    match at:
        case datetime():
            if found.at is None:
                raise NotSupported(f"the broker of {topic}/{partition} knows nothing of times: it is no metaq broker")
            offset = found.at
        case int():
            offset = message_start(positions, key, min(max(at, found.start), found.end), found)
        case "latest":
            offset = _last_page(positions, key, found.start, found.end)
        case _:
            offset = found.start
    times = PutTimes(client)
    taken = itertools.islice(read_partition(positions, key, offset, FETCH_BYTES), MESSAGES_MAX)
    hits = tuple(Hit(message, times.of(message)) for message in taken)
    following = hits[-1].message.next_offset if hits else found.end
    return Reading(hits, found.start, found.end, offset, following)


def _last_page(positions: Positions, key: TopicPartition, start: int, end: int) -> int:
    """Return the offset of the last messages of a page: back by whole runs. Raises NotSupported."""
    topic, partition = key
    found: deque[int] = deque(maxlen=MESSAGES_MAX)
    offset = end
    while offset > start and len(found) < MESSAGES_MAX:
        begin = max(min(positions.run_start(topic, partition, offset - 1), offset - 1), start)
        messages = itertools.islice(read_partition(positions, key, begin), LOOKED_AT_MAX)
        run = [message.offset for message in itertools.takewhile(lambda one: one.offset < offset, messages)]  # noqa: B023
        if len(run) == LOOKED_AT_MAX:
            raise NotSupported(f"{topic}/{partition} can't be read backwards from {offset}: name an offset or a time")
        found = deque([*run, *found], MESSAGES_MAX)
        offset = begin
    return found[0] if found else start


def read_one(client: Client, topic: str, partition: Partition, offset: int) -> Hit | None:
    """Return the message at *offset*; None if none begins there. Raises MetaError, ZooKeeperError."""
    positions, found = _range(client, (topic, partition))
    # Reading from inside of a message would take its bytes for a length, and wait for what never comes.
    if not found.start <= offset < found.end or message_start(positions, (topic, partition), offset, found) != offset:
        return None
    message = next(read_partition(positions, (topic, partition), offset, FETCH_BYTES), None)
    return None if message is None or message.offset != offset else Hit(message, PutTimes(client).of(message))


def _range(client: Client, key: TopicPartition, time_ms: int | None = None) -> tuple[Positions, Range]:
    told: list[str] = []
    positions = Positions(client, told.append)
    if (found := positions.ranges([key], time_ms).get(key)) is None:
        raise BrokerAway("; ".join(told) or f"no broker answers for {key[0]}/{key[1]}")
    return positions, found


def search(client: Client, topic: str, partition: Partition, wanted: Wanted) -> list[Hit]:
    """Return the first matches in one partition. Raises MetaError, ZooKeeperError."""
    url = plan_routes(read_brokers(client.session)).get(partition.broker_id)
    found = search_partition(client, topic, partition, url, wanted, MESSAGES_MAX)
    return list(itertools.islice(found, MESSAGES_MAX))
