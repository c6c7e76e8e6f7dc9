"""Messages from brokers: a Spark task fetches a range of a partition. No group; nothing is registered or stored.

It reads from the replica that the broker names, as consumers do: so a long read is left to the slaves, and a master's
disk to writes. Offsets are the master's. A slave that fails, or lacks messages, is left for the master; without a
master slaves serve alone.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from meta_client.consumer.routing import Route, Routes, suggested_slave
from meta_client.errors import BrokerAway
from meta_client.net.calls import checked_broker, checked_data, checked_value, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S, Connections
from meta_client.net.opaques import next_opaque
from meta_client.net.security import PLAIN, Security
from meta_client.net.transport import Transport
from meta_client.protocol.answers import parse_offset
from meta_client.protocol.errors import InvalidMessage, MetaError, Moved, NotFound
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES
from meta_client.protocol.requests import Fetch, Get, OffsetQuery
from spark_jobs.messages.batches import message_batch
from spark_jobs.messages.cluster import ANSWER_TIMEOUT_S, GROUP
from spark_jobs.messages.frames import FRAME, Extents, Frames, broken_checksums, whole_frames
from spark_jobs.messages.segments import DataLost
from spark_jobs.messages.selection import Selection
from spark_jobs.source.record_block import gather
from zk.brokers.cluster import BrokerEntry
from zk.tree.nodes import Partition

FETCH_BYTES: Final = DATA_BYTES_MAX + HEADER_BYTES  # a whole message at least

_log = logging.getLogger(__name__)


class ReplicaReader:
    def __init__(self, connections: Connections, topic: str, partition: Partition, replicas: BrokerEntry) -> None:
        """*replicas*: those that are up, one at least."""
        self._connections = connections
        self._topic = topic
        self._partition = partition
        self._master = replicas.master
        self._routes = Routes()
        self._routes.set_brokers({partition.broker_id: replicas})
        self._suggested: int | None = None  # the slave that the last answer named

    def connection(self) -> Transport:
        """Return a connection to the replica that is read next. Raises NotConnected."""
        return self._connect(self._next())

    def fetch(self, offset: int) -> bytes:
        """Return messages from *offset* on, none if nothing is stored there yet. Raises Moved, NotFound, MetaError."""
        route = self._next()
        if route.slave_id is None or self._master is None:
            return self._fetch_from(route, offset)
        try:
            if body := self._fetch_from(route, offset):
                return body
            reason = "it has less"
        except MetaError as error:
            reason = str(error)
        _log.info("read from the master instead of %s: %s", route, reason)
        self._routes.failed(self._partition, route)
        return self._fetch_from(Route(self._master), offset)

    def _next(self) -> Route:
        route = self._routes.choose(self._partition, self._suggested)
        assert route is not None
        return route

    def _connect(self, route: Route) -> Transport:
        connection = self._connections.get(route.url, CONNECT_TIMEOUT_S)
        return checked_broker(connection, connection.capabilities(ANSWER_TIMEOUT_S), self._partition.broker_id)

    def _fetch_from(self, route: Route, offset: int) -> bytes:
        connection = self._connect(route)
        what = f"get {self._topic}/{self._partition} at {offset} from {route}"
        target = self._topic, GROUP, self._partition.number, offset, FETCH_BYTES
        if "fetch" not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
            return bytes(
                checked_value(connection.submit(Get(*target, next_opaque())).wait(ANSWER_TIMEOUT_S), what).body
            )
        fetch = Fetch(*target, 1, 0, next_opaque())
        data = checked_data(connection.submit(fetch).wait(ANSWER_TIMEOUT_S), what)
        self._suggested = suggested_slave(data.read_from)
        return bytes(data.body)


_log = logging.getLogger(__name__)


class FetchTask(InputPartition):
    """Messages of a partition that begin in [start, end)."""

    def __init__(self, topic: str, partition: str, replicas: BrokerEntry, start: int, end: int) -> None:
        super().__init__((topic, partition, start, end))
        self.topic = topic
        self.partition = partition
        self.replicas = replicas
        self.start = start
        self.end = end

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"


def read_task(
    task: FetchTask,
    selection: Selection,
    columns: tuple[str, ...],
    *,
    fail_on_data_loss: bool,
    security: Security = PLAIN,
) -> Iterator[pa.RecordBatch]:
    """Fetch a range. Raises DataLost, BrokerAway for what a slave lacks while its master is away, InvalidMessage for
    bytes that are no message, MetaError."""
    with contextlib.closing(Connections.secured(security)) as connections:
        partition = Partition.maybe_parse(task.partition)
        assert partition is not None
        reader = ReplicaReader(connections, task.topic, partition, task.replicas)
        has_times = reader.connection().capabilities(ANSWER_TIMEOUT_S).metaq_version is not None
        for position, body in _bodies(reader, task, partition.number, fail_on_data_loss):
            extents, frames = _frames(task, position, body)
            wanted = (frames.offset >= task.start) & (frames.offset < task.end)
            if (mask := selection.mask(frames, has_times=has_times)) is not None:
                wanted &= mask
            rows = frames if wanted.all() else frames.select(np.flatnonzero(wanted))
            if len(rows.at):
                yield message_batch(rows, extents, [(task.topic, task.partition)], (), columns, has_times=has_times)


def _bodies(
    reader: ReplicaReader, task: FetchTask, number: int, fail_on_data_loss: bool
) -> Iterator[tuple[int, bytes]]:
    """Yield bytes of the partition with their offset, from a message's beginning on; at least all of [start, end)."""
    # A batch may have ended inside a message, which an offset in bytes can't tell: begin where one surely begins.
    query = OffsetQuery(task.topic, GROUP, number, task.start, next_opaque())
    position = parse_offset(
        wait_result(reader.connection().submit(query), ANSWER_TIMEOUT_S, f"offset of {task.name}").message
    )
    if position > task.start:
        _lost(task, task.start, position, fail_on_data_loss)
    while position < task.end:
        try:
            body = reader.fetch(position)
        except Moved as error:
            _lost(task, position, error.offset, fail_on_data_loss)
            if error.offset <= position:
                return  # the partition ends before what was planned: nothing more is stored
            position = error.offset
            continue
        except NotFound:
            body = b""
        if not body:
            _lost(task, position, position, fail_on_data_loss)
            return
        ends = whole_frames(body, 0, len(body))
        yield position, body
        if not ends:
            raise InvalidMessage(position, f"no whole message in {len(body)} bytes")
        last = ends[-1]
        position += last + HEADER_BYTES + int.from_bytes(body[last : last + 4], "big")


def _lost(task: FetchTask, first: int, after: int, fail_on_data_loss: bool) -> None:
    if task.replicas.master is None:  # which may well have them
        raise BrokerAway(
            f"read {task.name}: its slave has not got the offsets from {first} on: start its master, or wait"
        )
    text = f"{task.name}: offsets from {first} on are not stored any more, the next is {after}"
    if fail_on_data_loss:
        raise DataLost(f"{text}: retention may have deleted them; read with failOnDataLoss=false to go on without them")
    _log.warning("messages left out %s", text)


def _frames(task: FetchTask, position: int, body: bytes) -> tuple[Extents, Frames]:
    """Return the whole frames in *body*. Raises InvalidMessage for one with another checksum than it names."""
    at = np.array(whole_frames(body, 0, len(body)), np.int64)
    zero = np.zeros(1, np.int64)
    extents = Extents(zero, zero, zero - 1, zero + position, zero + len(at), zero + len(body))
    frames = Frames(body, at, np.zeros(len(at), np.int64), at + position, gather(body, at, FRAME))
    for row in broken_checksums(frames):
        offset = int(frames.offset[row])
        if task.start <= offset < task.end:
            raise InvalidMessage(offset, f"{task.name}: its checksum does not match its bytes")
    return extents, frames
