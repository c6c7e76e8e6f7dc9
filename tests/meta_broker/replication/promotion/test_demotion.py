"""Demotion of a superseded master: the slave id it takes, and the file that records it."""

from pathlib import Path

import pytest

from journal.errors import DirectoryInUse
from journal.wal.storage import DirectoryStorage
from meta_broker.config.loading import load
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.promotion.demotion import demote, unused_slave_id
from meta_broker.replication.replica.slave_file import SlaveFile
from zk.brokers.replication import ReplicationNode

MASTER = "meta://10.0.0.9:8123"


@pytest.mark.parametrize(
    ("claimed_by", "in_sync", "slave_id"),
    [
        ("slave 7", (), 7),
        ("slave 7", (1, 2), 7),
        ("slave 7", (7,), 1),  # somebody was faster
        ("slave 7", (1, 2, 7), 3),
        ("slave 0", (), 0),
        ("", (), 1),
        ("", (1,), 2),
        ("an operator", (), 1),
        ("slave x", (), 1),
        ("slave 99999999999999999999", (), 1),
    ],
)
def test_it_takes_the_id_of_the_slave_that_took_its_place(
    claimed_by: str, in_sync: tuple[int, ...], slave_id: int
) -> None:
    node = ReplicationNode(epoch=5, in_sync=in_sync, master=MASTER, claimed_by=claimed_by)
    assert unused_slave_id(node) == slave_id


def test_the_directory_is_a_slaves_from_then_on(tmp_path: Path) -> None:
    node = ReplicationNode(epoch=5, master=MASTER, claimed_by="slave 7")
    config = load(None, data=tmp_path, broker_id=3, port=0, zookeeper="127.0.0.1:1")
    after = demote(config, Superseded(3, 4, node))
    assert (after.is_slave, after.slave.id) == (True, 7)
    facts = SlaveFile(tmp_path).read()
    assert facts is not None
    assert (facts.broker_id, facts.slave_id, facts.master, facts.epoch, facts.heard_ms) == (3, 7, MASTER, 4, 0)


def test_its_own_id_is_what_its_configuration_says(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[slave]\nid = 4\n[topics."*"]\n')
    config = load(path, data=tmp_path / "data", broker_id=3, port=0, zookeeper="127.0.0.1:1")
    (tmp_path / "data").mkdir()
    assert demote(config, Superseded(3, 4, ReplicationNode(epoch=5, claimed_by="slave 7"))).slave.id == 4


def test_a_directory_in_use_is_not_demoted(tmp_path: Path) -> None:
    config = load(None, data=tmp_path, broker_id=3, port=0, zookeeper="127.0.0.1:1")
    storage = DirectoryStorage.open_for_writing(tmp_path)
    with pytest.raises(DirectoryInUse):
        demote(config, Superseded(3, 4, ReplicationNode(epoch=5)))
    storage.close()
    assert SlaveFile(tmp_path).read() is None
