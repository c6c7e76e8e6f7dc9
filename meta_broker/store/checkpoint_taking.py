"""Taking a checkpoint at rest: while nothing else happens, at a clean stop or on a stopped broker's directory."""

import logging
from pathlib import Path

from journal.checkpoint import Checkpoint
from journal.offline import opened_store
from journal.records import PartitionName
from journal.transaction_store import JournalTransactionStore
from meta_broker.store.index_file import IndexFile
from meta_broker.store.indexes import Collected, Indexes
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)


def take_checkpoint(transactions: JournalTransactionStore, indexes: Indexes) -> CheckpointTaken:
    """Write one of everything; blocks. All of the journal must be durable, and published to *indexes*.

    Raises StorageFailed.
    """
    checkpoint, collected = transactions.snapshot(), indexes.collect()
    files = indexes.write(collected)
    number = transactions.write_checkpoint(checkpoint, collected.marks)
    adopt(transactions, indexes, checkpoint, number, collected, files)
    return CheckpointTaken(number, checkpoint.lsn, transactions.journal.end - checkpoint.lsn)


def adopt(
    transactions: JournalTransactionStore,
    indexes: Indexes,
    checkpoint: Checkpoint,
    number: int,
    collected: Collected,
    files: dict[PartitionName, IndexFile],
) -> None:
    """Checkpoint *number* is durable: the indexes go by its files, and the journal says so."""
    for name, file in files.items():
        indexes.by_name[name].filed(collected.spills[name], file)
    transactions.note_checkpoint(number, checkpoint)
    log.info("checkpoint written number=%d lsn=%d branches=%d", number, checkpoint.lsn, len(checkpoint.branches))


def checkpoint_stopped(directory: Path, version: str) -> CheckpointTaken:
    """Do what a broker's start does, take a checkpoint, and leave *directory* as a clean stop leaves it.

    Raises NoJournal, DirectoryInUse while a broker runs on it, RottenJournal, InvalidRecord, StorageFailed.
    """
    indexes = Indexes(directory / "index")
    with opened_store(directory, version, indexes) as transactions:
        indexes.make_directory()
        return take_checkpoint(transactions, indexes)
