"""A copy that begins with a checkpoint, because its master's journal does not begin at its birth any more."""

import contextlib
import itertools
from pathlib import Path
from random import Random

import msgspec
import pytest

from journal.errors import ForeignStream, StorageFailed, SyncSuperseded, UnfinishedSync
from journal.records.epoch_history import divergence_lsn
from journal.repair.check import check
from journal.repair.offline import read_state
from journal.replica.follower import JournalFollower
from journal.replica.replica_appender import ReplicaAppender
from journal.state.checkpoint import Checkpoint, encode_checkpoint
from journal.state.initial_sync import begin_initial_sync, read_initial_sync
from journal.state.inspection import read_checkpoints
from journal.state.transaction_store import JournalTransactionStore
from journal.state.truncation import truncate
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import segment_base
from journal.wal.storage import DirectoryStorage
from tests.fixtures.copies import copy_of, end_of, feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.histories import content, entries_of, write_history
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, Index, open_store, xa
from tests.fixtures.raw_journal import opened
from tests.fixtures.retention import choose, drop


def retained() -> FaultyStorage:
    """A journal whose first segments are gone; written by three processes, with branches that began in what is gone."""
    storage = FaultyStorage(Random(1))
    index = Index()
    write_history(storage).close()
    for number in range(2):
        store = open_store(storage, sink=(index := Index()))
        for branch in store.recover()[:2]:
            index.publish_all(store.commit(branch, one_phase=False).updates)
        if number:
            for branch in list(store.transactions.values()):
                store.rollback(branch)
        branch = store.begin(xa(f"later-{number}"))
        store.transactional_put(branch, ORDERS, [b"kept" * 50], 200, 2)
        for count in range(12):
            index.publish_all(store.put(ORDERS, [b"%d" % number * 700], 700, 7).updates)
            if count == 9:
                index.publish_all(store.commit(branch, one_phase=True).updates)
        store.journal.wait_flushed(store.journal.end)
        if number:
            chosen = choose(store, index, 3)
            assert chosen is not None
            drop(store, chosen)
            index.publish_all(store.put(ORDERS, [b"after"], 5, 1).updates)
        store.close()
    return storage


@pytest.fixture(scope="module")
def master() -> FaultyStorage:
    storage = retained()
    assert first_base(storage) > 0
    return storage


def first_base(storage: FaultyStorage) -> int:
    return min(base for name in storage.files if (base := segment_base(name)) is not None)


def newest(storage: FaultyStorage) -> bytes:
    number = max(int(name.split(".")[1]) for name in storage.blobs if name.startswith("checkpoint."))
    return storage.blobs[f"checkpoint.{number}"]


def begun(master: FaultyStorage, storage: FaultyStorage, index: Index | None = None) -> JournalFollower:
    begin_initial_sync(storage, first_base(master), newest(master))
    return open_follower(storage, sink=index)


def judge(storage: FaultyStorage, master: FaultyStorage, index: Index) -> None:
    """The copy is whole: its files, its state and its index are those of the master."""
    assert image(storage) == image(master)
    theirs = open_follower(copy_of(master), sink=(expected := Index()))
    mine = open_follower(copy_of(storage), sink=(again := Index()))
    assert said(mine.state) == said(theirs.state)
    assert mine.epoch_history == theirs.epoch_history
    assert index.entries == again.entries
    for name, entries in expected.entries.items():
        start = mine.state.offset_range(name).start
        assert len(entries) > 3 or name != ORDERS
        assert [entry for entry in index.entries[name] if entry.base >= start] == entries
    mine.close()
    theirs.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound


@pytest.mark.parametrize("bytes_max", [60, 1000, 100_000])
def test_it_becomes_the_journal(master: FaultyStorage, bytes_max: int) -> None:
    storage, index = FaultyStorage(Random(0)), Index()
    follower = begun(master, storage, index)
    assert (follower.end, follower.received_lsn, follower.is_complete) == (first_base(master),) * 2 + (False,)
    feed(follower, stream(master, follower.end, Random(1), bytes_max), index)
    assert follower.is_complete
    follower.close()
    assert read_initial_sync(storage) is None
    judge(storage, master, index)


