"""Makes a broker's directory of a back-up: copy, claim the epoch, skip the offsets given out since, checkpoint.

The directory is marked as unfinished from the first file on, and nothing starts on it until the mark is gone. From the
claim on, no former master or slave acknowledges anything. A restoration interrupted anywhere is repeated from the
beginning; it claims a higher epoch, and loses nothing.
"""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from journal.backup.copy_back import begin_restore, copy_back
from journal.backup.manifest import Manifest
from journal.errors import DirectoryIsBackup
from journal.records.header import Offset
from journal.records.ledger import RESTORED_BY, Disagreement, LedgerEntry
from journal.records.record import DroppedRecords, PartitionEnd, PartitionName
from journal.state.copy_marks import UNFINISHED_RESTORE
from journal.state.fold import apply
from journal.state.recovery import Recovered
from journal.state.transaction_store import JournalTransactionStore
from journal.state.wall_clock import wall_clock_ms
from journal.wal.marks import SavedWatermark, write_watermark
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import Segments
from journal.wal.storage import TMP_SUFFIX, DirectoryStorage
from meta_broker.cluster.cluster_identity import save_cluster_file
from meta_broker.store.checkpoint_taking import checkpoint_opened
from meta_broker.store.indexes import Indexes
from meta_broker.store.topics import used_partitions
from meta_broker.version import PRODUCT_VERSION
from meta_client.operations.text import time_text
from zk.brokers.replication import read_replication, write_replication
from zk.session.session import ZooKeeperSession

ENDS_PER_RECORD: Final = 100  # a topic takes 255 bytes at most: far below the smallest segment

EndsOf = Callable[[Mapping[PartitionName, int]], Mapping[PartitionName, Offset]]


class Restored(NamedTuple):
    """Result of a restoration. *unrecorded*: branches in doubt for which the ledger had no room."""

    epoch: int
    in_doubt: int
    unrecorded: int


def require_empty(directory: Path, mark: str = UNFINISHED_RESTORE) -> None:
    """Check that *directory* is missing, empty, or holds what was interrupted, as *mark* tells. Raises
    DirectoryIsBackup."""
    for path in (directory, *directory.parents):
        if path.is_symlink() and not path.exists():
            raise DirectoryIsBackup(
                f"{path} is a symbolic link to {path.readlink()}, which is not there: make that directory (is it on "
                f"a disk that is not mounted?), or name another one"
            )
    if not directory.exists() or (directory / mark).exists():
        return
    allowed = {"lost+found", mark + TMP_SUFFIX}
    found = sorted(path.name for path in directory.iterdir() if path.name not in allowed)
    if found:
        raise DirectoryIsBackup(f"{directory} is not empty ({found[0]}): name a new directory")


def restore(
    backup: DirectoryStorage,
    manifest: Manifest,
    directory: Path,
    claim: Callable[[int], int],
    cluster_id: str | None,
    ends_of: EndsOf,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Restored:
    """Restore *backup* into *directory*; durable on return.

    *claim* returns the epoch to write with, given the back-up's, once the copy is whole and durable. *cluster_id*: of
    the directory; None: unknown. *ends_of* returns where partitions go on, given their ends. Raises DirectoryIsBackup,
    DirectoryInUse, InvalidContent, CorruptJournal, InvalidRecord, StorageFailed, and what *claim* and *ends_of* raise:
    then repeat it.
    """

    def epoch(recovered: Recovered) -> int:
        if recovered.end != manifest.end:
            raise DirectoryIsBackup(f"the copy ends at LSN {recovered.end}, and its manifest says {manifest.end}")
        return claim(recovered.state.epoch)

    require_empty(directory)
    with contextlib.closing(DirectoryStorage.open_for_writing(directory)) as storage:
        begin_restore(storage, manifest)
        copy_back(backup, manifest, storage, on_progress)
        indexes = Indexes(directory / "index")
        journal = JournalConfig(segment_bytes=_segment_bytes(storage))
        store = JournalTransactionStore.open(
            storage, manifest.identity, journal, version=PRODUCT_VERSION, sink=indexes, epoch=epoch
        )
        with contextlib.closing(store):
            unrecorded = _note_in_doubt(store, manifest)
            _skip_offsets(store, indexes, ends_of)
            store.journal.wait_flushed(store.journal.end)
            checkpoint_opened(store, indexes)
        # All of it counts as acknowledged: nobody has more.
        write_watermark(storage, SavedWatermark(store.journal.end, is_whole=True))
        if cluster_id is not None:
            save_cluster_file(storage, cluster_id)
        storage.remove(UNFINISHED_RESTORE)
    return Restored(store.journal.epoch, len(store.transactions), unrecorded)


def _segment_bytes(storage: DirectoryStorage) -> int:
    with contextlib.closing(Segments.open(storage, None, JournalConfig().segment_bytes, writable=False)) as segments:
        return segments.locate(segments.end - 1)[1].size


def _note_in_doubt(store: JournalTransactionStore, manifest: Manifest) -> int:
    """Record each branch in doubt as a hazard; returns the number of those that the ledger has no room for."""
    unrecorded = 0
    evidence = f"prepared in a back-up of {time_text(manifest.time_ms)}, LSN {manifest.end}; its end is not in it"
    for key in store.transactions:
        entry = LedgerEntry(key, Disagreement.HAZARD, RESTORED_BY, "it may have ended after the back-up", evidence)
        try:
            store.record_finding(entry)
        except ValueError:
            unrecorded += 1
    return unrecorded


def _skip_offsets(store: JournalTransactionStore, indexes: Indexes, ends_of: EndsOf) -> None:
    """Move every partition's end on, by the record with which a start after a repair does that."""
    state, journal = store.state, store.journal
    # A branch in doubt may have been committed since, in partitions that have no messages in the back-up.
    used = dict.fromkeys(used_partitions(state), 0)
    ends = ends_of(used | {name: offset_range.end for name, offset_range in state.offset_ranges.items()})
    moved = [PartitionEnd(name, end) for name, end in ends.items()]
    for at in range(0, len(moved), ENDS_PER_RECORD):
        record = DroppedRecords(tuple(moved[at : at + ENDS_PER_RECORD]))
        for update in apply(state, journal.append(record, max(wall_clock_ms(), state.time_ms)), record):
            indexes.publish(update)


def leave_in_sync(session: ZooKeeperSession, broker_id: int, epoch: int) -> None:
    """Empty the in-sync set: what its slaves have beyond the back-up is given up. If a crash prevents that, the master
    waits as long as for any slave that is away."""
    node, version = read_replication(session, broker_id)
    if node is not None and node.epoch == epoch and node.in_sync:
        write_replication(session, broker_id, msgspec.structs.replace(node, in_sync=()), version)
