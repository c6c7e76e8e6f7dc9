"""Checks that every branch ends at most once, and publishes exactly what was put in it. Pure.

A branch is identified by the LSN of its first record: identifiers may be reused, LSNs never.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.findings import SUM, FindingRule, findings

COMMITTED_ONCE: Final = "commits = 1 AND rollbacks = 0"


def branches(records: DataFrame) -> DataFrame:
    """Return one row a branch: the sums of its records, and the LSNs of its state changes (null: never)."""
    # COMPLETE ends a branch as a rollback does; an operator's commit or rollback adds a COMMIT or ROLLBACK record.
    kinds = (
        "kind = 'TX_PUT' AS is_put",
        "kind = 'PREPARE' AS is_prepare",
        "kind = 'COMMIT' AS is_commit",
        "kind = 'ROLLBACK' AS is_rollback",
        "kind = 'HEURISTIC' AND reason = 'COMPLETE' AS is_completed",
    )
    is_outcome = "(is_commit OR is_rollback OR is_completed)"
    columns = (
        "min(key) AS key",
        "max(key) AS other_key",
        "max(lsn) AS last_lsn",
        "max(time_ms) AS last_ms",
        "count_if(is_put AND lsn = branch_lsn) AS beginnings",
        "max(lsn) FILTER (WHERE is_put) AS last_put_lsn",
        f"{_total('is_put', 'messages')} AS messages",
        f"{_total('is_put', 'bytes')} AS bytes",
        "count_if(is_prepare) AS prepares",
        "min(lsn) FILTER (WHERE is_prepare) AS prepared_lsn",
        "max(messages) FILTER (WHERE is_prepare) AS promised_messages",
        "max(bytes) FILTER (WHERE is_prepare) AS promised_bytes",
        "count_if(is_commit) AS commits",
        f"{_total('is_commit', _in_all('messages'))} AS taken_messages",
        f"{_total('is_commit', _in_all('bytes'))} AS taken_bytes",
        "count_if(is_rollback OR is_completed) AS rollbacks",
        "count_if(is_rollback AND reason != 'ASKED') AS unasked_rollbacks",
        "count_if(is_commit AND NOT one_phase) AS two_phase_commits",
        f"min(lsn) FILTER (WHERE {is_outcome}) AS decided_lsn",
        f"max(lsn) FILTER (WHERE NOT {is_outcome}) AS last_undecided_lsn",
    )
    of_branches = records.where("branch_lsn IS NOT NULL").selectExpr("*", *kinds)
    return of_branches.groupBy("branch_lsn").agg(*map(F.expr, columns))


def _total(condition: str, number: str) -> str:
    return f"coalesce(sum(CAST({number} AS {SUM})) FILTER (WHERE {condition}), 0)"


def _in_all(field: str) -> str:
    """Return the sum of *field* over a COMMIT's partitions."""
    return f"aggregate(assignments, CAST(0 AS {SUM}), (total, one) -> CAST(total + one.{field} AS {SUM}))"


def sums_beside_takes(sums: DataFrame, records: DataFrame, judged: DataFrame) -> DataFrame:
    """Return what *sums* (branch_lsn, topic, partition, messages, bytes) add up to in each partition of each branch of
    *judged*, and what COMMITs take of it: taken_messages, taken_bytes."""
    place, figures = ("branch_lsn", "topic", "partition"), ("messages", "bytes")
    taken, none = [f"taken_{figure}" for figure in figures], f"CAST(0 AS {SUM})"
    numbers = [f"CAST({figure} AS {SUM}) AS {figure}" for figure in figures]
    takes = records.where("kind = 'COMMIT'").selectExpr("branch_lsn", "inline(assignments)")
    added = (
        sums.selectExpr(*place, *numbers, *(f"{none} AS {column}" for column in taken))
        .unionAll(takes.selectExpr(*place, none, none, *numbers))
        .groupBy(*place)
        .agg(*(F.sum(column).alias(column) for column in (*figures, *taken)))
    )
    return added.join(judged.select("branch_lsn", "key", "decided_lsn"), "branch_lsn")


