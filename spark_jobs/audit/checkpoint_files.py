"""Reads the checkpoint files of a directory as rows. On the driver: there are three, of some kilobytes each."""

from dataclasses import dataclass, field
from pathlib import Path

from journal.errors import InvalidContent, StorageFailed
from journal.state.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint
from journal.wal.storage import DirectoryStorage
from spark_jobs.source.directory import LSN_MAX
from spark_jobs.source.locations import JournalLocation
from spark_jobs.source.schemas import BranchRow, CheckpointRow, FindingRow, PartitionRow, StartRow


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The valid checkpoints by number, and the reasons why others cannot be read."""

    valid: dict[int, Checkpoint] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        return max(self.valid, default=None)

    def log_starts(self) -> list[StartRow]:
        """Return the start of each partition's log in the newest valid checkpoint."""
        if self.newest is None:
            return []
        return [StartRow(entry.topic, entry.partition, entry.start) for entry in self.valid[self.newest].partitions]

    def promised_below(self, first_lsn: int) -> list[int]:
        """Return the branches, by first LSN, that began below *first_lsn* and were prepared at the newest checkpoint.

        Their PREPARE may be deleted, since only messages are relocated.
        """
        newest = self.valid[self.newest].branches if self.newest is not None else []
        return [entry.first_lsn for entry in newest if entry.state == "PREPARED" and entry.first_lsn < first_lsn]

    def rows(self, first_lsn: int) -> tuple[list[CheckpointRow], list[PartitionRow], list[BranchRow]]:
        """Return rows of the checkpoints that records from *first_lsn* on can confirm.

        Omits one taken at or before *first_lsn*, which covers records that retention has deleted.
        """
        checkpoints: list[CheckpointRow] = []
        partitions: list[PartitionRow] = []
        branches: list[BranchRow] = []
        for number, checkpoint in self.valid.items():
            at = checkpoint.lsn
            if at <= first_lsn:
                continue
            checkpoints.append(CheckpointRow(number, at, checkpoint.epoch, checkpoint.incarnation))
            partitions += [
                PartitionRow(number, at, entry.topic, entry.partition, entry.start, entry.end)
                for entry in checkpoint.partitions
            ]
            branches += [
                BranchRow(
                    number,
                    at,
                    entry.first_lsn,
                    entry.key,
                    entry.state,
                    len(entry.extents),
                    sum(extent.messages for extent in entry.extents),
                    sum(extent.bytes for extent in entry.extents),
                    min(extent.lsn for extent in entry.extents),
                )
                for entry in checkpoint.branches
            ]
        return checkpoints, partitions, branches

    def damage(self) -> list[FindingRow]:
        """Return a finding for every file that does not read back."""
        return [
            FindingRow("damaged", 0, 0, f"checkpoint.{number}", f"does not read back: {reason}")
            for number, reason in self.damaged.items()
        ]


def read_checkpoints(place: JournalLocation) -> Checkpoints:
    """Read every checkpoint file in *place*; an object store has none. Call it before planning the journal, so that the
    records cover them all. Raises StorageFailed."""
    found = Checkpoints()
    if not isinstance(place, Path):
        return found
    storage = DirectoryStorage.open_for_reading(place)
    for number in checkpoint_numbers(storage):
        try:
            checkpoint = decode_checkpoint(storage.read(f"checkpoint.{number}"))
        except StorageFailed:
            if number in checkpoint_numbers(storage):  # else deleted meanwhile: a live broker keeps the newest three
                raise
            continue
        except InvalidContent as error:
            found.damaged[number] = str(error)
            continue
        if (reason := _implausible(checkpoint)) is not None:
            found.damaged[number] = reason
        else:
            found.valid[number] = checkpoint
    return found


def _implausible(checkpoint: Checkpoint) -> str | None:
    """Return why a column cannot hold the checkpoint's sums, or None. The decoder has refused single numbers."""
    sums = [
        max(sum(extent.messages for extent in branch.extents), sum(extent.bytes for extent in branch.extents))
        for branch in checkpoint.branches
    ]
    return None if max(sums, default=0) <= LSN_MAX else f"a branch sums up to more than {LSN_MAX}"
