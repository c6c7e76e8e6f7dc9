"""The checkpoint files of a directory, as rows. Read on the driver: there are three, of some kilobytes each."""

from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from journal.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint
from journal.errors import StorageFailed
from journal.storage import DirectoryStorage
from spark_jobs.directory import LSN_MAX
from spark_jobs.schemas import BranchRow, CheckpointRow, FindingRow, PartitionRow, StartRow, arrow_table


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What the checkpoint files say, by number, and why the others cannot be read."""

    valid: dict[int, Checkpoint] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        return max(self.valid, default=None)

    def log_starts(self) -> list[StartRow]:
        """Where each partition's log begins, as the newest valid checkpoint knows it."""
        if self.newest is None:
            return []
        return [StartRow(mark.topic, mark.partition, mark.start) for mark in self.valid[self.newest].partitions]

    def promised_below(self, first_lsn: int) -> list[int]:
        """The branches, by first LSN, that began below *first_lsn* and were prepared at the newest checkpoint.

        Their PREPARE may be deleted: what is carried forward is messages.
        """
        newest = self.valid[self.newest].branches if self.newest is not None else []
        return [mark.first_lsn for mark in newest if mark.state == "PREPARED" and mark.first_lsn < first_lsn]

    def rows(self, spark: SparkSession, first_lsn: int) -> tuple[DataFrame, DataFrame, DataFrame]:
        """CheckpointRow, PartitionRow and BranchRow of those that records from *first_lsn* on can confirm.

        One taken at or before *first_lsn* speaks of records that retention has deleted.
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
                PartitionRow(number, at, mark.topic, mark.partition, mark.start, mark.end)
                for mark in checkpoint.partitions
            ]
            branches += [
                BranchRow(
                    number,
                    at,
                    mark.first_lsn,
                    mark.key,
                    mark.state,
                    len(mark.runs),
                    sum(run.messages for run in mark.runs),
                    sum(run.bytes for run in mark.runs),
                    min(run.lsn for run in mark.runs),
                )
                for mark in checkpoint.branches
            ]
        return (
            spark.createDataFrame(arrow_table(CheckpointRow, checkpoints)),
            spark.createDataFrame(arrow_table(PartitionRow, partitions)),
            spark.createDataFrame(arrow_table(BranchRow, branches)),
        )

    def damage(self, spark: SparkSession) -> DataFrame:
        """A finding for every file that does not read back."""
        rows = [
            FindingRow("damaged", 0, 0, f"checkpoint.{number}", f"does not read back: {reason}")
            for number, reason in self.damaged.items()
        ]
        return spark.createDataFrame(arrow_table(FindingRow, rows))


def read_checkpoints(path: Path) -> Checkpoints:
    """Every checkpoint file in *path*. Call it before the journal is planned: the records then cover them all.

    Raises StorageFailed.
    """
    storage = DirectoryStorage.open_for_reading(path)
    found = Checkpoints()
    for number in checkpoint_numbers(storage):
        try:
            checkpoint = decode_checkpoint(storage.read(f"checkpoint.{number}"))
        except StorageFailed:
            if number in checkpoint_numbers(storage):
                raise
            continue  # a live broker has just deleted it: it keeps the newest three
        if isinstance(checkpoint, Checkpoint) and (reason := _implausible(checkpoint)):
            checkpoint = reason
        if isinstance(checkpoint, Checkpoint):
            found.valid[number] = checkpoint
        else:
            found.damaged[number] = checkpoint
    return found


def _implausible(checkpoint: Checkpoint) -> str | None:
    """Why no column holds what it says, if none does. That nothing is negative, its decoder has seen to."""
    numbers = [checkpoint.lsn, checkpoint.epoch, checkpoint.incarnation]
    for mark in checkpoint.partitions:
        numbers += [mark.partition, mark.start, mark.end]
    for branch in checkpoint.branches:
        numbers += [branch.first_lsn, sum(run.messages for run in branch.runs), sum(run.bytes for run in branch.runs)]
        numbers += [run.lsn for run in branch.runs]
    return None if max(numbers) <= LSN_MAX else f"it holds a number beyond {LSN_MAX}"
