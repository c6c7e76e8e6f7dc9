"""Data a slave may discard by itself: an incomplete copy, always; a whole copy, only when told to."""

from pathlib import Path

import pytest

from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.replica.follower import JournalFollower
from journal.state.checkpoint import encode_checkpoint
from journal.state.initial_sync import begin_initial_sync, read_initial_sync
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.journal import Journal
from journal.wal.open_journal import JournalConfig
from journal.wal.scan import Scanner
from journal.wal.segments import JournalIdentity, segment_base
from journal.wal.storage import DirectoryStorage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.sections import SlaveSection
from meta_broker.errors import ConfigError
from meta_broker.replication.replica.effects import Resync
from meta_broker.replication.replica.resync import resync
from tests.fixtures.replicas import copied_bytes

IDENTITY = JournalIdentity("metaq", 0)
JOURNAL = JournalConfig(segment_bytes=8192)
ORDERS = PartitionName("orders", 0)


class Master:
    """A journal of five segments, of which the first is gone, and a checkpoint at its end."""

    def __init__(self, directory: Path) -> None:
        storage = DirectoryStorage.open_for_writing(directory)
        store = JournalTransactionStore.open(storage, IDENTITY, JOURNAL, version="test")
        try:
            while len(store.journal.segments) < 5:
                store.put(ORDERS, [bytes(1000)], 1000, 1)
                store.journal.wait_flushed(store.journal.end, 60)
            self.checkpoint = bytes(encode_checkpoint(store.snapshot()))
            self.end = store.journal.end
            self.start = Lsn(JOURNAL.segment_bytes)
            self.data = stream_of(store.journal, self.start)
        finally:
            store.close()
            storage.close()


def stream_of(journal: Journal, start: int) -> bytes:
    views = (file.reader().read(0, file.size) for base, file in journal.segments if base >= start)
    return b"".join(views)[: journal.end - start]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    return Master(tmp_path_factory.mktemp("master"))


def config_of(data: Path, *, full_resync: bool = False) -> BrokerConfig:
    slave = SlaveSection(id=1, full_resync=full_resync)
    return BrokerConfig(data=data, broker_id=0, port=0, zookeeper="127.0.0.1:1", role="slave", slave=slave)


def copy_up_to(data: Path, master: Master, size: int) -> bool:
    """Begin a copy with the master's checkpoint, and give it *size* bytes; returns whether it is whole."""
    storage = DirectoryStorage.open_for_writing(data)
    try:
        begin_initial_sync(storage, master.start, master.checkpoint)
        follower = JournalFollower.open(storage, IDENTITY, JOURNAL)
        follower.receive(master.start, master.data[:size])
        follower.close()
        return follower.is_complete
    finally:
        storage.close()


def begun(data: Path) -> int | None:
    """The LSN of the checkpoint that an unfinished copy began with."""
    found = read_initial_sync(DirectoryStorage.open_for_reading(data))
    return None if found is None else found.checkpoint.lsn


def test_an_incomplete_copy_starts_over_without_being_told(tmp_path: Path, master: Master) -> None:
    assert not copy_up_to(tmp_path, master, 10_000)
    assert begun(tmp_path) is not None
    resync(config_of(tmp_path), Resync(Lsn(0), "its master was replaced", b""))
    assert begun(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir() if segment_base(path.name) is not None] == []
    resync(config_of(tmp_path), Resync(master.start, "it has no journal yet", master.checkpoint))
    assert begun(tmp_path) == master.end


@pytest.mark.parametrize("size", [0, 10_000])
def test_and_with_another_checkpoint_at_once(tmp_path: Path, master: Master, size: int) -> None:
    """The copy starts over when retention at the master has passed it, before its first byte or later."""
    assert not copy_up_to(tmp_path, master, size)
    resync(config_of(tmp_path), Resync(Lsn(master.start + 8192), "its master begins later", master.checkpoint))
    assert copied_bytes(tmp_path) == {}
    found = read_initial_sync(DirectoryStorage.open_for_reading(tmp_path))
    assert found is not None
    assert found.first == master.start + 8192


def test_a_whole_copy_is_given_up_only_when_told_to(tmp_path: Path, master: Master) -> None:
    assert copy_up_to(tmp_path, master, len(master.data))
    before = copied_bytes(tmp_path)
    assert len(before) == 4
    what = Resync(Lsn(0), "its master was replaced", b"")
    with pytest.raises(
        ConfigError, match=r"of no use to a slave of this master: its master was replaced; .*full_resync"
    ):
        resync(config_of(tmp_path), what)
    assert copied_bytes(tmp_path) == before
    resync(config_of(tmp_path, full_resync=True), what)
    assert copied_bytes(tmp_path) == {}


def test_a_truncated_incomplete_copy_keeps_its_tail_and_starts_over(tmp_path: Path, master: Master) -> None:
    assert not copy_up_to(tmp_path, master, 20_000)
    divergence_lsn = first_record_from(tmp_path, master.start + 10_000)
    resync(config_of(tmp_path), Resync(divergence_lsn, "the master never had it"))
    assert begun(tmp_path) is None
    assert copied_bytes(tmp_path) == {}
    (saved,) = tmp_path.glob("cut.*")
    assert saved.stat().st_size > 5_000


def first_record_from(data: Path, lsn: int) -> Lsn:
    storage = DirectoryStorage.open_for_writing(data)
    try:
        follower = JournalFollower.open(storage, IDENTITY, JOURNAL)
        try:
            segments = follower.journal.segments
            return next(entry.header.lsn for entry in Scanner(segments, segments.start) if entry.header.lsn >= lsn)
        finally:
            follower.close()
    finally:
        storage.close()
