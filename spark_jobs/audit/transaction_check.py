"""Checks that every branch ends at most once, and publishes exactly what was put in it. Pure.

A branch is identified by the LSN of its first record: identifiers may be reused, LSNs never.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.records.header import RecordType
from journal.records.heuristics import HeuristicDecision
from journal.records.record import RollbackReason
from spark_jobs.audit.findings import SUM, finding, findings, partition_name, text

XA_KEYS: Final = "XID:%"
LOCAL_KEYS: Final = "TX:%"  # never prepares, and commits in one phase or two without


def branches(records: DataFrame) -> DataFrame:
    """Return one row a branch: the sums of its records, and the LSNs of its state changes (null: never)."""
    kind, lsn = F.col("kind"), F.col("lsn")
    is_put, is_prepare = kind == RecordType.TX_PUT.name, kind == RecordType.PREPARE.name
    is_commit, is_rollback = kind == RecordType.COMMIT.name, kind == RecordType.ROLLBACK.name
    # COMPLETE ends a branch as a rollback does; an operator's commit or rollback adds a COMMIT or ROLLBACK record.
    is_completed = (kind == RecordType.HEURISTIC.name) & (F.col("reason") == HeuristicDecision.COMPLETE.name)
    is_outcome = is_commit | is_rollback | is_completed
    return (
        records.where(F.col("branch_lsn").isNotNull())
        .groupBy("branch_lsn")
        .agg(
            F.min("key").alias("key"),
            F.max("key").alias("other_key"),
            F.max("lsn").alias("last_lsn"),
            F.max("time_ms").alias("last_ms"),
            F.count_if(is_put & (lsn == F.col("branch_lsn"))).alias("beginnings"),
            F.max(F.when(is_put, lsn)).alias("last_put_lsn"),
            _total(is_put, F.col("messages")).alias("messages"),
            _total(is_put, F.col("bytes")).alias("bytes"),
            F.count_if(is_prepare).alias("prepares"),
            F.min(F.when(is_prepare, lsn)).alias("prepared_lsn"),
            F.max(F.when(is_prepare, F.col("messages"))).alias("promised_messages"),
            F.max(F.when(is_prepare, F.col("bytes"))).alias("promised_bytes"),
            F.count_if(is_commit).alias("commits"),
            _total(is_commit, _in_all("messages")).alias("taken_messages"),
            _total(is_commit, _in_all("bytes")).alias("taken_bytes"),
            F.count_if(is_rollback | is_completed).alias("rollbacks"),
            F.count_if(is_rollback & (F.col("reason") != RollbackReason.ASKED.name)).alias("unasked_rollbacks"),
            F.count_if(is_commit & ~F.col("one_phase")).alias("two_phase_commits"),
            F.min(F.when(is_outcome, lsn)).alias("decided_lsn"),
            F.max(F.when(~is_outcome, lsn)).alias("last_undecided_lsn"),
        )
    )


def _total(condition: Column, column: Column) -> Column:
    return F.coalesce(F.sum(F.when(condition, column).cast(SUM)), F.lit(0).cast(SUM))


def _in_all(name: str) -> Column:
    """Return the sum of field *name* over a COMMIT's partitions."""
    return F.aggregate("assignments", F.lit(0).cast(SUM), lambda sum_, one: (sum_ + one[name]).cast(SUM))


def assigned(records: DataFrame) -> DataFrame:
    """Return what each COMMIT assigns in each partition: branch_lsn, topic, partition, messages, bytes."""
    return (
        records.where(F.col("kind") == RecordType.COMMIT.name)
        .select("branch_lsn", F.explode("assignments").alias("assignment"))
        .select("branch_lsn", *(f"assignment.{name}" for name in ("topic", "partition", "messages", "bytes")))
    )


