"""Messages of a broker that speaks TLS, read and written as a Spark task does; no Spark takes part."""

from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from meta_client.batches.names import BatchName
from meta_client.errors import InvalidSecurity
from spark_jobs.formats import MetaqReader
from spark_jobs.messages.options import InvalidOption, read_options
from spark_jobs.sink.commit import BatchEnd, connected
from spark_jobs.sink.options import write_options
from spark_jobs.sink.writers import write_task
from tests.crash.sink_child import rows_of
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.certificates import Certificates
from zk.embedded.chroot import Chroot


def test_rows_go_there_and_back_over_tls(zookeeper: Chroot, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG + certificates.tls()):
        secured = {"zookeeper": zookeeper.connect, "tlsCa": str(certificates.ca)}
        rows = rows_of([("0-0", "one"), ("0-1", "two")])
        schema = StructType([StructField(name, StringType()) for name in ("payload", "partition")])
        options = write_options({**secured, "topic": "orders"}, schema, overwrite=False, is_stream=False)
        name = BatchName("tls", 0)
        prepared = write_task(options, name, iter([rows]))
        with connected(options.cluster) as client:
            BatchEnd(client, name.query).commit(name, prepared.branches)
        reader = MetaqReader(read_options({**secured, "subscribe": "orders"}, is_stream=False), ("payload",))
        found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
        assert sorted(bytes(row["payload"]) for row in found) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"tls": "false", "tlsCa": "ca.pem"}, "is false, and its files are named"),
        ({"user": "ann"}, "go together"),
        ({"passwordFile": "ann.password"}, "go together"),
    ],
)
def test_half_a_security_is_refused(more: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        read_options({"brokers": "127.0.0.1:1", "subscribe": "orders"} | more, is_stream=False)


def test_a_password_file_that_is_not_there_is_named() -> None:
    given = {"brokers": "127.0.0.1:1", "subscribe": "orders", "user": "ann", "passwordFile": "/nowhere"}
    options = read_options(given, is_stream=False)
    assert options.cluster is not None
    with pytest.raises(InvalidSecurity, match="the password file /nowhere can't be read"):
        _ = options.cluster.security
