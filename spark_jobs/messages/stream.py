"""`spark.readStream.format("metaq")`: micro-batches of messages, from brokers.

Spark keeps the offsets, `{"orders": {"0-0": 1024}}`, in the query's checkpoint: every message that begins below an
offset is in a batch up to there. The driver asks brokers for their ends; a task reads one range of one partition.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from meta_client.errors import BrokerAway
from spark_jobs.messages.batches import PartitionId
from spark_jobs.messages.cluster import Cluster, Cut
from spark_jobs.messages.options import ReadOptions
from spark_jobs.messages.planning import fetch_tasks, read_messages, starting_offsets
from spark_jobs.messages.segments import DataLost
from zk.tree.nodes import Partition

TopicOffsets = dict[str, dict[str, int]]  # by topic and `broker-number`, as the checkpoint has them
_Part = TypeVar("_Part")
_NOTHING: Final = Cut({}, {})

_log = logging.getLogger(__name__)


class LimitedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source. Spark calls it on the driver, by one thread; `read` on the workers."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the API's name
        limit = self._options.offsets_max
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task. Raises DataLost, JournalError, MetaError."""
        return read_messages(partition, self._options, self._columns)


class MessageStream(LimitedStream):
    """Messages from brokers."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._cluster: Cluster | None = None
        self._cut = _NOTHING  # as last asked for
        self._last: dict[PartitionId, int] | None = None  # where the query ends, with Trigger.AvailableNow

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None, "_cut": _NOTHING}

    def initialOffset(self) -> TopicOffsets:  # noqa: N802 - the API's name
        """Return where a new query begins. Raises MetaError, ZooKeeperError."""
        self._cut = self._connected().cut(self._options.selection)
        return as_json(starting_offsets(self._options, self._connected(), self._cut))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - the API's name
        """Fix where the query will end. Raises MetaError, ZooKeeperError."""
        self._cut = self._connected().cut(self._options.selection)
        self._last = {name: found.end for name, found in self._cut.ranges.items()}

    def latestOffset(self, start: TopicOffsets, limit: ReadLimit) -> TopicOffsets:  # noqa: N802 - the API's name
        """Return where a batch from *start* ends. A partition whose broker is not up stays where it is; it fails a
        query with Trigger.AvailableNow, which would end without its messages.

        Raises DataLost if a partition ends before what was read of it, BrokerAway, MetaError, ZooKeeperError.
        """
        self._cut = self._connected().cut(self._options.selection, may_lack=self._last is None)
        begins = from_json(start)
        ends = {name: found.end for name, found in self._cut.ranges.items()}
        for name, end in ends.items():
            begin = begins.setdefault(name, self._cut.ranges[name].start)  # a new partition: all of it
            is_behind = self._cut.places[name].replicas.master is None  # a slave, for while its master is away
            if end < begin and not is_behind and self._options.fails_on_data_loss:
                raise DataLost(
                    f"{name[0]}/{name[1]} ends at offset {end}, and was read up to {begin}: its newest messages are "
                    f"lost; start with another checkpoint, or with failOnDataLoss=false to wait until it is there again"
                )
        if self._last is not None:
            ends = {name: min(end, self._last.get(name, 0)) for name, end in ends.items()}
        ends = {name: max(begin, ends.get(name, begin)) for name, begin in begins.items()}
        if isinstance(limit, ReadMaxBytes):
            ends = limited(begins, ends, limit.max_bytes)
        return as_json(ends)

    def reportLatestOffset(self) -> TopicOffsets | None:  # noqa: N802 - the API's name
        """Return the ends that were last seen: with a batch's own end they are the lag, in bytes."""
        return as_json({name: found.end for name, found in self._cut.ranges.items()}) or None

    def partitions(self, start: TopicOffsets, end: TopicOffsets) -> list[InputPartition]:
        """Return the tasks of a batch. Raises DataLost for a partition that its broker has not any more, BrokerAway,
        MetaError, ZooKeeperError."""
        begins, ends = from_json(start), from_json(end)
        wanted = {name: after for name, after in ends.items() if after > begins.get(name, 0)}
        if not wanted.keys() <= self._cut.places.keys():
            self._cut = self._connected().cut(self._options.selection, may_lack=True)
        for absent in sorted(wanted.keys() - self._cut.places.keys()):
            self._report_gone(absent)
            del wanted[absent]
        return [*fetch_tasks(self._cut, {name: begins.get(name, 0) for name in wanted}, wanted, self._options)]

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _report_gone(self, name: PartitionId) -> None:
        """Raise DataLost, or log it, for a partition that is not offered; BrokerAway if its broker is not up: nothing
        is lost then."""
        topic, partition = name
        if (place := Partition.maybe_parse(partition)) is None:
            raise DataLost(f"the checkpoint names {topic}/{partition[:40]!r}, which is no partition: it is damaged")
        if not self._connected().is_up(topic, place.broker_id):
            raise BrokerAway(f"read {topic}/{partition}: its broker is not up: start it, or wait")
        text = f"broker {place.broker_id} has {topic}/{partition} not any more, which the checkpoint names"
        if self._options.fails_on_data_loss:
            raise DataLost(f"{text}: read with failOnDataLoss=false to go on without its messages")
        _log.warning("messages left out %s", text)

    def _connected(self) -> Cluster:
        assert self._options.cluster is not None
        if self._cluster is None:
            self._cluster = Cluster(self._options.cluster)
        return self._cluster


def limited(begins: Mapping[_Part, int], ends: Mapping[_Part, int], bytes_max: int) -> dict[_Part, int]:
    """Return ends with at most *bytes_max* bytes before them, shared in proportion to what each part has."""
    waiting = {name: ends[name] - begin for name, begin in begins.items()}
    total = sum(waiting.values())
    if total <= bytes_max:
        return dict(ends)
    # Upwards, so that every partition goes on: one message more may be read of each.
    return {name: begin + -(-waiting[name] * bytes_max // total) for name, begin in begins.items()}


def as_json(offsets: Mapping[PartitionId, int]) -> TopicOffsets:
    """Return *offsets* as a checkpoint has them."""
    found: TopicOffsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[partition] = offset
    return found


def from_json(offsets: TopicOffsets) -> dict[PartitionId, int]:
    """Return what `as_json` has written."""
    return {(topic, partition): offset for topic, found in offsets.items() for partition, offset in found.items()}
