"""The options of a write to format `metaq`. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import BinaryType, StringType, StructType

from meta_client.batches.decision import SinkFailed
from meta_client.batches.names import BatchName
from spark_jobs.messages.columns import message_schema
from spark_jobs.messages.options import SECURITY, ClusterAddress, Given, InvalidOption, cluster_of

_NAMES: Final = (
    *("zookeeper", "root", "topic", "transactionId", "transactionTimeout"),
    *("checkpointLocation", "checkpointUrl"),
)
_TIMEOUT_S: Final = 600  # from a task's first message to its PREPARE
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,36}", re.ASCII)
_WRITTEN: Final = {"topic": (StringType(),), "partition": (StringType(),), "key": (StringType(),)}
_PAYLOAD: Final = (BinaryType(), StringType())


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write. *topic*: of all rows, None if a column names it. *write_id*: of a batch write;
    *is_named*: the caller gave it, so that a repeated write is known. *checkpoint*: location of the query that
    writes, as Python finds it; blank outside of streams."""

    cluster: ClusterAddress
    topic: str | None
    write_id: str
    is_named: bool
    timeout_s: int
    checkpoint: str

    def write_in(self, stream: BatchName | None) -> BatchName:
        """Return the name of a batch write within *stream*, a query's micro-batch: in `foreachBatch` one of each.
        Raises SinkFailed if the options do not go with it."""
        if self.checkpoint and stream is None:
            raise SinkFailed(
                "a batch of a query is told by its checkpoint, and this write is in none: leave option "
                '"checkpointLocation" out'
            )
        if self.is_named and stream is not None and not self.checkpoint:
            raise SinkFailed(
                'a write in foreachBatch with option "transactionId" needs option "checkpointLocation" of the query, '
                "too: without it a batch of a restored checkpoint is taken for the one that had its number"
            )
        return BatchName(self.write_id, stream.batch if stream is not None and self.checkpoint else 0)


def write_options(options: Mapping[str, str], schema: StructType, *, overwrite: bool, is_stream: bool) -> WriteOptions:
    """Check options and columns. Raises InvalidOption."""
    given = Given(options, (*_NAMES, *SECURITY), "writing")
    if overwrite:
        raise InvalidOption("a topic can't be overwritten: use mode append, or output mode append or update")
    if given.get("zookeeper") is None:
        raise InvalidOption('writing needs option "zookeeper", as host:port: the decision about a batch is kept there')
    topic, write_id = given.get("topic"), given.get("transactionId")
    if is_stream:
        given.refuse(("transactionId",), "is for batch writes: a stream's batches are named by its checkpoint")
    if is_stream and not given.get("checkpointLocation"):
        raise InvalidOption(
            'a stream needs option "checkpointLocation": the sink reads there which rows a batch has, and Spark does '
            "not hand on spark.sql.streaming.checkpointLocation"
        )
    if write_id is not None and _ID.fullmatch(write_id) is None:
        raise InvalidOption(f'option "transactionId" is {write_id[:80]!r}: use 1 to 36 letters, digits, ".", "_", "-"')
    checkpoint = given.get("checkpointLocation") or ""
    if checkpoint and write_id is None and not is_stream:
        raise InvalidOption(
            'option "checkpointLocation" of a batch write, in foreachBatch, needs "transactionId": a name of yours, '
            "the same for all batches of the query, and of no other write"
        )
    if not is_stream:
        given.refuse(("checkpointUrl",), "is for streams: Spark does not read checkpointLocation of a batch write")
    _check_columns(schema, topic)
    timeout_s = given.number("transactionTimeout", 1) or _TIMEOUT_S
    is_named, write_id = write_id is not None, write_id or BatchName.once().query
    found = given.get("checkpointUrl") or checkpoint
    return WriteOptions(cluster_of(given), topic, write_id, is_named, timeout_s, found)


def _check_columns(schema: StructType, topic: str | None) -> None:
    """Columns of the source that a write does not use may stay. Raises InvalidOption."""
    source = {field.name: (field.dataType,) for field in message_schema(with_headers=True).fields}
    for field in schema.fields:
        allowed = _PAYLOAD if field.name == "payload" else _WRITTEN.get(field.name) or source.get(field.name)
        if allowed is None:
            raise InvalidOption(
                f"column {field.name[:80]!r} can't be written: rename it; topic, partition, key and payload can"
            )
        if field.dataType not in allowed:
            names = " or ".join(each.simpleString() for each in allowed)
            raise InvalidOption(f"column {field.name} is {field.dataType.simpleString()}: cast it to {names}")
    if "payload" not in schema.fieldNames():
        raise InvalidOption(
            "there is no column payload: name what to send, as in selectExpr('to_json(...) AS payload')"
        )
    if ("topic" in schema.fieldNames()) == (topic is not None):
        raise InvalidOption('name the topic by option "topic" or by a column topic: one of them')
