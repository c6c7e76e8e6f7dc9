"""Taking a checkpoint at rest: while nothing else happens, at a clean stop or on a stopped broker's directory."""

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from journal.checkpoint import Checkpoint, IndexMark
from journal.checkpointed import Checkpointed, write_next
from journal.frame import Lsn
from journal.offline import opened_below, opened_store
from journal.records import PartitionName
from journal.segments import Segments
from journal.snapshot import Snapshot
from journal.storage import DirectoryStorage
from journal.watermark import read_watermark
from meta_broker.store.indexes import Indexes, Rebuilding
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)


def take_checkpoint(source: Checkpointed, indexes: Indexes) -> CheckpointTaken:
    """Write one of everything; blocks. All of the journal must be durable, and published to *indexes*.

    Raises StorageFailed.
    """
    checkpoint = source.snapshot()
    number = _write(checkpoint, indexes, source.write_checkpoint)
    note(source, number, checkpoint)
    return CheckpointTaken(number, checkpoint.lsn, source.journal.end - checkpoint.lsn)


def _write(
    checkpoint: Checkpoint,
    indexes: Indexes,
    write: Callable[[Checkpoint, Mapping[PartitionName, IndexMark]], int],
) -> int:
    collected = indexes.collect()
    files = indexes.write(collected)
    number = write(checkpoint, collected.marks)
    indexes.settle(collected, files)
    for _ in indexes.filed(collected, files):
        pass
    return number


def note(source: Checkpointed, number: int, checkpoint: Checkpoint) -> None:
    """Checkpoint *number* is durable: the journal says so, unless a master writes it, and the log."""
    source.note_checkpoint(number, checkpoint)
    log.info("checkpoint written number=%d lsn=%d branches=%d", number, checkpoint.lsn, len(checkpoint.branches))


def checkpoint_stopped(directory: Path, version: str) -> CheckpointTaken:
    """Do what a broker's start does, take a checkpoint, and leave *directory* as a clean stop leaves it.

    Where a master in mode sync was, it holds what slaves have acknowledged, as far as that was written down: the rest
    is left for the next start, which does not show it either. Raises NoJournal, DirectoryInUse while a broker runs on
    it, RottenJournal, InvalidRecord, StorageFailed.
    """
    indexes = Indexes(directory / "index")
    if (mark := read_watermark(DirectoryStorage.open_for_reading(directory))) is not None:
        return _checkpoint_below(directory, mark.lsn, indexes)
    with opened_store(directory, version, indexes) as transactions:
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
    """Rebuild what is damaged from the records below *until*, which publish all that the indexes hold."""
    if indexes.damaged:
        rebuilding = Rebuilding(indexes, segments, until)
        rebuilding.read()
        rebuilding.finish()
