"""Findings of the checks: rows of one shape, and the marking of those that corruption may explain.

A finding names an interval of LSNs, [since, lsn], in which a missing record could explain it. If bytes in there do not
read back, the finding proves only that the journal is damaged, which another check reports. since == lsn: no missing
record could explain it.
"""

import re
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.source.schemas import FindingRow

EXAMPLES_MAX: Final = 10  # a check
SUM: Final = "decimal(38,0)"  # numbers come from disk: their sums must not overflow
_IN_BRACES: Final = re.compile(r"\{(.+?)\}")


class FindingRule(NamedTuple):
    """One finding for each row of which *when* holds; null does not hold. *subject* and *detail* make a sentence; what
    stands in braces there, and all else but *problem*, is SQL. *since*: the same as *lsn* without one."""

    problem: str
    subject: str
    detail: str
    when: str = "true"
    since: str | None = None
    lsn: str = "lsn"


def findings(rows: DataFrame, *cases: FindingRule) -> DataFrame:
    """Return the findings of *rows*, as FindingRow. SQL is one call into the JVM, where columns take hundreds."""
    found = ", ".join(
        f"CASE WHEN {case.when} THEN named_struct('problem', '{case.problem}', 'since', {case.since or case.lsn}, "
        f"'lsn', {case.lsn}, 'subject', {_text(case.subject)}, 'detail', {_text(case.detail)}) END"
        for case in cases
    )
    return rows.selectExpr(f"inline(array_compact(array({found})))")


def _text(template: str) -> str:
    return f"format_string({', '.join([repr(_IN_BRACES.sub('%s', template)), *_IN_BRACES.findall(template)])})"


def about_checkpoint(problem: str, first_lsn: int, detail: str, when: str) -> FindingRule:
    """Return a finding about a checkpoint (columns number, at), which any record below it could explain."""
    return FindingRule(problem, "checkpoint.{number}", detail, when, f"bigint({first_lsn})", "at")


def all_findings(by_check: dict[str, list[DataFrame]]) -> DataFrame:
    """Unite the findings of all checks, with the check's name in column `check`."""
    named = [
        rows.selectExpr(f"'{check}' AS `check`", *FindingRow._fields)
        for check, found in by_check.items()
        for rows in found
    ]
    return reduce(DataFrame.unionAll, named)


def or_none(column: str) -> str:
    """Return the text of a column that may be null, in a sentence."""
    return f"{{coalesce(string({column}), 'none')}}"


def mark_explained(found: DataFrame, unreadable: DataFrame) -> DataFrame:
    """Add `explained`: true if a row of *unreadable*, a range [lsn, end), touches [since, lsn]."""
    gathered = unreadable.agg(F.expr("collect_list(struct(lsn, `end`)) AS unreadable"))
    touched = "exists(unreadable, one -> one.lsn < lsn AND one.`end` > since) AS explained"
    return found.crossJoin(F.broadcast(gathered)).selectExpr("`check`", *FindingRow._fields, touched)


def first_of_each(found: DataFrame, first: str) -> DataFrame:
    """Return the first findings of each check, by column *first* before all others."""
    order = f"PARTITION BY `check` ORDER BY {first}, lsn, problem, subject"
    ranked = found.selectExpr("*", f"row_number() OVER ({order}) AS rank").where(f"rank <= {EXAMPLES_MAX}")
    return ranked.orderBy("check", "rank")
