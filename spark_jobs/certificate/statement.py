"""Statement of a certificate: both sides joined, the classes counted, and what nothing vouches for."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.certificate import FORMAT
from spark_jobs.certificate.classes import BROKEN
from spark_jobs.certificate.join import JoinedSides, JoinRequest, OnStep, came_apart, joined_sides, name_of

EXAMPLES_MAX: Final = 20  # a class


def make_certificate(spark: SparkSession, request: JoinRequest, on_progress: OnStep = lambda _: None) -> dict[str, Any]:
    """Return the certificate, unsigned. `refused` in it says why it must not be signed, if anything does.

    Raises DatabaseProblem, StorageFailed, ForeignJournal.
    """
    with joined_sides(spark, request, on_progress) as sides:
        classes, accounts = sides.counts(), sides.accounts()
        apart = came_apart(classes)
        return {
            "format": FORMAT,
            "made_at": datetime.fromtimestamp(int(time.time()), UTC).isoformat(),
            "since": datetime.fromtimestamp(sides.request.since_ms / 1000, UTC).isoformat(),
            "sentence": sentence(classes, apart),
            "apart": apart,
            "refused": sides.refusals(accounts),
            "database": {
                "place": sides.database.place,
                "decision_table": sides.database.table_id,
                "wal_lsn": sides.database.wal_lsn,
                "read_at": sides.database.read_at,
                "markers": [
                    {
                        "column": str(info.marker),
                        "rows": info.rows,
                        "names": "messages" if info.is_message_id else "transactions",
                    }
                    for info in sides.database.markers
                ],
            },
            "brokers": [
                {"broker": broker.number, "cluster": broker.cluster, **broker.report.as_json()}
                for broker in sides.brokers
            ],
            "coordinators": sides.logs.facts(),
            "classes": classes,
            "sources": sides.sources(),
            "examples": _examples(sides),
            "accounts": accounts,
            "consumers": sides.consumers(),
            "not_proven": list(_not_proven(sides, classes)),
        }


def _examples(sides: JoinedSides) -> dict[str, list[dict[str, Any]]]:
    names = (*BROKEN, "in doubt", "unknown")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    counts = ("committed", "rolled_back", "in_doubt", "open", "messages", "rows")
    for row in sides.oldest(names, EXAMPLES_MAX):
        found[row["class"]].append(
            {
                "transaction": name_of(row["gtrid"]),
                **{count: int(row[count]) for count in counts},
                "decision": row["outcome"],
                "database": row["source"],
            }
        )
    return found


def _not_proven(sides: JoinedSides, classes: dict[str, dict[str, int]]) -> Iterator[str]:
    for broker in sides.brokers:
        for claim in broker.report.evidence:
            if not claim.is_vouched:
                yield f"broker {broker.number}, LSN {claim.since} to {claim.until}: {claim.claim}: {claim.source}"
    yield from _of_deciders(sides)
    if not sides.database.markers and sides.database.table_id is not None:
        yield (
            "no marker column was given: decision rows are deleted when brokers have confirmed, so a committed "
            "transaction whose row is gone is unknown on the database's side"
        )
    if not sides.is_complete:
        yield "a journal does not begin at its birth: a row without a branch may be older than its first record"
    if classes["unknown"]["transactions"]:
        unknown = classes["unknown"]["transactions"]
        yield f"{unknown:,} transactions are unknown: nothing is left that tells what one side did"
    before = sides.counts(in_scope=False)
    if older := sum(one["transactions"] for one in before.values()):
        apart = (
            ", ".join(f"{count:,} {name}" for name, count in came_apart(before).items()) or "none of them came apart"
        )
        yield f"{older:,} transactions are older by their brokers' clocks, and left out: {apart}"
    yield "that these are all brokers of the cluster: the ones named were read"
    yield "what a row says, apart from its marker"


def _of_deciders(sides: JoinedSides) -> Iterator[str]:
    others: Counter[str] = Counter()
    for broker in sides.brokers:
        others.update(broker.others)
    for decider, branches in sorted(others.items()):
        remedy = ": name its log with --coordinator" if decider.startswith("coordinator ") else ""
        yield f"{branches:,} branches that {decider} decide{'s' if remedy else ''}, which was not read{remedy}"
    for log in sides.logs.facts():
        name = log["coordinator"]
        if log["copy"]:
            yield f"coordinator {name}: {log['directory']} is a copy: the log itself may have other decisions, too"
        if log["first_lsn"]:
            yield (
                f"coordinator {name}: its log has dropped finished decisions below LSN {log['first_lsn']}: marked "
                f"rows alone tell of them; what has none may be another database's"
            )
    for database, count in sorted(sides.elsewhere.items()):
        yield f"{count:,} transactions that coordinators decided about another database, {database}: certify that"


def sentence(classes: dict[str, dict[str, int]], apart: dict[str, int]) -> str:
    of = sum(one["transactions"] for one in classes.values())
    number = {name: one["transactions"] for name, one in classes.items()}
    settled = f"{number['committed']:,} committed in both, {number['rolled back']:,} rolled back in both"
    for name in ("in doubt", "open", "unknown"):
        settled += f", {number[name]:,} {name}" if number[name] else ""
    if apart:
        came = ", ".join(f"{count:,} {name}" for name, count in apart.items())
        return f"Of {of:,} transactions {sum(apart.values()):,} CAME APART: {came}; {settled}."
    none = "none is known to have come apart" if number["unknown"] else "none came apart"
    return f"Of {of:,} transactions {none}: {settled}."


def agrees(certificate: dict[str, Any]) -> bool:
    """Return true if both sides agree on every transaction in scope, and nothing of them is unknown."""
    return not (
        certificate["refused"]
        or certificate["apart"]
        or certificate["classes"]["unknown"]["transactions"]
        or any(one["state"] != "within" for one in certificate["consumers"])
    )