def outcome_findings(by_branch: DataFrame, first_lsn: int) -> DataFrame:
    """Find illegal state changes of branches. *first_lsn*: of the journal as kept; retention may have deleted what a
    branch put below it."""
    branch, last = F.col("branch_lsn"), F.col("last_lsn")
    decisions = F.col("commits") + F.col("rollbacks")
    prepared, decided = F.col("prepared_lsn"), F.col("decided_lsn")
    last_put, last_undecided = F.col("last_put_lsn"), F.col("last_undecided_lsn")
    promise_differs = (F.col("promised_messages").cast(SUM) != F.col("messages")) | (
        F.col("promised_bytes").cast(SUM) != F.col("bytes")
    )
    takes_differ = (F.col("promised_messages").cast(SUM) != F.col("taken_messages")) | (
        F.col("promised_bytes").cast(SUM) != F.col("taken_bytes")
    )
    is_whole = branch >= first_lsn
    has_begun = F.col("beginnings") > 0

    def about(problem: str, since: Column, until: Column, detail: str, *columns: Column) -> Column:
        subject = text("%s, begun at LSN %s", F.col("key"), branch)
        return finding(problem, since, until, subject, text(detail, *columns))

    return findings(
        by_branch,
        (
            decisions > 1,
            about(
                "decided twice",
                *(last, last),
                "is decided %s times: %s COMMIT and %s ROLLBACK, the last at LSN %s",
                *(decisions, F.col("commits"), F.col("rollbacks"), last),
            ),
        ),
        (
            is_whole & ~has_begun,
            about("never begun", branch, last, "has no first record, but a last one at LSN %s", last),
        ),
        (
            last_put > prepared,
            about(
                "put after PREPARE",
                *(last_put, last_put),
                "is put into at LSN %s, after its PREPARE at LSN %s",
                *(last_put, prepared),
            ),
        ),
        (
            last_undecided > decided,
            about(
                "alive after its outcome",
                *(last_undecided, last_undecided),
                "goes on at LSN %s, after its outcome at LSN %s",
                *(last_undecided, decided),
            ),
        ),
        (
            (prepared < decided) & (F.col("unasked_rollbacks") > 0),
            about("promise dropped", last, last, "is rolled back at LSN %s unasked, though it was prepared", decided),
        ),
        (
            F.col("key").like(LOCAL_KEYS) & prepared.isNotNull(),
            about("local prepared", last, last, "is a local transaction, and prepared at LSN %s", prepared),
        ),
        (F.col("prepares") > 1, about("prepared twice", last, last, "is prepared %s times", F.col("prepares"))),
        (
            is_whole & has_begun & (last_put < prepared) & promise_differs,
            about(
                "broken promise",
                *(branch, prepared),
                "promises %s messages in %s bytes, but holds %s in %s",
                *(F.col("promised_messages"), F.col("promised_bytes"), F.col("messages"), F.col("bytes")),
            ),
        ),
        (
            ~is_whole & (F.col("commits") == 1) & takes_differ,
            about(
                "promise not kept",
                *(prepared, decided),
                "promises %s messages in %s bytes, but its COMMIT takes %s in %s",
                *(F.col("promised_messages"), F.col("promised_bytes"), F.col("taken_messages"), F.col("taken_bytes")),
            ),
        ),
        (
            is_whole & F.col("key").like(XA_KEYS) & (F.col("two_phase_commits") > 0) & prepared.isNull(),
            about("never prepared", branch, decided, "commits in two phases at LSN %s without a PREPARE", decided),
        ),
        (
            F.col("key") != F.col("other_key"),
            about("two keys", last, last, "is also called %s", F.col("other_key")),
        ),
    )


def assignment_findings(records: DataFrame, by_branch: DataFrame, first_lsn: int) -> DataFrame:
    """Find commits that take other messages of a partition than their branch put. Omits branches decided twice, which
    `outcome_findings` reports, and those that began below *first_lsn*, see relocation_check.py."""
    zero = F.lit(0).cast(SUM)
    name = ("branch_lsn", "topic", "partition")
    puts = records.where(F.col("kind") == RecordType.TX_PUT.name).select(
        *name,
        F.col("messages").cast(SUM).alias("put_messages"),
        F.col("bytes").cast(SUM).alias("put_bytes"),
        zero.alias("taken_messages"),
        zero.alias("taken_bytes"),
    )
    assignments = assigned(records).select(
        *name,
        zero.alias("put_messages"),
        zero.alias("put_bytes"),
        F.col("messages").cast(SUM).alias("taken_messages"),
        F.col("bytes").cast(SUM).alias("taken_bytes"),
    )
    sums = [F.sum(column).alias(column) for column in ("put_messages", "put_bytes", "taken_messages", "taken_bytes")]
    committed_once = by_branch.where(
        (F.col("commits") == 1) & (F.col("rollbacks") == 0) & (F.col("branch_lsn") >= first_lsn)
    ).select("branch_lsn", "key", "decided_lsn")
    both = puts.unionAll(assignments).groupBy(*name).agg(*sums).join(committed_once, "branch_lsn")
    differs = (F.col("put_bytes") != F.col("taken_bytes")) | (F.col("put_messages") != F.col("taken_messages"))
    subject = text("%s, begun at LSN %s", F.col("key"), F.col("branch_lsn"))
    detail = text(
        "puts %s messages in %s bytes into %s; its COMMIT takes %s in %s",
        *(F.col("put_messages"), F.col("put_bytes"), partition_name()),
        *(F.col("taken_messages"), F.col("taken_bytes")),
    )
    taken = finding("assignment differs", F.col("branch_lsn"), F.col("decided_lsn"), subject, detail)
    return findings(both, (differs, taken))