def test_it_may_be_opened_again_at_any_record(master: FaultyStorage) -> None:
    random = Random(2)
    storage = FaultyStorage(Random(0))
    follower = begun(master, storage)
    count = 0
    index = Index()
    while pieces := list(stream(master, follower.end, random, 400)):
        feed(follower, iter(pieces[:5]))
        state, epochs, is_complete = said(follower.state), follower.epoch_history, follower.is_complete
        follower.close()
        follower = open_follower(storage, sink=(index := Index()))
        assert (said(follower.state), follower.epoch_history, follower.is_complete) == (state, epochs, is_complete)
        count += not is_complete
    follower.close()
    assert count > 3
    judge(storage, master, index)


def test_both_sides_know_where_they_part(master: FaultyStorage) -> None:
    """Both agree for an incomplete copy too, whose checkpoint names epochs of which it has no bytes."""
    theirs = open_follower(copy_of(master))
    follower = begun(master, FaultyStorage(Random(0)))
    assert divergence_lsn(follower.epoch_history, follower.end, theirs.epoch_history, theirs.end) in (
        None,
        follower.end,
    )
    for lsn, data in stream(master, follower.end, Random(1), 300):
        feed(follower, iter([(lsn, data)]))
        if follower.epoch_history:
            assert (
                divergence_lsn(follower.epoch_history, follower.end, theirs.epoch_history, theirs.end) == follower.end
            )
    assert follower.epoch_history == theirs.epoch_history
    follower.close()
    theirs.close()


def test_every_call_fails_once_and_then_the_power_goes(master: FaultyStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaAppender, "recovery_point_every_s", 0.0005)
    for nth in itertools.count():
        storage = FaultyStorage(Random(nth), fail_at=nth)
        told = 0
        with contextlib.suppress(StorageFailed):
            follower = begun(master, storage)
            try:
                for count, (lsn, data) in enumerate(stream(master, follower.end, Random(1), 1500)):
                    feed(follower, iter([(lsn, data)]))
                    if count % 3 == 0:
                        follower.journal.wait_flushed(follower.end)
                    told = follower.journal.flushed
            finally:
                with contextlib.suppress(StorageFailed):
                    follower.close()
                told = max(told, follower.journal.flushed)
        for power in PowerCut:
            after, index = storage.after_power_cut(power, Random(nth)), Index()
            if read_initial_sync(after) is None and not image(after):
                assert not told
                begin_initial_sync(after, first_base(master), newest(master))
            again = open_follower(after, sink=index)
            assert again.end >= told, f"fail_at={nth} power={power.name}"
            feed(again, stream(master, again.end, Random(1), 5000), index)
            again.close()
            judge(after, master, index)
        if not storage.fault_fired:
            break
    assert nth > 30


def test_an_incomplete_copy_is_not_taken_for_a_journal(master: FaultyStorage) -> None:
    storage = FaultyStorage(Random(0))
    follower = begun(master, storage)
    feed(follower, itertools.islice(stream(master, follower.end, Random(1), 300), 3))
    follower.close()
    with pytest.raises(UnfinishedSync, match="start it as a slave"):
        open_store(storage)
    with pytest.raises(UnfinishedSync, match="empty directory"):
        begin_initial_sync(storage, first_base(master), newest(master))


def test_nor_does_who_only_reads(master: FaultyStorage, tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    begin_initial_sync(storage, first_base(master), newest(master))
    storage.close()
    with pytest.raises(UnfinishedSync, match="start it as a slave"), read_state(tmp_path):
        pass


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(b"", "checksum", id="nothing"),
        pytest.param(b"00000000\n{}\n", "checksum", id="another checksum"),
        pytest.param(b"a" * 100_000, "checksum", id="noise"),
    ],
)
def test_what_is_no_checkpoint_begins_nothing(raw: bytes, reason: str) -> None:
    storage = FaultyStorage(Random(0))
    with pytest.raises(ForeignStream, match=reason):
        begin_initial_sync(storage, 0, raw)
    assert not storage.blobs


@pytest.mark.parametrize("first", [1 << 30, 100])
def test_a_checkpoint_of_elsewhere_begins_nothing(master: FaultyStorage, first: int) -> None:
    with pytest.raises(ForeignStream, match="for a journal that begins at"):
        begin_initial_sync(FaultyStorage(Random(0)), first, newest(master))


def altered(master: FaultyStorage, **changes: object) -> bytes:
    number = max(int(name.split(".")[1]) for name in master.blobs if name.startswith("checkpoint."))
    checkpoint: Checkpoint = content(master, number)
    return bytes(encode_checkpoint(msgspec.structs.replace(checkpoint, **changes)))


