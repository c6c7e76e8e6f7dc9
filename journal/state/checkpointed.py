"""State of an open journal, and its checkpoints: common to brokers and slaves."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import msgspec

from journal.records.header import Lsn, Offset
from journal.records.record import PartitionName
from journal.state.checkpoint import Checkpoint, IndexFileEntry, checkpoint_numbers, write_checkpoint
from journal.state.journal_state import JournalState
from journal.state.recovery import Recovered
from journal.state.snapshot import Snapshot
from journal.wal.open_journal import OpenJournal
from journal.wal.storage import Storage


def write_next(storage: Storage, checkpoint: Checkpoint, index: Mapping[PartitionName, IndexFileEntry]) -> int:
    """Write *checkpoint* with the entries *index* of the index files, durable on return; returns its number.

    Everything below its LSN must be durable. Raises StorageFailed.
    """
    marked = [
        msgspec.structs.replace(entry, index=index.get(PartitionName(entry.topic, entry.partition)))
        for entry in checkpoint.partitions
    ]
    number = max(checkpoint_numbers(storage), default=0) + 1  # above damaged ones too, so that it is the newest
    write_checkpoint(storage, number, msgspec.structs.replace(checkpoint, partitions=marked))
    return number


class CheckpointedState(ABC):
    """A journal and its fold. Owner thread only, except `write_checkpoint`."""

    def __init__(self, journal: OpenJournal, recovered: Recovered, clock_ms: Callable[[], int]) -> None:
        self.journal = journal
        self.state: JournalState = recovered.state
        self.recovered = recovered
        self._clock_ms = clock_ms
        self.recovered_ms = recovered.state.time_ms  # the latest time of any record before this open
        self.wants_checkpoint = False  # the newest one has no index entries
        # LSN of the newest checkpoint, from which the bytes to replay count, across restarts too.
        self.checkpoint_lsn = Lsn(recovered.end - recovered.replayed_bytes)
        self.durable_checkpoint_lsn = self.checkpoint_lsn  # the same, once its file is written
        self.checkpointed_at: float | None = None  # when that was, on the monotonic clock; None: before this start

    def now_ms(self) -> int:
        """Return the time of the store's clock, used in records."""
        return self._clock_ms()

    def snapshot(self) -> Checkpoint:
        """Return the state as it is now, as a checkpoint without index entries. It holds every record appended so
        far."""
        return self.begin_snapshot().checkpoint()

    def begin_snapshot(self) -> Snapshot:
        """Begin a snapshot that is made in steps; one at a time."""
        self.checkpoint_lsn = self.state.lsn
        return Snapshot(self.state)

    def trim(self, checkpoint: Checkpoint, starts: Mapping[PartitionName, int]) -> Checkpoint:
        """Move the starts of partitions to *starts*. Returns *checkpoint* with them; only a checkpoint records them."""
        for name, start in starts.items():
            offset_range = self.state.offset_range(name)
            offset_range.start = Offset(max(offset_range.start, start))
        partitions = [
            msgspec.structs.replace(
                entry, start=max(entry.start, starts.get(PartitionName(entry.topic, entry.partition), 0))
            )
            for entry in checkpoint.partitions
        ]
        return msgspec.structs.replace(checkpoint, partitions=partitions)

    def write_checkpoint(self, checkpoint: Checkpoint, index: Mapping[PartitionName, IndexFileEntry]) -> int:
        """Write *checkpoint* to its file once the journal is durable up to it; returns its number.

        Blocks on the disk: call it from a worker thread, one at a time. *index* must cover exactly the updates of
        records below the checkpoint's LSN. Raises StorageFailed.
        """
        self.journal.wait_flushed(checkpoint.lsn)
        return write_next(self.journal.storage, checkpoint, index)

    @abstractmethod
    def on_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        """Handle that checkpoint *number* is durable."""

    def close(self) -> None:
        """Write and fsync what is queued. Idempotent. Raises StorageFailed if the journal had stopped."""
        self.journal.close()
