"""The audit on a Spark standalone cluster, and what a user is told of one that can't be used."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.transactions.databases import init
from spark_jobs.source.cluster import ClusterAway, check_reachable
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq, start_metaq, start_module
from tests.fixtures.postgres import Database
from tests.fixtures.replicas import wait_until
from tests.fixtures.spark_cluster import SETTINGS, spark_cluster, spark_master
from tests.fixtures.spark_jvm import SparkJvm
from tests.spark_jobs.cluster_query import ROWS, SOLD
from zk.embedded.chroot import Chroot

WITHIN_S = 60  # without a start of Spark, which takes minutes on a busy machine; on a quiet one it is less than 20
START_S = RUN_S = 500
REGISTERED = "Registered app metaq audit"
CONF = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture
def in_jvm(program_jvm: SparkJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs have one driver. The audit that no master knows starts its own."""
    for name, value in program_jvm.variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_jvm")
def test_a_journal_is_audited_and_messages_are_written_streamed_read_and_certified_on_the_workers(
    cluster: str, broker: BrokerProcess, zookeeper: Chroot, database: Database, tmp_path: Path, honest: Path
) -> None:
    with Client(zookeeper.connect) as client, closing(database.connect()) as connection:
        init(database.dsn, keep_s=3600)
        connection.execute("CREATE TABLE sold (gtrid text)")
        connection.commit()
        for number in range(SOLD):
            with client.transaction(connection, wait=True) as transaction:
                transaction.send("meta-test", str(number).encode())
                connection.execute("INSERT INTO sold VALUES (%s)", (transaction.gtrid,))
    words = (
        "tests.spark_jobs.cluster_query",
        cluster,
        zookeeper.connect,
        str(tmp_path),
        str(broker.data),
        database.dsn,
        str(honest),
    )
    assert start_module(*words).wait(RUN_S) == 0
    with Client(zookeeper.connect) as client:
        assert sorted(int(message.payload) for message in client.browse("invoices")) == list(range(10, ROWS))


@pytest.mark.usefixtures("in_jvm")
def test_a_master_without_workers_is_told_of_within_seconds(tmp_path: Path, honest: Path) -> None:
    said = tmp_path / "said"
    with spark_master(tmp_path) as master, said.open("w+b") as out:
        audit = start_metaq(["audit", str(honest), "--master", master, *CONF], stdin=out, stdout=out, stderr=out)
        try:
            log = tmp_path / "master.log"
            wait_until(lambda: REGISTERED in log.read_text() or audit.poll() is not None, "it registered", START_S)
            status = audit.wait(WITHIN_S)
        finally:
            audit.kill()
            audit.wait()
    assert status == 2, said.read_text()
    assert f"error: {master} gave no executor within 15 s" in said.read_text()
    assert "Traceback" not in said.read_text()


def test_a_master_that_is_not_there_is_told_of_within_seconds(honest: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{nobody.getsockname()[1]}"
        began = time.monotonic()
        done = run_metaq("audit", str(honest), "--master", f"{master},127.0.0.1:1", *CONF)
        took_s = time.monotonic() - began
    assert done.returncode == 2
    assert f"error: no Spark master at {master},127.0.0.1:1 (127.0.0.1:" in done.stderr
    assert "Connection refused; 127.0.0.1:1: Connection refused)" in done.stderr
    assert took_s < WITHIN_S


def test_a_port_that_is_no_master_s_is_told_of_within_seconds(honest: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    with socket.create_server(("127.0.0.1", 0), backlog=16) as stranger, said.open("w+b") as out:
        master = f"spark://127.0.0.1:{stranger.getsockname()[1]}"
        audit = start_metaq(["audit", str(honest), "--master", master, *CONF], stdin=out, stdout=out, stderr=out)
        try:
            stranger.settimeout(START_S)
            with stranger.accept()[0], stranger.accept()[0] as driver:  # the first one looked whether anybody is here
                assert driver.recv(1)
                status = audit.wait(WITHIN_S)
        finally:
            audit.kill()
            audit.wait()
    assert status == 2, said.read_text()
    last = said.read_text().splitlines()[-1]
    assert last.startswith(f"error: what answers at {master} did not register the application within 30 s: ")
    assert "Traceback" not in said.read_text()


@pytest.mark.parametrize("master", ["spark://host", "spark://127.0.0.1:70000", "spark://a:1,b"])
def test_what_is_no_address_is_refused(master: str) -> None:
    with pytest.raises(ClusterAway, match="is no HOST:PORT"):
        check_reachable(master)


@pytest.mark.parametrize("setting", ["spark.executor.memory", "executor.memory=1g", "=", "x=y"])
def test_what_is_no_setting_of_spark_is_refused(setting: str, honest: Path) -> None:
    done = run_metaq("audit", str(honest), "--conf", setting)
    assert done.returncode == 2
    assert f"{setting!r} is not spark.KEY=VALUE" in done.stderr
