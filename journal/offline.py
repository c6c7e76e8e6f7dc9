"""A stopped broker's directory: its state read without changing a byte, and opened to decide about a branch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from journal.bootstrap import refuse_unfinished
from journal.checkpoint import read_newest
from journal.errors import DirectoryIsCopy, NoJournal, RottenJournal
from journal.fold import JournalState
from journal.open_journal import JournalConfig
from journal.recovery import PublicationSink, Recovered, check_reaches, recover_below, replay
from journal.scan import Scanner, Verdict
from journal.segments import Segments
from journal.storage import DirectoryStorage
from journal.transaction_store import JournalTransactionStore

COPY_FILE: Final = "slave.json"  # beside a journal that follows another one's: what is added here parts them


@contextmanager
def opened_segments(storage: DirectoryStorage, *, writable: bool = False) -> Iterator[Segments]:
    """The segments in *storage*, whoever's they are. Raises NoJournal, RottenJournal, StorageFailed."""
    segments = Segments.open(storage, None, JournalConfig().segment_bytes, writable=writable)
    try:
        if not len(segments):
            raise NoJournal(storage.path)
        if writable:
            segments.drop_cache(segments.start)  # a repair whose fsync failed must not look done
        yield segments
    finally:
        segments.close()


@contextmanager
def read_state(directory: Path) -> Iterator[tuple[JournalState, Segments]]:
    """What the journal in *directory* adds up to, and its segments, to read bodies from. Takes no lock: of a broker
    that runs, what was on disk a moment ago. Raises NoJournal, RottenJournal, InvalidRecord, StorageFailed."""
    storage = DirectoryStorage.open_for_reading(directory)
    refuse_unfinished(storage)
    _, content, _ = read_newest(storage)
    with opened_segments(storage) as segments:
        checkpoint, state = content or (None, JournalState(segments.start))
        check_reaches(segments, checkpoint)
        scanner = Scanner(segments, state.lsn)
        replay(scanner, state, lambda publication: None)
        end = scanner.finish()
        if end.verdict is Verdict.ROTTEN:
            raise RottenJournal(end.end, end.resumes, end.reason, segments.storage.path)
        yield state, segments


@contextmanager
def opened_store(
    directory: Path,
    version: str,
    sink: PublicationSink | None = None,
    epoch: Callable[[int], int] | None = None,
) -> Iterator[JournalTransactionStore]:
    """The store of a broker that does not run, locked; it does what a start does: cuts a torn tail, rolls back what was
    active. What is decided is durable when the block ends; without a *sink* the indexes follow at the next start.
    *epoch*: as `JournalTransactionStore.open` has it, called with the directory locked; without one a slave's copy is
    left alone.

    Raises NoJournal, DirectoryIsCopy, DirectoryInUse while a broker runs on it, RottenJournal, InvalidRecord,
    StorageFailed.
    """
    if epoch is None:
        _refuse_copy(directory)
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
def opened_below(directory: Path, lsn: int, sink: PublicationSink) -> Iterator[tuple[Segments, Recovered]]:
    """Fold the records below *lsn* in the directory of a broker that does not run, locked.

    Nothing is appended; a torn tail is cut. Raises as `opened_store`.
    """
    _refuse_copy(directory)
    storage = DirectoryStorage.open_for_writing(directory)
    try:
        with opened_segments(storage, writable=True) as segments:
            yield segments, recover_below(segments, sink, lsn)
    finally:
        storage.close()


def _refuse_copy(directory: Path) -> None:
    if (directory / COPY_FILE).exists():
        raise DirectoryIsCopy(
            f"{directory} is a slave's copy of a journal: do this on its master, or make it the master with "
            f"`metaq promote {directory}`"
        )


def _same_epoch(recovered: int) -> int:
    return max(recovered, 1)
