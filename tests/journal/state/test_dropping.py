"""Old segments go: every storage call of it fails in turn, then the power, and what should stay is there."""

import contextlib
import itertools
from random import Random

import pytest

from journal.archive.keeper import SegmentKeeper
from journal.errors import StorageFailed
from journal.records.header import Offset
from journal.state.checkpoint import Checkpoint, remove_checkpoints_below
from journal.state.inspection import read_checkpoints
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.storage import Storage
from journal.wal.storage_file import StorageFile
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.journals import ORDERS, Index, open_store, xa

MESSAGE = 500
MESSAGES = 60  # some nine segments


class MemoryPlace:
    """A place that stores what the storage copies out, and a manifest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._files: dict[str, bytes] = {}

    def put(self, storage: Storage, name: str, file: StorageFile, sha256: str) -> None:
        assert len(sha256) == 64
        storage.copy_to(name, self.name)

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def names(self) -> set[str]:
        return set(self._files)

    def replace(self, name: str, data: bytes) -> None:
        self._files[name] = data


def fill(store: JournalTransactionStore, index: Index) -> None:
    """Messages, and among the last ones a branch that stays in doubt."""
    for number in range(MESSAGES):
        if number == MESSAGES - 10:
            branch = store.begin(xa("order-1"))
            store.transactional_put(branch, ORDERS, [b"x" * MESSAGE], MESSAGE, 1)
            store.prepare(branch)
        result = store.put(ORDERS, [message(number)], MESSAGE, 1)
        index.publish_all(result.updates)
    store.journal.wait_flushed(store.journal.end)


def message(number: int) -> bytes:
    return (b"<%d>" % number).ljust(MESSAGE, b".")


def drop(store: JournalTransactionStore, index: Index, archive: str | None) -> None:
    """Drop segments as a broker does: only once the new starts are in two checkpoints."""
    bases = [base for base, _ in store.journal.segments]
    cut = bases[len(bases) // 2]
    start = next(base for _, base, extent in index.entries[ORDERS] if extent.lsn >= cut)
    first = store.write_checkpoint(store.trim(store.snapshot(), {ORDERS: start}), {})
    store.write_checkpoint(store.snapshot(), {})
    remove_checkpoints_below(store.journal.storage, first)
    store.journal.segments.drop_before(cut, None if archive is None else SegmentKeeper(MemoryPlace(archive)))


def judge(storage: FaultyStorage) -> int:
    """Start on what is left; returns where the partition begins."""
    index = Index({}, lost={ORDERS})  # rebuilt, so that every record that should be there is read
    store = open_store(storage, sink=index)
    try:
        offset_range = store.state.offset_range(ORDERS)
        found = {base: extent for _, base, extent in index.entries.get(ORDERS, []) if base >= offset_range.start}
        assert list(found) == [Offset(at) for at in range(offset_range.start, MESSAGES * MESSAGE, MESSAGE)]
        for base, extent in found.items():
            assert store.journal.segments.read(extent.lsn, extent.bytes) == message(base // MESSAGE)
        assert [branch.key for branch in store.recover()] == [xa("order-1")]
        checkpoints = [found for found in read_checkpoints(storage).values() if isinstance(found, Checkpoint)]
        assert all(checkpoint.lsn >= store.journal.start_lsn for checkpoint in checkpoints), "one cannot be replayed"
        return offset_range.start
    finally:
        store.close()


@pytest.mark.parametrize("archive", [None, "elsewhere"])
def test_every_call_of_it_fails_once_and_then_the_power_goes(archive: str | None) -> None:
    starts = set[int]()
    for nth in itertools.count():
        storage, index = FaultyStorage(Random(1)), Index()
        store = open_store(storage, sink=index)
        fill(store, index)
        storage.fail_at = len(storage.calls) + nth
        with contextlib.suppress(StorageFailed):
            drop(store, index, archive)
        with contextlib.suppress(StorageFailed):
            store.close()
        for cut in PowerCut:
            print(f"archive={archive} fail_at=+{nth} cut={cut.name}")
            starts.add(judge(storage.after_power_cut(cut, Random(nth))))
        if not storage.fault_fired:
            break
    assert nth > 8
    assert len(starts) == 2, "it happened, or it did not"


def test_the_archive_has_what_went() -> None:
    storage, index = FaultyStorage(Random(1)), Index()
    store = open_store(storage, sink=index)
    fill(store, index)
    drop(store, index, "elsewhere")
    start = store.state.offset_range(ORDERS).start
    store.close()
    stored = b"".join(storage.archived.values())
    assert start > 0
    assert all(stored.count(message(number)) == 1 for number in range(start // MESSAGE))
