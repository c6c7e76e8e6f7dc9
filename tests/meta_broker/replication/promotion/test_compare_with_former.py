"""A former master's directory beside a slave's: what it has more, or why the two can't be compared."""

from collections.abc import Callable
from pathlib import Path

import pytest

from journal.errors import DirectoryInUse
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.segments import JournalIdentity
from journal.wal.storage import DirectoryStorage
from meta_broker.replication.promotion.promotion import NotASlave, compare_with_former, require_stopped_slave
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from tests.fixtures import journals
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, open_store


def filled(path: Path, puts: int, more: Callable[[JournalTransactionStore], object] = lambda store: None) -> Path:
    """A journal with *puts* messages, each fsynced."""
    storage = DirectoryStorage.open_for_writing(path)
    store = open_store(storage)
    for _ in range(puts):
        store.put(ORDERS, [bytes(900)], 900, 1)
        store.journal.wait_flushed(store.journal.end)
    more(store)
    store.close()
    storage.close()
    return path


def test_what_only_the_former_master_has_is_listed(tmp_path: Path) -> None:
    slave = filled(tmp_path / "slave", 2)
    former = compare_with_former(filled(tmp_path / "former", 3), slave)
    assert former.lost is not None
    assert [lost.messages for lost in former.lost.ranges.values()] == [1]
    same = compare_with_former(filled(tmp_path / "same", 2), slave)
    assert same.lost is not None
    assert same.lost.is_silent


def test_another_journal_and_the_slaves_own_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slave = filled(tmp_path / "slave", 1)
    with pytest.raises(NotASlave, match="and not the slave's"):
        compare_with_former(slave, slave)
    monkeypatch.setattr(journals, "IDENTITY", JournalIdentity("test", 8))
    with pytest.raises(NotASlave, match="is the journal of broker 8 of cluster 'test'"):
        compare_with_former(filled(tmp_path / "other", 1), slave)


def test_a_former_master_that_dropped_what_the_slave_ends_with(tmp_path: Path) -> None:
    def drop(store: JournalTransactionStore) -> None:
        taken = store.snapshot()
        store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
        store.journal.segments.drop_before(2 * SEGMENT_BYTES, None)

    former = filled(tmp_path / "former", 12, drop)
    with pytest.raises(NotASlave, match="and this slave ends before, at"):
        compare_with_former(former, filled(tmp_path / "slave", 1))


def test_a_directory_that_is_held_is_left_alone(tmp_path: Path) -> None:
    SlaveFile(filled(tmp_path / "slave", 1)).write(SlaveFacts(cluster="test", broker_id=7, slave_id=1))
    assert require_stopped_slave(tmp_path / "slave").broker_id == 7
    storage = DirectoryStorage.open_for_writing(tmp_path / "slave")
    try:
        with pytest.raises(DirectoryInUse, match="stop that slave first"):
            require_stopped_slave(tmp_path / "slave")
        with pytest.raises(DirectoryInUse, match="stop that broker first"):
            compare_with_former(tmp_path / "slave", tmp_path / "slave")
    finally:
        storage.close()
