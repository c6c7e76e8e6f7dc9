"""Power cuts under SQLite with a rollback journal, whose deletion is the commit: the file system is a real ext4."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meta_client.transactions.databases import Change, init
from meta_client.transactions.table import KEEP_S, RowDecision
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.failing_device import FailingDevice, failing_device
from tests.fixtures.forked import start_module
from tests.meta_client.transactions.conftest import Deciding, make_sqlite, running_world
from tests.meta_client.transactions.test_crashes import CRASHING, QUICK


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FailingDevice]:
    with failing_device(tmp_path, 16) as device:
        yield device


def cut_power(device: FailingDevice, deciding: Deciding) -> None:
    device.cut_power()
    device.power_on()
    init(deciding.url, KEEP_S, Change.MOVED)  # it may have another loop device than before, without a reboot


@pytest.mark.parametrize("way", ["sqlite3", "sqlite3+sqlalchemy", "sqlite3+django"])
def test_right_after_brokers_were_told(device: FailingDevice, broker_pool: BrokerPool, way: str) -> None:
    deciding = make_sqlite(device.directory)
    with running_world(deciding, broker_pool) as world:
        place = deciding.url.removeprefix("sqlite:///")
        assert start_module(CRASHING, way, place, world.zookeeper, "1", "COMMIT_SENT").wait() == -9
        cut_power(device, deciding)
        with world.open_client(**QUICK) as client:
            client.resolve(deciding.url)
            world.check([1])


def test_a_decision_that_another_process_has_seen(device: FailingDevice) -> None:
    """A killed service may have committed it, and not said so to the disk yet. The reader ends branches as it says."""
    deciding = make_sqlite(device.directory)
    name = deciding.identity.name
    rows = {name.new_gtrid(): outcome for outcome in RowDecision}
    for gtrid, outcome in rows.items():
        insert(deciding, gtrid, outcome)
        with closing(deciding.table()) as table:
            assert table.decided(gtrid) is outcome
        cut_power(device, deciding)
        assert deciding.rows()[gtrid] == outcome.value
    insert(deciding, later := name.new_gtrid(), RowDecision.COMMIT)
    with closing(deciding.table()) as table:
        assert {row.gtrid for row in table.rows(0.0, 10)} == {
            later,
            *(g for g, o in rows.items() if o.value == "commit"),
        }
    cut_power(device, deciding)
    assert later in deciding.rows()


def insert(deciding: Deciding, gtrid: str, outcome: RowDecision) -> None:
    with closing(sqlite3.connect(deciding.url.removeprefix("sqlite:///"))) as connection, connection:
        values = gtrid, outcome.value, "0"
        connection.execute("INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES (?, ?, ?)", values)


def test_a_decision_of_a_resolver(device: FailingDevice) -> None:
    deciding = make_sqlite(device.directory)
    gtrid = deciding.identity.name.new_gtrid()
    with closing(deciding.table()) as table:
        assert table.resolve(gtrid) is RowDecision.ROLLBACK
    cut_power(device, deciding)
    assert deciding.rows() == {gtrid: "rollback"}