def test_a_checkpoint_that_the_records_contradict_stops_the_copy(master: FaultyStorage) -> None:
    """The checkpoint holds fewer puts than the records do; its LSN is inside a record."""
    number = max(int(name.split(".")[1]) for name in master.blobs if name.startswith("checkpoint."))
    told = content(master, number)
    shorter = [
        msgspec.structs.replace(entry, end=entry.end - 5) if entry.topic == "orders" else entry
        for entry in told.partitions
    ]
    for changes, reason in (
        ({"partitions": shorter}, "of orders-0 up to"),
        ({"lsn": told.lsn - 8}, "across the checkpoint"),
    ):
        storage = FaultyStorage(Random(0))
        begin_initial_sync(storage, first_base(master), altered(master, **changes))
        follower = open_follower(storage)
        with pytest.raises(ForeignStream, match=reason) as refused:
            feed(follower, stream(master, follower.end, Random(1), 300))
        assert refused.value.is_final
        assert not isinstance(refused.value, SyncSuperseded)
        follower.close()
        assert end_of(storage) <= told.lsn


@pytest.mark.parametrize("bytes_max", [300, 100_000])
def test_a_later_masters_record_below_the_checkpoint_requires_a_full_resync(bytes_max: int) -> None:
    """The master is gone, and the promoted slave never had all that the copy's checkpoint holds."""
    former = FaultyStorage(Random(1))
    write_history(former).close()
    told = content(former, max(int(name.split(".")[1]) for name in former.blobs if name.startswith("checkpoint.")))
    promoted, first = copy_of(former), sorted(image(former))[1]
    parts_at = max(entry.header.end for entry, _ in entries_of(former) if entry.header.end < told.lsn - 500)
    assert parts_at > first
    truncate(promoted, IDENTITY, parts_at, 1)  # as if it had received so much
    JournalTransactionStore.open(
        promoted,
        IDENTITY,
        JournalConfig(segment_bytes=SEGMENT_BYTES),
        version="test",
        epoch=lambda recovered: recovered.state.epoch + 1,
    ).close()
    storage = FaultyStorage(Random(0))
    begin_initial_sync(storage, first, newest(former))
    follower = open_follower(storage)
    for lsn, data in stream(former, first, Random(2), 200):
        if lsn + len(data) > parts_at - 400:
            break
        follower.receive(lsn, data)
    follower.close()
    follower = open_follower(storage)
    assert follower.is_unfinished
    for _ in range(2):  # it takes nothing more
        with pytest.raises(SyncSuperseded, match=f"LSN {parts_at} of the stream .*written later than the checkpoint"):
            feed(follower, stream(promoted, follower.end, Random(1), bytes_max))
    follower.close()
    assert end_of(storage) == parts_at
    assert read_initial_sync(storage) is not None


def test_a_damaged_beginning_says_what_to_do(master: FaultyStorage) -> None:
    storage = FaultyStorage(Random(0))
    begin_initial_sync(storage, first_base(master), newest(master))
    (name,) = storage.blobs
    storage.blobs[name] = storage.blobs[name][:-3]
    with pytest.raises(UnfinishedSync, match="empty the directory"):
        open_follower(storage)


def test_a_beginning_that_received_nothing_gives_way_to_another(master: FaultyStorage) -> None:
    storage = FaultyStorage(Random(0))
    begin_initial_sync(storage, first_base(master) + 4096, altered(master, lsn=end_of(master)))
    follower = begun(master, storage)
    feed(follower, stream(master, follower.end, Random(1)))
    assert follower.is_complete
    follower.close()


def test_a_checkpoint_without_an_epoch_history_begins_one(master: FaultyStorage) -> None:
    """Master and copy take it to be of the one life it names, and agree about what the copy has of that."""
    storage, upgraded = FaultyStorage(Random(0)), copy_of(master)
    for name in list(upgraded.blobs):
        del upgraded.blobs[name]
    upgraded.blobs["checkpoint.9"] = altered(master, epoch_history=[])
    theirs = open_follower(upgraded)
    begin_initial_sync(storage, first_base(master), upgraded.blobs["checkpoint.9"])
    follower = open_follower(storage)
    assert follower.epoch_history
    for lsn, data in stream(master, follower.end, Random(1), 700):
        assert divergence_lsn(follower.epoch_history, follower.end, theirs.epoch_history, theirs.end) == follower.end
        feed(follower, iter([(lsn, data)]))
    assert follower.epoch_history == theirs.epoch_history
    follower.close()
    theirs.close()
    assert check(opened(storage), read_checkpoints(storage)).is_sound
