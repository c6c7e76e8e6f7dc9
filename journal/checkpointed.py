"""The state of an open journal, and the checkpoints that are taken of it: the same for a broker and for a slave."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import msgspec

from journal.checkpoint import Checkpoint, IndexMark, checkpoint_numbers, write_checkpoint
from journal.fold import JournalState
from journal.frame import Lsn, Offset
from journal.open_journal import OpenJournal
from journal.records import PartitionName
from journal.recovery import Recovered
from journal.snapshot import Snapshot
from journal.storage import Storage


def write_next(storage: Storage, checkpoint: Checkpoint, index: Mapping[PartitionName, IndexMark]) -> int:
    """Write *checkpoint* with what *index* says of the index files, durable on return; returns its number.

    Everything below its LSN must be durable. Raises StorageFailed.
    """
    marked = [
        msgspec.structs.replace(mark, index=index.get(PartitionName(mark.topic, mark.partition)))
        for mark in checkpoint.partitions
    ]
    number = max(checkpoint_numbers(storage), default=0) + 1  # above damaged ones too, or it would be no news
    write_checkpoint(storage, number, msgspec.structs.replace(checkpoint, partitions=marked))
    return number


class Checkpointed(ABC):
    """A state, and the journal whose fold it is. Owner thread only, but for `write_checkpoint`."""

    def __init__(self, journal: OpenJournal, recovered: Recovered, clock_ms: Callable[[], int]) -> None:
        self.journal = journal
        self.state: JournalState = recovered.state
        self.recovered = recovered
        self._clock_ms = clock_ms
        self.recovered_ms = recovered.state.time_ms  # the latest time of any record, before this life's first
        self.wants_checkpoint = False  # the newest one says nothing of the indexes
        # Where the newest checkpoint was taken: what is left to replay counts from there, across restarts too.
        self.checkpoint_lsn = Lsn(recovered.end - recovered.replayed_bytes)

    def now_ms(self) -> int:
        """The store's clock, which records go by."""
        return self._clock_ms()

    def snapshot(self) -> Checkpoint:
        """The state as it is now, as a checkpoint without index marks. It holds every record appended so far."""
        return self.begin_snapshot().checkpoint()

    def begin_snapshot(self) -> Snapshot:
        """As snapshot, for who makes it piece by piece; one at a time."""
        self.checkpoint_lsn = self.state.lsn
        return Snapshot(self.state)

    def trim(self, checkpoint: Checkpoint, starts: Mapping[PartitionName, int]) -> Checkpoint:
        """Partitions begin at *starts* from here on. Returns *checkpoint* with that; only a checkpoint records it."""
        for name, start in starts.items():
            span = self.state.span(name)
            span.start = Offset(max(span.start, start))
        partitions = [
            msgspec.structs.replace(
                mark, start=max(mark.start, starts.get(PartitionName(mark.topic, mark.partition), 0))
            )
            for mark in checkpoint.partitions
        ]
        return msgspec.structs.replace(checkpoint, partitions=partitions)

    def write_checkpoint(self, checkpoint: Checkpoint, index: Mapping[PartitionName, IndexMark]) -> int:
        """Write *checkpoint* to its file once the journal is durable up to it; returns its number.

        Blocks on the disk: a worker thread's job, one at a time. *index* must cover exactly the publications of
        records below the checkpoint's LSN. Raises StorageFailed.
        """
        self.journal.wait_flushed(checkpoint.lsn)
        return write_next(self.journal.storage, checkpoint, index)

    @abstractmethod
    def note_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        """Checkpoint *number* is durable: what there is to do about that."""

    def close(self) -> None:
        """Write and fsync what is queued. Idempotent. Raises StorageFailed if the journal had stopped."""
        self.journal.close()
