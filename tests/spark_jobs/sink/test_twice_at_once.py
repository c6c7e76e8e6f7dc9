"""A write that runs twice at once: a scheduler repeats what it has lost sight of, and the first run still goes on."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from meta_client.batches.decision import Decisions, SinkFailed
from meta_client.batches.names import QUALIFIER, BatchName
from spark_jobs.sink.commit import verbs_of
from spark_jobs.sink.options import write_options
from spark_jobs.sink.writers import BatchWriter, Prepared
from tests.spark_jobs.conftest import SmallCluster


def begun(cluster: SmallCluster, topic: str) -> BatchWriter:
    schema = StructType().add("payload", StringType())
    given = {"zookeeper": cluster.zookeeper, "topic": topic, "transactionId": f"load-{topic}"}
    return BatchWriter.begin(write_options(given, schema, overwrite=False, is_stream=False))


def task(writer: BatchWriter, payload: str) -> Prepared:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"payload": [payload]})

    return writer.write(rows())


def stored(cluster: SmallCluster, topic: str) -> list[bytes]:
    return sorted(message.payload for message in cluster.client.browse(topic))


def test_what_another_run_has_rolled_back_is_not_decided(cluster: SmallCluster, topic: str) -> None:
    """Else half of the write is there, and none of its repetitions ever ends."""
    first, second = begun(cluster, topic), begun(cluster, topic)
    before = task(first, "0")
    second.abort([task(second, "0")])
    messages = [before, task(first, "1")]
    with pytest.raises(SinkFailed, match="ran twice at once, and the other run was given up"):
        first.commit(messages)
    first.abort(messages)
    again = begun(cluster, topic)
    again.commit([task(again, "0"), task(again, "1")])
    assert stored(cluster, topic) == [b"0", b"1"]
    assert verbs_of(cluster.client).list_prepared(QUALIFIER).keys == {0: (), 1: ()}


def test_what_is_prepared_while_another_run_is_given_up_stays(
    cluster: SmallCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = begun(cluster, topic), begun(cluster, topic)
    forbid = Decisions.forbid
    later: list[Prepared] = []

    def forbid_and_prepare(decisions: Decisions, name: BatchName) -> bool:
        found = forbid(decisions, name)
        later.append(task(first, "0"))
        return found

    failed = task(second, "0")
    with monkeypatch.context() as patch:
        patch.setattr(Decisions, "forbid", forbid_and_prepare)
        second.abort([failed])
    first.commit(later)
    assert stored(cluster, topic) == [b"0"]
