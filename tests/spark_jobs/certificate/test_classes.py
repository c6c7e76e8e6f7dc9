"""Every combination of what both sides say has one class."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.certificate.classes import judged, transactions

Decision = str | tuple[str, list[int] | None]  # its outcome, and the brokers of a commit: those with a branch, if none

# name: (branches as (broker, state), rows by marker, decision row, class); journals of brokers 0 and 1 were read
CASES: dict[str, tuple[list[tuple[int, str]], dict[str, int], Decision | None, str]] = {
    "both": ([(0, "committed"), (1, "committed")], {"sold": 1}, None, "committed"),
    "its row is not deleted yet": ([(0, "committed")], {"sold": 1}, "commit", "committed"),
    "undone": ([(0, "rolled back")], {}, None, "rolled back"),
    "undone by a resolver": ([(0, "rolled back")], {}, "rollback", "rolled back"),
    "never sent, resolved": ([], {}, "rollback", "rolled back"),
    "to be committed": ([(0, "committed"), (1, "in doubt")], {"sold": 1}, "commit", "in doubt"),
    "not decided": ([(0, "in doubt")], {}, None, "in doubt"),
    "under way": ([(0, "open")], {}, None, "open"),
    "one broker undone": ([(0, "committed"), (1, "rolled back")], {"sold": 1}, None, "mixed"),
    "row, and undone": ([(0, "rolled back")], {"sold": 1}, None, "mixed"),
    "decided to commit, and undone": ([(0, "rolled back")], {}, "commit", "mixed"),
    "decided to roll back, and published": ([(0, "committed")], {}, "rollback", "mixed"),
    "decided to roll back, and the row is there": ([(0, "rolled back")], {"sold": 1}, "rollback", "mixed"),
    "row, and not even prepared": ([(0, "open")], {"sold": 1}, None, "mixed"),
    "decided twice": ([(0, "decided twice")], {"sold": 1}, None, "mixed"),
    "no row": ([(0, "committed")], {}, None, "orphan"),
    "no row, though decided": ([(0, "committed")], {}, "commit", "orphan"),
    "no branch": ([], {"sold": 1}, None, "missing"),
    "decided, and no branch": ([], {}, "commit", "missing"),
    "decided, and one of two has no branch": ([(0, "committed")], {"sold": 1}, ("commit", [0, 1]), "missing"),
    "decided, and of one nobody knows": ([(0, "committed")], {"sold": 1}, ("commit", [0, 2]), "unknown"),
    "decided for nobody knows whom": ([(0, "committed")], {"sold": 1}, ("commit", None), "unknown"),
    "one of two to be committed": ([(0, "committed"), (1, "in doubt")], {"sold": 1}, ("commit", [0, 1]), "in doubt"),
    "two rows": ([(0, "committed")], {"sold": 2}, None, "duplicate"),
    "a row in each of two tables": ([(0, "committed")], {"sold": 1, "paid": 1}, None, "committed"),
    "published twice": ([(0, "committed"), (0, "committed")], {"sold": 1}, None, "duplicate"),
}


@pytest.fixture(scope="module")
def joined(spark: SparkSession) -> Any:
    branches = [
        (broker, number, name, state, state == "committed", 5)
        for name, (states, _, _, _) in CASES.items()
        for number, (broker, state) in enumerate(states)
    ]
    rows = [(marker, name) for name, (_, by, _, _) in CASES.items() for marker, many in by.items() for _ in range(many)]
    decisions = [
        (name, *((said, [broker for broker, _ in states]) if isinstance(said, str) else said))
        for name, (states, _, said, _) in CASES.items()
        if said is not None
    ]
    return transactions(
        spark.createDataFrame(
            [(*one[:4], int(one[4]), one[5]) for one in branches],
            "broker long, branch_lsn long, gtrid string, state string, messages int, last_ms long",
        ),
        spark.createDataFrame(rows, "marker string, gtrid string"),
        spark.createDataFrame(
            [(*one, {"commit": "committed", "rollback": "rolled back"}[one[1]], True) for one in decisions],
            "gtrid string, outcome string, named array<bigint>, database string, is_early boolean",
        ),
    ).persist()


def classes(joined: Any, *, has_markers: bool = True, is_complete: bool = True, **logs: Any) -> dict[str, str]:
    rows = judged(joined, read=(0, 1), has_markers=has_markers, by_message=False, is_complete=is_complete, **logs)
    return {row["gtrid"]: row["class"] for row in rows.select("gtrid", "class").collect()}


def test_each_case(joined: Any) -> None:
    assert classes(joined) == {name: expected for name, (_, _, _, expected) in CASES.items()}


def test_what_is_unknown_without_markers_or_without_the_beginning(joined: Any) -> None:
    found = classes(joined, has_markers=False, is_complete=False)
    changed = {name: one for name, one in found.items() if one != CASES[name][3]}
    assert changed == {
        "no row": "unknown",
        "no row, though decided": "committed",
        "no branch": "unknown",
        "decided, and no branch": "unknown",
        "decided, and one of two has no branch": "unknown",
    }


@pytest.mark.parametrize("has_markers", [True, False])
def test_what_is_published_and_not_in_a_coordinator_s_log(joined: Any, has_markers: bool) -> None:
    """An orphan if the log is whole; else it may have been dropped, and be another database's."""
    every = (b"",)  # gtrids begin with it
    assert classes(joined, has_markers=has_markers, coordinators=every)["no row"] == "orphan"
    assert classes(joined, has_markers=has_markers, coordinators=every, partial=every)["no row"] == "unknown"
