"""Takes a checkpoint at rest: at a clean stop, or on a stopped broker's directory."""

import functools
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.repair.offline import opened_below, opened_store
from journal.state.checkpoint import Checkpoint, IndexFileEntry
from journal.state.checkpointed import CheckpointedState, write_next
from journal.state.snapshot import Snapshot
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.marks import read_watermark
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from meta_broker.store.indexes import Indexes, Rebuilding
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)


def take_checkpoint(source: CheckpointedState, indexes: Indexes) -> CheckpointTaken:
    """Write a checkpoint of the state and all indexes; blocks. Durable on return.

    All of the journal must be durable, and published to *indexes*. Raises StorageFailed.
    """
    checkpoint = source.snapshot()
    number = _write(checkpoint, indexes, source.write_checkpoint)
    record_checkpoint(source, number, checkpoint)
    return CheckpointTaken(number, checkpoint.lsn, source.journal.end - checkpoint.lsn)


def _write(
    checkpoint: Checkpoint,
    indexes: Indexes,
    write: Callable[[Checkpoint, Mapping[PartitionName, IndexFileEntry]], int],
) -> int:
    collected = indexes.collect()
    files = indexes.write(collected)
    number = write(checkpoint, collected.marks)
    indexes.install(collected, files)
    for _ in indexes.filed(collected, files):
        pass
    return number


def record_checkpoint(source: CheckpointedState, number: int, checkpoint: Checkpoint) -> None:
    """Record the durable checkpoint *number* in the journal, unless a master writes that, and in the log."""
    source.durable_checkpoint_lsn, source.checkpointed_at = Lsn(checkpoint.lsn), time.monotonic()
    source.on_checkpoint(number, checkpoint)
    log.info("checkpoint written number=%d lsn=%d branches=%d", number, checkpoint.lsn, len(checkpoint.branches))


def checkpoint_stopped(directory: Path, version: str) -> CheckpointTaken:
    """Recover *directory*, take a checkpoint, and leave it as a clean stop does.

    The directory of a master in mode sync is covered up to its saved high watermark; the rest is left for the next
    start, which does not show it either. Raises NoJournal, DirectoryInUse while a broker runs on it, CorruptJournal,
    InvalidRecord, StorageFailed.
    """
    indexes = Indexes(directory / "index")
    if (watermark := read_watermark(DirectoryStorage.open_for_reading(directory))) is not None:
        return _checkpoint_below(directory, watermark.lsn, indexes)
    with opened_store(directory, version, indexes) as transactions:
        return checkpoint_opened(transactions, indexes)


def checkpoint_opened(transactions: JournalTransactionStore, indexes: Indexes) -> CheckpointTaken:
    """Take a checkpoint of a store that nothing serves from, after rebuilding what its indexes lack. Blocks."""
    indexes.make_directory()
    _rebuild(indexes, transactions.journal.segments, transactions.journal.flushed)
    return take_checkpoint(transactions, indexes)


def _checkpoint_below(directory: Path, lsn: Lsn, indexes: Indexes) -> CheckpointTaken:
    with opened_below(directory, lsn, indexes) as (segments, recovered):
        indexes.make_directory()
        _rebuild(indexes, segments, recovered.state.lsn)
        checkpoint = Snapshot(recovered.state).checkpoint()
        number = _write(checkpoint, indexes, functools.partial(write_next, segments.storage))
        log.info("checkpoint written number=%d lsn=%d end=%d", number, checkpoint.lsn, recovered.end)
        return CheckpointTaken(number, checkpoint.lsn, recovered.end - checkpoint.lsn)


def _rebuild(indexes: Indexes, segments: Segments, until: Lsn) -> None:
    """Rebuild damaged indexes from the records below *until*, which publish everything the indexes hold."""
    if indexes.damaged:
        rebuilding = Rebuilding(indexes, segments, until)
        rebuilding.read()
        rebuilding.install()
