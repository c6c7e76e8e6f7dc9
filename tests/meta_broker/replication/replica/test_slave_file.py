"""slave.json: written whole or not at all, and never believed when it holds something else."""

import os
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from meta_broker.errors import ConfigError
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile

FACTS = SlaveFacts(
    cluster="metaq", broker_id=3, slave_id=1, master="meta://10.0.0.9:8123", epoch=2, end=4096, mode="sync"
)


def test_it_says_what_was_written_until_it_is_removed(tmp_path: Path) -> None:
    file = SlaveFile(tmp_path)
    assert file.read() is None
    file.write(FACTS)
    assert SlaveFile(tmp_path).read() == FACTS
    file.remove()
    file.remove()
    assert file.read() is None


def test_a_crash_before_the_new_one_has_its_name_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SlaveFile(tmp_path)
    file.write(FACTS)

    def fails(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageFailed, match=r"slave\.json: No space left"):
        file.write(SlaveFacts(cluster="metaq", broker_id=3, slave_id=1))
    assert file.read() == FACTS


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"cluster":"metaq","broker_id":-1,"slave_id":1}',
        b'{"cluster":"metaq","broker_id":1,"slave_id":1,"colour":"green"}',
        b"\xff",
        b"[" * 10_000,
        b'{"cluster":"' + b"x" * 20_000 + b'","broker_id":1,"slave_id":1}',
    ],
)
def test_what_is_no_slave_file_is_refused_with_the_remedy(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "slave.json").write_bytes(data)
    with pytest.raises(ConfigError, match=r"slave\.json: not what a slave writes .*: replace it by one line"):
        SlaveFile(tmp_path).read()
