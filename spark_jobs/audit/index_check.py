"""Checks that the index of each partition points at its messages: each entry at a put or an extent, and none is left
out. Pure.

Compares up to a checkpoint, with the entries that it covers. Not compared: the times of entries, and entries of
branches of whose messages some are deleted.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import FindingRule, findings
from spark_jobs.audit.relocation_check import extents_held

_NAME = ("topic", "partition")


def index_findings(records: DataFrame, entries: DataFrame, files: DataFrame, at: int, number: int) -> DataFrame:
    """Find damaged index files, entries that point elsewhere, and messages that no entry points at.

    *entries* (IndexEntryRow) and *files* (IndexFileRow) are those of checkpoint *number*, taken at LSN *at*.
    """
    covered = F.broadcast(files.selectExpr(*_NAME, "start AS log_start"))
    is_kept = "start >= log_start"
    published, unknown = _published(records.where(f"lsn < {at}"))
    stored = published.join(covered, [*_NAME]).where(is_kept)
    # Damage is one finding; the entries behind it would be a million.
    damaged = entries.where("problem IS NOT NULL").select(*_NAME, "number", "problem")
    is_unknown = "e.topic = u.topic AND e.partition = u.partition AND start >= taken AND start < taken_end"
    filed = (
        entries.where("problem IS NULL AND bytes > 0")
        .join(covered, [*_NAME])
        .where(is_kept)
        .alias("e")
        .join(F.broadcast(unknown).alias("u"), F.expr(is_unknown), "left_anti")
    )
    both = (
        _named(stored, "stands")
        .join(_named(filed, "says"), [*_NAME, "start"], "full")
        .join(F.broadcast(damaged.select(*_NAME).distinct()), [*_NAME], "left_anti")
    )
    file, until = "the index of {topic}-{partition}", f"bigint({at})"
    says = "has offset {start} at LSN {says.lsn}"

    def about(problem: str, when: str, detail: str) -> FindingRule:
        # The record that is missing may be the COMMIT, anywhere from the message to the checkpoint.
        return FindingRule(problem, file, detail, when, "coalesce(stands.lsn, says.lsn)", until)

    broken = f"differs from checkpoint.{number} at entry {{number}}: {{problem}}"
    return findings(damaged, FindingRule("index damaged", file, broken, lsn=until)).unionAll(
        findings(
            both,
            about("entry missing", "says IS NULL", "leaves out offset {start}, which stands at LSN {stands.lsn}"),
            about("entry wrong", "stands IS NULL", f"{says}, where it does not begin"),
            about(
                "entry wrong",
                "stands != says",
                f"{says}, {{says.bytes}} bytes, {{says.messages}} messages; it stands at LSN {{stands.lsn}}: "
                "{stands.bytes} bytes, {stands.messages} messages",
            ),
        )
    )


def _named(rows: DataFrame, name: str) -> DataFrame:
    return rows.selectExpr(*_NAME, "start", f"struct(lsn, bytes, messages) AS {name}")


def _published(records: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return what was published, extent by extent: topic, partition, start, lsn, bytes, messages; and the offsets
    [taken, taken_end) of commits whose messages are not all left."""
    place = ("lsn", "bytes", "messages")
    puts = records.where("kind IN ('PUT', 'PUT_BATCH')").selectExpr(
        *_NAME, "base_offset AS start", "body_lsn AS lsn", "bytes", "messages"
    )
    assignments = (
        records.where("kind = 'COMMIT'")
        .selectExpr("branch_lsn", "lsn AS at", "explode(assignments) AS one")
        .selectExpr(
            "branch_lsn", "at", "one.topic", "one.partition", "one.base AS taken", "one.base + one.bytes AS taken_end"
        )
    )
    extents = extents_held(records, assignments.selectExpr("0 AS number", "at", "branch_lsn").distinct())
    of_branch = "PARTITION BY at, branch_lsn, topic, partition"
    before = f"sum(bytes) OVER ({of_branch} ORDER BY put_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    placed = assignments.join(
        extents.selectExpr(
            *("at", "branch_lsn", *_NAME, *place),
            f"coalesce({before}, 0) AS before",
            f"sum(bytes) OVER ({of_branch}) AS all_bytes",
        ),
        ["at", "branch_lsn", *_NAME],
        "left",
    )
    is_whole = "all_bytes <=> taken_end - taken"
    committed = placed.where(is_whole).selectExpr(*_NAME, "taken + before AS start", *place)
    return puts.unionAll(committed), placed.where(f"NOT {is_whole}").select(*_NAME, "taken", "taken_end").distinct()
