"""One broker's side: its journal, read once, with an audit of it."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.errors import InvalidContent, StorageFailed
from journal.wal.segments import read_header, segment_name
from journal.wal.storage import DirectoryStorage
from spark_jobs.audit.audit import audit_journal, keep
from spark_jobs.audit.checkpoint_files import read_checkpoints
from spark_jobs.audit.offset_check import offset_ranges, skips
from spark_jobs.audit.report import AuditReport
from spark_jobs.certificate.sides import (
    Deciders,
    branch_contents,
    branch_states,
    message_owners,
    other_branches,
    writer_epochs,
)
from spark_jobs.source.locations import plan


class JournalSide:
    """One directory, as read: whose it is, its audit, its branches, their messages, and the ids of those."""

    def __init__(self, path: Path) -> None:
        self.path = path
        base = plan(path)[0].base
        storage = DirectoryStorage.open_for_reading(path)
        file = storage.open(segment_name(base), writable=False)
        try:
            identity = read_header(file, str(path)).identity
        except InvalidContent as error:
            raise StorageFailed(f"{error}: metaq journal repair") from error
        finally:
            file.close()
        self.cluster, self.number = identity.cluster, identity.broker_id
        self.report: AuditReport
        self.branches: DataFrame
        self.owners: DataFrame
        self.contents: DataFrame
        self.others: dict[str, int] = {}  # branches that others decide, by decider
        self.epochs: list[dict[str, int]] = []
        self.ends: dict[tuple[str, int], int] = {}

    def read(
        self,
        spark: SparkSession,
        deciders: Deciders,
        kept: ExitStack,
        on_progress: Callable[[str], None],
        *,
        with_owners: bool = False,
        with_contents: bool = False,
        with_ends: bool = False,
    ) -> None:
        """Audit the journal and read its side. *with_owners*: the branch of each message id, too. *with_contents*:
        where each branch's messages are. *with_ends*: where each partition ends."""
        checkpoints = read_checkpoints(self.path)

        def also(records: DataFrame, by_branch: DataFrame) -> None:
            promised = checkpoints.promised_below(plan(self.path)[0].base)
            self.branches = keep(kept, branch_states(by_branch, self.number, deciders, promised))
            filled = [self.branches]
            if with_owners:
                self.owners = keep(kept, message_owners(records, deciders))
                filled.append(self.owners)
            if with_contents:
                self.contents = keep(kept, branch_contents(records, self.number, deciders))
                filled.append(self.contents)
            # While Spark has the records, and by one query.
            reduce(DataFrame.unionAll, [rows.selectExpr("1 AS one") for rows in filled]).count()
            self.others = {row["decider"]: row["branches"] for row in other_branches(by_branch, deciders).collect()}
            if with_contents:
                self.epochs = [row.asDict() for row in writer_epochs(records).collect()]
            if with_ends:
                ranges = offset_ranges(records).unionAll(skips(records))
                ends = ranges.groupBy("topic", "partition").agg(F.max("end").alias("end"))
                self.ends = {(row["topic"], row["partition"]): row["end"] for row in ends.collect()}

        self.report = audit_journal(spark, self.path, also=also, on_progress=on_progress)
