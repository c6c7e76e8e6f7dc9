"""Options and columns of a write: which go together, and every one that is refused with the remedy. Starts no Spark."""

import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from spark_jobs.messages.options import InvalidOption
from spark_jobs.sink.options import write_options

CLUSTER = {"zookeeper": "127.0.0.1:2181"}
STREAM = CLUSTER | {"checkpointLocation": "/data/checkpoint"}
TOPIC = CLUSTER | {"topic": "orders"}
PAYLOAD = StructType().add("payload", BinaryType())
ALL = StructType().add("payload", StringType()).add("topic", StringType()).add("key", StringType())


def test_a_write_that_is_named_is_known_when_it_is_repeated() -> None:
    named = write_options(TOPIC | {"transactionId": "2026-07"}, PAYLOAD, overwrite=False, is_stream=False)
    assert (named.topic, named.write_id, named.is_named, named.timeout_s) == ("orders", "2026-07", True, 600)
    one, other = (write_options(STREAM, ALL, overwrite=False, is_stream=True) for _ in range(2))
    assert (one.topic, one.is_named) == (None, False)
    assert one.write_id != other.write_id


def test_the_sink_reads_a_checkpoint_where_python_finds_it() -> None:
    options = STREAM | {"checkpointLocation": "hdfs://shop/one"}
    assert write_options(options, ALL, overwrite=False, is_stream=True).checkpoint == "hdfs://shop/one"
    options["checkpointUrl"] = "webhdfs://node:9870/one"
    assert write_options(options, ALL, overwrite=False, is_stream=True).checkpoint == "webhdfs://node:9870/one"


@pytest.mark.parametrize(
    ("options", "schema", "overwrite", "is_stream", "told"),
    [
        (TOPIC, PAYLOAD, True, False, "can't be overwritten"),
        ({"topic": "orders"}, PAYLOAD, False, False, 'needs option "zookeeper"'),
        (TOPIC | {"transactionId": "x"}, PAYLOAD, False, True, "named by its checkpoint"),
        (TOPIC, PAYLOAD, False, True, "needs option .checkpointLocation"),
        (STREAM | {"topic": "orders"}, PAYLOAD, False, False, 'needs "transactionId": a name of yours'),
        (TOPIC | {"checkpointUrl": "webhdfs://node:9870/x"}, PAYLOAD, False, False, "is for streams"),
        (TOPIC | {"transactionId": "a b"}, PAYLOAD, False, False, "use 1 to 36 letters"),
        (TOPIC | {"transactionTimeout": "0"}, PAYLOAD, False, False, "whole number from 1"),
        (TOPIC, StructType().add("payload", BinaryType()).add("amount", IntegerType()), False, False, "amount"),
        (TOPIC, StructType().add("payload", IntegerType()), False, False, "cast it to binary or string"),
        (TOPIC, StructType().add("key", StringType()), False, False, "no column payload"),
        (TOPIC, ALL, False, False, "one of them"),
        (CLUSTER, PAYLOAD, False, False, "one of them"),
    ],
)
def test_what_is_refused(
    options: dict[str, str], schema: StructType, overwrite: bool, is_stream: bool, told: str
) -> None:
    with pytest.raises(InvalidOption, match=told):
        write_options(options, schema, overwrite=overwrite, is_stream=is_stream)
