"""Opens the directory of a stopped broker: to read its state without a change, or to decide about a branch."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from journal.errors import CorruptJournal, DirectoryIsReplica, NoJournal
from journal.state.checkpoint import read_newest
from journal.state.copy_marks import refuse_backup
from journal.state.initial_sync import refuse_unfinished_sync
from journal.state.inspection import RecordReader, open_beside_writer
from journal.state.journal_state import JournalState
from journal.state.recovery import IndexSink, Recovered, check_reaches, recover
from journal.state.replay import RecordFold, replay
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.open_journal import JournalConfig
from journal.wal.scan import EndVerdict, Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage

REPLICA_FILE: Final = "slave.json"  # marks a slave's journal: appending to it would make it diverge


@contextmanager
def opened_segments(storage: DirectoryStorage, *, writable: bool = False) -> Iterator[Segments]:
    """Open the segments in *storage*, of any identity. Raises NoJournal, CorruptJournal, StorageFailed."""
    size = JournalConfig().segment_bytes
    segments = Segments.open(storage, None, size, writable=True) if writable else open_beside_writer(storage, size)
    try:
        if not len(segments):
            raise NoJournal(storage.path)
        if writable:
            segments.drop_cache(segments.start)  # else a repair whose fsync failed would look done
        yield segments
    finally:
        segments.close()


@contextmanager
def read_state(directory: Path) -> Iterator[tuple[JournalState, Segments]]:
    """Fold the journal in *directory*; yields the state, and the segments to read bodies from. Takes no lock: of a
    running broker it reads a recent state. Raises NoJournal, CorruptJournal, InvalidRecord, StorageFailed."""
    storage = DirectoryStorage.open_for_reading(directory)
    refuse_backup(storage, is_read=True)
    refuse_unfinished_sync(storage)
    _, content, _ = read_newest(storage)
    with opened_segments(storage) as segments:
        checkpoint, state = content or (None, JournalState(segments.start))
        check_reaches(segments, checkpoint)
        reader = RecordReader(Scanner(segments, state.lsn))
        deque(replay(reader, RecordFold(state)), maxlen=0)
        if (end := reader.end).verdict is EndVerdict.CORRUPT:
            raise CorruptJournal(end.end, end.next_valid_lsn, end.reason, segments.storage.path)
        yield state, segments


@contextmanager
def opened_store(
    directory: Path,
    version: str,
    sink: IndexSink | None = None,
    epoch: Callable[[Recovered], int] | None = None,
) -> Iterator[JournalTransactionStore]:
    """Open the store of a stopped broker, locked; like a start, truncates a torn tail and rolls back active branches.
    Decisions are durable when the block ends; without a *sink* the indexes follow at the next start.

    *epoch*: as in `JournalTransactionStore.open`, called with the directory locked; without one a slave's copy is
    refused.

    Raises NoJournal, DirectoryIsReplica, DirectoryInUse while a broker runs on it, CorruptJournal, InvalidRecord,
    StorageFailed.
    """
    if epoch is None:
        _refuse_replica(directory)
    refuse_backup(DirectoryStorage.open_for_reading(directory))
    with opened_segments(DirectoryStorage.open_for_reading(directory)) as segments:
        identity, segment_bytes = segments.identity, segments.locate(segments.end - 1)[1].size
    storage = DirectoryStorage.open_for_writing(directory)
    try:
        config = JournalConfig(segment_bytes=segment_bytes)
        store = JournalTransactionStore.open(
            storage, identity, config, version=version, sink=sink, epoch=epoch or _same_epoch
        )
        try:
            yield store
        finally:
            store.close()
    finally:
        storage.close()


@contextmanager
def opened_below(directory: Path, lsn: int, sink: IndexSink) -> Iterator[tuple[Segments, Recovered]]:
    """Fold the records below *lsn* in the directory of a stopped broker, locked.

    Appends nothing; truncates a torn tail. Raises the same errors as `opened_store`.
    """
    _refuse_replica(directory)
    refuse_backup(DirectoryStorage.open_for_reading(directory))
    storage = DirectoryStorage.open_for_writing(directory)
    try:
        with opened_segments(storage, writable=True) as segments:
            yield segments, recover(segments, sink, fold_below=lsn)
    finally:
        storage.close()


def _refuse_replica(directory: Path) -> None:
    if (directory / REPLICA_FILE).exists():
        raise DirectoryIsReplica(
            f"{directory} is a slave's copy of a journal: do this on its master, or make it the master with "
            f"`metaq promote {directory}`"
        )


def _same_epoch(recovered: Recovered) -> int:
    return max(recovered.state.epoch, 1)
