"""The owner and the role that a data directory gives a broker at its start."""

from pathlib import Path

import pytest

from journal.errors import DirectoryIsReplica
from meta_broker.app.roles import run, with_role
from meta_broker.app.slave import read_slave_facts
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.loading import load
from meta_broker.config.sections import SlaveSection
from meta_broker.errors import ConfigError
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.checkpoint_taking import checkpoint_stopped
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.replicas import copied_bytes

FACTS = SlaveFacts(cluster="metaq", broker_id=0, slave_id=7, master="meta://10.0.0.9:8123", heard_ms=1)


def config_of(data: Path, slave: SlaveSection, *, is_slave: bool) -> BrokerConfig:
    return BrokerConfig(
        data=data, broker_id=0, port=0, zookeeper="127.0.0.1:1", role="slave" if is_slave else "master", slave=slave
    )


def test_a_directory_without_slave_json_is_whose_it_is_told_to_be(tmp_path: Path) -> None:
    master = config_of(tmp_path, SlaveSection(id=3), is_slave=False)
    assert with_role(master) is master
    slave = config_of(tmp_path, SlaveSection(id=3), is_slave=True)
    assert with_role(slave) is slave
    assert read_slave_facts(slave, SlaveFile(tmp_path)) == SlaveFacts(cluster="metaq", broker_id=0, slave_id=3)


def test_a_slaves_directory_starts_as_that_slave_without_being_told(tmp_path: Path) -> None:
    SlaveFile(tmp_path).write(FACTS)
    config = with_role(config_of(tmp_path, SlaveSection(id=3, master="here:1"), is_slave=False))
    assert (config.is_slave, config.slave) == (True, SlaveSection(id=7, master="here:1"))
    assert read_slave_facts(config, SlaveFile(tmp_path)) == FACTS


def test_with_rejoin_off_a_slaves_directory_is_not_started_as_a_master(tmp_path: Path) -> None:
    SlaveFile(tmp_path).write(FACTS)
    config = config_of(tmp_path, SlaveSection(rejoin=False), is_slave=False)
    with pytest.raises(ConfigError, match=r"is a copy, slave 7's of broker 0: start it as that slave, or .*promote"):
        run(config, lambda line: None)
    assert list(tmp_path.iterdir()) == [tmp_path / "slave.json"]


def test_another_slaves_directory_is_not_followed_on(tmp_path: Path) -> None:
    SlaveFile(tmp_path).write(FACTS)
    config = config_of(tmp_path, SlaveSection(id=3), is_slave=True)
    with pytest.raises(ConfigError, match=r"is the directory of slave 7 of broker 0, cluster 'metaq', not of"):
        read_slave_facts(config, SlaveFile(tmp_path))


def test_the_mode_says_whether_consumers_come_unless_the_slave_does(tmp_path: Path) -> None:
    def registers(text: str) -> bool:
        path = tmp_path / "broker.toml"
        path.write_text(text + '\n[topics."*"]\n')
        return load(path, data=tmp_path, broker_id=0, port=0).slave_registers

    assert registers("")
    assert not registers('[replication]\nmode = "sync"')
    assert registers('[replication]\nmode = "sync"\n[slave]\nregister = true')
    assert not registers("[slave]\nregister = false")
    assert not registers('[replication]\nmode = "async"\n[slave]\nregister = false')


def test_nobody_appends_to_a_copy_by_command(lone_broker: BrokerProcess) -> None:
    """`metaq checkpoint DIR`, `metaq txn commit --dir DIR` and the like: what they add its master would never have."""
    assert lone_broker.stop() == 0
    before = copied_bytes(lone_broker.data)
    SlaveFile(lone_broker.data).write(FACTS)
    with pytest.raises(DirectoryIsReplica, match="do this on its master, or make it the master with `metaq promote"):
        checkpoint_stopped(lone_broker.data, "test")
    assert copied_bytes(lone_broker.data) == before
