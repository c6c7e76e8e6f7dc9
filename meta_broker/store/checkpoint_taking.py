"""Taking a checkpoint at rest: while nothing else happens, at a clean stop or on a stopped broker's directory."""

import logging
from pathlib import Path

from journal.checkpoint import Checkpoint
from journal.checkpointed import Checkpointed
from journal.offline import opened_store
from meta_broker.store.indexes import Indexes
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)


def take_checkpoint(source: Checkpointed, indexes: Indexes) -> CheckpointTaken:
    """Write one of everything; blocks. All of the journal must be durable, and published to *indexes*.

    Raises StorageFailed.
    """
    checkpoint, collected = source.snapshot(), indexes.collect()
    files = indexes.write(collected)
    number = source.write_checkpoint(checkpoint, collected.marks)
    indexes.settle(collected, files)
    for name, file in files.items():
        indexes.by_name[name].filed(collected.spills[name], file)
    note(source, number, checkpoint)
    return CheckpointTaken(number, checkpoint.lsn, source.journal.end - checkpoint.lsn)


def note(source: Checkpointed, number: int, checkpoint: Checkpoint) -> None:
    """Checkpoint *number* is durable: the journal says so, unless a master writes it, and the log."""
    source.note_checkpoint(number, checkpoint)
    log.info("checkpoint written number=%d lsn=%d branches=%d", number, checkpoint.lsn, len(checkpoint.branches))


def checkpoint_stopped(directory: Path, version: str) -> CheckpointTaken:
    """Do what a broker's start does, take a checkpoint, and leave *directory* as a clean stop leaves it.

    Raises NoJournal, DirectoryInUse while a broker runs on it, RottenJournal, InvalidRecord, StorageFailed.
    """
    indexes = Indexes(directory / "index")
    with opened_store(directory, version, indexes) as transactions:
        indexes.make_directory()
        return take_checkpoint(transactions, indexes)
