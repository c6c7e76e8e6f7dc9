"""The classes that Spark calls to write: `write` for each attempt of a task, `commit` or `abort` on the driver.

An attempt puts its rows into branches of its own and prepares them. The driver's decision names the branches of the
attempts that Spark counts; all others of the batch are rolled back, whenever they show up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from journal.records.xid import Xid
from meta_client.batches.decision import SinkFailed
from meta_client.batches.names import BatchName, BranchName, attempt_name, branch_at
from meta_client.producer.partitioners import ByAttribute
from meta_client.transactions.branches import OpenBranches
from spark_jobs.sink.batch_plan import plan_digest
from spark_jobs.sink.commit import BatchEnd, connected, verbs_of
from spark_jobs.sink.options import WriteOptions

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # properties that Spark sets for a stream's tasks


@dataclass(frozen=True)
class Prepared(WriterCommitMessage):
    """Branches that an attempt has prepared."""

    query: str
    branches: tuple[BranchName, ...]


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("metaq")`: the whole write is one transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._name = BatchName(options.write_id, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Put the rows of a task and prepare them. Raises SinkFailed, SendFailed, PrepareFailed, ZooKeeperError."""
        return write_task(self._options, self._name, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit what the tasks have prepared. Raises as BatchEnd.commit."""
        with connected(self._options.cluster) as client:
            end = BatchEnd(client, self._name.query)
            end.commit(self._name, branches_in(messages))
            if not self._options.is_named:
                end.decisions.delete()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Roll back what the tasks have prepared. Raises as BatchEnd.abort."""
        with connected(self._options.cluster) as client:
            end = BatchEnd(client, self._name.query)
            if end.abort(self._name) and not self._options.is_named:
                end.decisions.delete()


class StreamWriter(DataSourceStreamArrowWriter):
    """`writeStream.format("metaq")`: each micro-batch is one transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Put the rows of a task and prepare them. Raises SinkFailed, SendFailed, PrepareFailed, ZooKeeperError."""
        task = TaskContext.get()
        query, batch = (None, None) if task is None else map(task.getLocalProperty, (_QUERY, _BATCH))
        if query is None or batch is None:
            raise SinkFailed("this Spark does not tell its tasks which query and batch they are of: use foreachBatch")
        return write_task(self._options, BatchName(query, int(batch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - the API's
        """Commit what the tasks have prepared, or what an earlier run of the batch has decided. Raises as
        BatchEnd.commit."""
        if (query := query_in(messages)) is not None:
            plan = plan_digest(self._options.checkpoint, BatchName(query, batchId))
            with connected(self._options.cluster) as client:
                BatchEnd(client, query).commit(BatchName(query, batchId), branches_in(messages), plan)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - the API's
        """Roll back what the tasks have prepared. Raises as BatchEnd.abort."""
        if (query := query_in(messages)) is not None:
            with connected(self._options.cluster) as client:
                BatchEnd(client, query).abort(BatchName(query, batchId))


def branches_in(messages: Sequence[WriterCommitMessage | None]) -> tuple[BranchName, ...]:
    """Return the branches of the attempts that Spark counts."""
    return tuple(branch for message in messages if isinstance(message, Prepared) for branch in message.branches)


def query_in(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """Return the query that *messages* are of; None if no task ended: what some have prepared, the next run rolls
    back."""
    return next((message.query for message in messages if isinstance(message, Prepared)), None)


def write_task(options: WriteOptions, name: BatchName, rows: Iterator[pa.RecordBatch]) -> Prepared:
    """Put *rows* into branches of an attempt's own, one a broker, and prepare them. If it raises, they are rolled back,
    or will be: nobody has heard their names."""
    task = TaskContext.get()
    attempt = attempt_name(task.partitionId(), task.attemptNumber()) if task is not None else attempt_name(0, 0)
    with connected(options.cluster) as client:
        branches = OpenBranches(verbs_of(client), name.gtrid, options.timeout_s, partial(_xid, name, attempt))
        producer = client.producer(partitioner=ByAttribute())
        producer.enter(branches)
        try:
            for batch in rows:
                for topic, partition, key, payload in _messages(batch, options.topic):
                    producer.send_async(topic, payload, key, partition)
            prepared = branches.prepare()
        except BaseException:
            branches.rollback()
            raise
        finally:
            producer.leave()
    return Prepared(name.query, tuple(branch_at(attempt, broker_id) for broker_id in prepared))


def _xid(name: BatchName, attempt: str, gtrid: str, broker_id: int) -> Xid:
    assert gtrid == name.gtrid
    return branch_at(attempt, broker_id).key(name).xid


def _messages(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, str | None, str | None, bytes]]:
    """Yield topic, partition, key and payload of each row. Raises SinkFailed for a row without topic or payload."""
    nulls = [None] * batch.num_rows
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    topics = columns.get("topic", nulls) if topic is None else [topic] * batch.num_rows
    partitions, keys = columns.get("partition", nulls), columns.get("key", nulls)
    for to, partition, key, payload in zip(topics, partitions, keys, columns["payload"], strict=True):
        if to is None or payload is None:
            raise SinkFailed(f"a row has no {'topic' if to is None else 'payload'}: filter such rows, or give it one")
        yield to, partition, key, payload.encode() if isinstance(payload, str) else payload