def outcome_findings(by_branch: DataFrame, first_lsn: int) -> DataFrame:
    """Find illegal state changes of branches. *first_lsn*: of the journal as kept; retention may have deleted what a
    branch put below it."""
    is_whole = f"branch_lsn >= {first_lsn}"
    promises = "promises {promised_messages} messages in {promised_bytes} bytes"

    def differs_from(what: str) -> str:
        return f"(promised_messages != {what}messages OR promised_bytes != {what}bytes)"

    def about(problem: str, when: str, detail: str, since: str | None = None, lsn: str = "last_lsn") -> FindingRule:
        return FindingRule(problem, "{key}, begun at LSN {branch_lsn}", detail, when, since, lsn)

    return findings(
        by_branch,
        about(
            "decided twice",
            "commits + rollbacks > 1",
            "is decided {commits + rollbacks} times: {commits} COMMIT and {rollbacks} ROLLBACK, the last at LSN "
            "{last_lsn}",
        ),
        about(
            "never begun",
            f"{is_whole} AND beginnings = 0",
            "has no first record, but a last one at LSN {last_lsn}",
            since="branch_lsn",
        ),
        about(
            "put after PREPARE",
            "last_put_lsn > prepared_lsn",
            "is put into at LSN {last_put_lsn}, after its PREPARE at LSN {prepared_lsn}",
            lsn="last_put_lsn",
        ),
        about(
            "alive after its outcome",
            "last_undecided_lsn > decided_lsn",
            "goes on at LSN {last_undecided_lsn}, after its outcome at LSN {decided_lsn}",
            lsn="last_undecided_lsn",
        ),
        about(
            "promise dropped",
            "prepared_lsn < decided_lsn AND unasked_rollbacks > 0",
            "is rolled back at LSN {decided_lsn} unasked, though it was prepared",
        ),
        about(
            "local prepared",  # a local transaction commits in one phase, or in two without
            "key LIKE 'TX:%' AND prepared_lsn IS NOT NULL",
            "is a local transaction, and prepared at LSN {prepared_lsn}",
        ),
        about("prepared twice", "prepares > 1", "is prepared {prepares} times"),
        about(
            "broken promise",
            f"{is_whole} AND beginnings > 0 AND last_put_lsn < prepared_lsn AND {differs_from('')}",
            f"{promises}, but holds {{messages}} in {{bytes}}",
            since="branch_lsn",
            lsn="prepared_lsn",
        ),
        about(
            "promise not kept",
            f"NOT {is_whole} AND commits = 1 AND {differs_from('taken_')}",
            f"{promises}, but its COMMIT takes {{taken_messages}} in {{taken_bytes}}",
            since="prepared_lsn",
            lsn="decided_lsn",
        ),
        about(
            "never prepared",
            f"{is_whole} AND key LIKE 'XID:%' AND two_phase_commits > 0 AND prepared_lsn IS NULL",
            "commits in two phases at LSN {decided_lsn} without a PREPARE",
            since="branch_lsn",
            lsn="decided_lsn",
        ),
        about("two keys", "key != other_key", "is also called {other_key}"),
    )


def assignment_findings(records: DataFrame, by_branch: DataFrame, first_lsn: int) -> DataFrame:
    """Find commits that take other messages of a partition than their branch put. Omits branches decided twice, which
    `outcome_findings` reports, and those that began below *first_lsn*, see relocation_check.py."""
    judged = by_branch.where(f"{COMMITTED_ONCE} AND branch_lsn >= {first_lsn}")
    return findings(
        sums_beside_takes(records.where("kind = 'TX_PUT'"), records, judged),
        FindingRule(
            "assignment differs",
            "{key}, begun at LSN {branch_lsn}",
            "puts {messages} messages in {bytes} bytes into {topic}-{partition}; its COMMIT takes {taken_messages} in "
            "{taken_bytes}",
            "bytes != taken_bytes OR messages != taken_messages",
            "branch_lsn",
            "decided_lsn",
        ),
    )
