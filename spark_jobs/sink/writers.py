"""The classes that Spark calls to write: `write` for each attempt of a task, `commit` or `abort` on the driver.

An attempt puts its rows into branches of its own and prepares them. The driver's decision names the branches of the
attempts that Spark counts; all others of the batch are rolled back, whenever they show up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from journal.records.xid import XaKey
from meta_client.batches.decision import OVER, Decisions, SinkFailed
from meta_client.batches.names import BatchName, BranchName, attempt_name, branch_at
from meta_client.producer.partitioners import ByAttribute
from meta_client.transactions.branches import OpenBranches
from spark_jobs.sink.batch_plan import plan_digest
from spark_jobs.sink.commit import BatchEnd, connected, verbs_of
from spark_jobs.sink.options import WriteOptions

_PLACED = frozenset({"topic", "partition", "key"})  # columns beside the payload
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # properties that Spark sets for a stream's tasks


@dataclass(frozen=True)
class Prepared(WriterCommitMessage):
    """Branches that an attempt has prepared of transaction *name*. *stream*: the micro-batch whose rows they are.
    *seen*: version of the decision's node before."""

    name: BatchName
    branches: tuple[BranchName, ...]
    stream: BatchName | None
    seen: int | None


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("metaq")`: the whole write is one transaction; in `foreachBatch`, a numbered one."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @classmethod
    def begin(cls, options: WriteOptions) -> Self:
        """Make the writer of a new write, on the driver. Raises ZooKeeperError."""
        if not options.is_named:
            with connected(options.cluster) as client:
                Decisions(client.session, options.write_id).begin()
        return cls(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Put the rows of a task and prepare them. Raises SinkFailed, SendFailed, PrepareFailed, ZooKeeperError."""
        return write_task(self._options, self._options.write_in(stream_batch()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what the tasks have prepared. Raises as BatchEnd.commit, SinkFailed for a plan that can't be read."""
        first = prepared_in(messages)
        assert first is not None, "Spark runs a task also for no rows"
        commit_prepared(self._options, first, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Roll back what the tasks have prepared. Raises as BatchEnd.abort."""
        first = prepared_in(messages)
        name = BatchName(self._options.write_id, 0) if first is None else first.name
        with connected(self._options.cluster) as client:
            BatchEnd(client, name.query).abort(name)


class StreamWriter(DataSourceStreamArrowWriter):
    """`writeStream.format("metaq")`: each micro-batch is one transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Put the rows of a task and prepare them. Raises SinkFailed, SendFailed, PrepareFailed, ZooKeeperError."""
        if (stream := stream_batch()) is None:
            raise SinkFailed("this Spark does not tell its tasks which query and batch they are of: use foreachBatch")
        return write_task(self._options, stream, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - the API's
        """Commit what the tasks have prepared, or what an earlier run of the batch has decided. Raises as
        BatchWriter.commit."""
        if (first := prepared_in(messages)) is not None:
            assert first.name.batch == batchId
            commit_prepared(self._options, first, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - the API's
        """Roll back what the tasks have prepared. Raises as BatchEnd.abort."""
        if (first := prepared_in(messages)) is not None:
            assert first.name.batch == batchId
            with connected(self._options.cluster) as client:
                BatchEnd(client, first.name.query).abort(first.name)


def stream_batch() -> BatchName | None:
    """Return the micro-batch whose task this is; None outside of a stream. Spark sets these properties."""
    task = TaskContext.get()
    query, batch = (None, None) if task is None else map(task.getLocalProperty, (_QUERY, _BATCH))
    return None if query is None or batch is None else BatchName(query, int(batch))


def commit_prepared(options: WriteOptions, first: Prepared, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit the branches of the attempts that Spark counts; *first* is one of *messages*. Raises as BatchEnd.commit,
    SinkFailed for a plan that can't be read."""
    counted = [message for message in messages if isinstance(message, Prepared)]
    branches = tuple(branch for message in counted for branch in message.branches)
    seen = frozenset(message.seen for message in counted)
    with connected(options.cluster) as client:
        BatchEnd(client, first.name.query).commit(first.name, branches, plan_of(options, first), seen)


def prepared_in(messages: Sequence[WriterCommitMessage | None]) -> Prepared | None:
    """Return one of *messages*, all of one transaction; None if no task ended: what some have prepared, the next run
    rolls back."""
    return next((message for message in messages if isinstance(message, Prepared)), None)


def plan_of(options: WriteOptions, prepared: Prepared) -> str:
    """Return the digest of what Spark planned as the micro-batch; blank outside of a stream. Raises SinkFailed."""
    if prepared.stream is None or not options.checkpoint:
        return ""
    return plan_digest(options.checkpoint, prepared.stream)


def write_task(options: WriteOptions, name: BatchName, rows: Iterator[pa.RecordBatch]) -> Prepared:
    """Put *rows* into branches of an attempt's own, one a broker, and prepare them. If it raises, they are rolled back,
    or will be: nobody has heard their names."""
    task = TaskContext.get()
    attempt = attempt_name(task.partitionId(), task.attemptNumber()) if task is not None else attempt_name(0, 0)
    with connected(options.cluster) as client:
        branches = OpenBranches(verbs_of(client), name.gtrid, options.timeout_s, partial(_key, name, attempt))
        producer = client.producer(partitioner=ByAttribute())
        producer.enter(branches)
        try:
            for batch in rows:
                for topic, partition, key, payload in _messages(batch, options.topic):
                    producer.send_async(topic, payload, key, partition)
            decisions = Decisions(client.session, name.query)
            seen = decisions.version()
            prepared = branches.prepare()
            if not name.is_repeatable and decisions.read() == OVER:
                raise SinkFailed(f"{name.gtrid} is over: another of its tasks failed, or it was cancelled")
        except BaseException:
            branches.rollback()
            raise
        finally:
            producer.leave()
    return Prepared(name, tuple(branch_at(attempt, broker_id) for broker_id in prepared), stream_batch(), seen)


def _key(name: BatchName, attempt: str, gtrid: str, broker_id: int) -> XaKey:
    assert gtrid == name.gtrid
    return branch_at(attempt, broker_id).key(name)


def _messages(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, str | None, str | None, bytes]]:
    """Yield topic, partition, key and payload of each row. Raises SinkFailed for a row without topic or payload."""
    nulls = [None] * batch.num_rows
    # Spark does not check that a string is UTF-8: its bytes are the payload, whatever they are.
    payloads = batch.column("payload").cast(pa.binary()).to_pylist()
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in _PLACED}
    topics = columns.get("topic", nulls) if topic is None else [topic] * batch.num_rows
    partitions, keys = columns.get("partition", nulls), columns.get("key", nulls)
    for to, partition, key, payload in zip(topics, partitions, keys, payloads, strict=True):
        if to is None or payload is None:
            raise SinkFailed(f"a row has no {'topic' if to is None else 'payload'}: filter such rows, or give it one")
        yield to, partition, key, payload
