"""From what a cluster offers to Spark tasks; shared by batch queries and streams."""

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_jobs.messages import fetching, journal
from spark_jobs.messages.batches import PartitionId, joined
from spark_jobs.messages.cluster import Cluster, Cut
from spark_jobs.messages.fetching import FetchTask
from spark_jobs.messages.journal import JournalTask
from spark_jobs.messages.options import LATEST, InvalidOption, ReadOptions


def read_messages(task: InputPartition, options: ReadOptions, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read one task of a batch or a stream. Raises JournalError, MetaError."""
    fails = options.fails_on_data_loss
    if isinstance(task, JournalTask):
        return joined(journal.read_task(task, options.selection, columns, fail_on_data_loss=fails))
    if isinstance(task, FetchTask):
        assert options.cluster is not None
        security = options.cluster.security
        return fetching.read_task(task, options.selection, columns, fail_on_data_loss=fails, security=security)
    return iter(())  # Spark's own placeholder: nothing was planned


def starting_offsets(options: ReadOptions, cluster: Cluster, cut: Cut) -> dict[PartitionId, int]:
    """Return where each partition of *cut* begins to be read: in range, unless it was named and is not stored."""
    if options.start_ms is not None:
        return {name: found.at for name, found in cluster.cut(options.selection, options.start_ms).ranges.items()}
    if options.start == LATEST:
        return {name: found.end for name, found in cut.ranges.items()}
    starts = {name: found.start for name, found in cut.ranges.items()}
    if not isinstance(options.start, str):
        check_offered("startingOffsets", options.start, options, cut)
        for name, offset in options.start.items():
            if name in starts:  # 0 is the beginning, whatever retention has left of it
                starts[name] = starts[name] if offset == 0 else min(offset, cut.ranges[name].end)
    return starts


def check_offered(option: str, named: Collection[PartitionId], options: ReadOptions, cut: Cut) -> None:
    """Raise InvalidOption if *named* holds a partition that the query reads not, or no broker offers: its offset would
    be ignored, and the others read from elsewhere than was meant. One that a filter leaves out may be named."""
    for topic, partition in sorted(set(named) - cut.ranges.keys()):
        if not options.selection.is_subscribed(topic) or options.selection.span(topic, partition) is not None:
            raise InvalidOption(f'option "{option}" names {topic}/{partition}, which is not read: see `metaq topics`')


def fetch_tasks(
    cut: Cut, starts: Mapping[PartitionId, int], ends: Mapping[PartitionId, int], options: ReadOptions
) -> list[FetchTask]:
    """Return tasks for [start, end) of every partition: minPartitions of them or more, if there are as many bytes."""
    spans: list[tuple[PartitionId, int, int]] = []
    for name, start in sorted(starts.items()):
        wanted = options.selection.span(*name)
        if wanted is not None and (first := max(start, wanted.start)) < (after := min(ends[name], wanted.end)):
            spans.append((name, first, after))
    most = max(1, -(-sum(after - first for _, first, after in spans) // options.partitions_min))
    return [
        FetchTask(*name, cut.places[name].replicas, begin, min(begin + most, after))
        for name, first, after in spans
        for begin in range(first, after, most)
    ]
