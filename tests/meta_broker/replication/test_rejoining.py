"""Which slave a master becomes that was superseded, and that its directory says so from then on."""

from pathlib import Path

import pytest

from journal.errors import DirectoryInUse
from journal.storage import DirectoryStorage
from meta_broker.config import load
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.rejoining import free_slave_id, rejoined
from meta_broker.replication.slave_file import SlaveFile
from zk.replication import ReplicationNode

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
    assert free_slave_id(node) == slave_id


def test_the_directory_is_a_slaves_from_then_on(tmp_path: Path) -> None:
    node = ReplicationNode(epoch=5, master=MASTER, claimed_by="slave 7")
    config = load(None, data=tmp_path, broker_id=3, port=0, zookeeper="127.0.0.1:1")
    after = rejoined(config, Superseded(3, 4, node))
    assert (after.is_slave, after.slave.id) == (True, 7)
    facts = SlaveFile(tmp_path).read()
    assert facts is not None
    assert (facts.broker_id, facts.slave_id, facts.master, facts.epoch, facts.heard_ms) == (3, 7, MASTER, 4, 0)


def test_its_own_id_is_what_its_configuration_says(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('[slave]\nid = 4\n[topics."*"]\n')
    config = load(path, data=tmp_path / "data", broker_id=3, port=0, zookeeper="127.0.0.1:1")
    (tmp_path / "data").mkdir()
    assert rejoined(config, Superseded(3, 4, ReplicationNode(epoch=5, claimed_by="slave 7"))).slave.id == 4


def test_nobody_elses_directory_becomes_one(tmp_path: Path) -> None:
    config = load(None, data=tmp_path, broker_id=3, port=0, zookeeper="127.0.0.1:1")
    storage = DirectoryStorage.open_for_writing(tmp_path)
    with pytest.raises(DirectoryInUse):
        rejoined(config, Superseded(3, 4, ReplicationNode(epoch=5)))
    storage.close()
    assert SlaveFile(tmp_path).read() is None
