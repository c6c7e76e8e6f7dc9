"""Statement of a certificate: both sides joined, the classes counted, and what nothing vouches for."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from spark_jobs.audit.audit import keep
from spark_jobs.audit.report import AuditVerdict
from spark_jobs.certificate.broker_side import JournalSide
from spark_jobs.certificate.classes import BROKEN, CLASSES, judged, transactions
from spark_jobs.certificate.database import DatabaseSnapshot, Marker, rows_now, stored_offsets
from spark_jobs.certificate.sides import gtrid_of_text

FORMAT: Final = 1
EXAMPLES_MAX: Final = 20  # a class
RECHECKED_MAX: Final = 100_000
UNKNOWN_ID: Final = "id "  # before a message id that no broker knows, in place of a gtrid
_COUNTS: Final = ("transactions", "branches", "messages", "rows")


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """Request to certify the transactions that had news since *since_ms*, Unix milliseconds. *offsets*: a table of
    consumers' offsets, if any."""

    directories: tuple[Path, ...]
    url: str
    markers: tuple[Marker, ...]
    since_ms: int
    offsets: str | None = None


class Statement:
    """The joined sides, and what is counted of them."""

    def __init__(
        self,
        spark: SparkSession,
        request: CertificateRequest,
        brokers: list[JournalSide],
        database: DatabaseSnapshot,
        columns: list[DataFrame],
        counted: list[int],
        kept: ExitStack,
    ) -> None:
        self._spark = spark
        self._request = request
        self._brokers = brokers
        self._database = database
        self._counted = counted
        self._kept = kept
        self._branches = reduce(DataFrame.unionAll, [broker.branches for broker in brokers])
        self._owners = reduce(DataFrame.unionAll, [broker.owners for broker in brokers])
        self._is_complete = all(broker.report.totals.first_lsn == 0 for broker in brokers)
        self._markers = keep(kept, self._marked(columns))
        self._decisions = spark.createDataFrame(
            pa.table(
                {
                    "text": pa.array([gtrid for gtrid, _ in database.decisions], pa.string()),
                    "outcome": pa.array([outcome for _, outcome in database.decisions], pa.string()),
                }
            )
        ).select(gtrid_of_text("text").alias("gtrid"), "outcome")

    def _marked(self, columns: list[DataFrame]) -> DataFrame:
        """Return (marker, gtrid) of each row; a message id that no broker knows stands for itself."""
        found = [self._spark.createDataFrame([], "marker string, gtrid string")]
        for info, values in zip(self._database.markers, columns, strict=True):
            marker = F.lit(str(info.marker)).alias("marker")
            if info.is_message_id:
                # One row a message: a transaction may have several, so each id is a marker of its own.
                named = values.join(self._owners, values["number"] == self._owners["id"], "left").select(
                    F.concat(F.lit(f"{info.marker}:"), F.col("number").cast("string")).alias("marker"),
                    F.coalesce("gtrid", F.concat(F.lit(UNKNOWN_ID), F.col("number").cast("string"))).alias("gtrid"),
                )
                found.append(named)
            else:
                found.append(values.select(marker, gtrid_of_text("text").alias("gtrid")))
        return reduce(DataFrame.unionAll, found)

    def made(self) -> dict[str, Any]:
        prefix = f"mq1-{self._database.table_id}-".encode().hex()
        is_ours = F.col("gtrid").startswith(prefix) | F.col("gtrid").startswith(UNKNOWN_ID)
        ours = self._markers.where(is_ours)
        foreign = self._markers.where(~is_ours).count()
        rows = self._judged(ours)
        later = self._later(rows)
        if later is not None:
            rows = self._judged(ours.unionAll(later))
        rows = keep(self._kept, rows)
        in_scope = F.coalesce(F.col("last_ms") >= self._request.since_ms, F.lit(True))
        classes = self._counts(rows.where(in_scope))
        before = self._counts(rows.where(~in_scope))
        extra = 0 if later is None else later.count()
        accounts = list(self._accounts(classes, before, foreign, extra))
        refused = [
            f"{account['what']}: {account['counted']}, not {account['expected']}"
            for account in accounts
            if account["counted"] != account["expected"]
        ]
        refused += [
            f"the audit of {broker.path}: {broker.report.sentence}"
            for broker in self._brokers
            if any(check.verdict in (AuditVerdict.FAILS, AuditVerdict.UNPROVEN) for check in broker.report.checks)
        ]
        apart = {name: classes[name]["transactions"] for name in BROKEN if classes[name]["transactions"]}
        return {
            "format": FORMAT,
            "made_at": datetime.fromtimestamp(int(time.time()), UTC).isoformat(),
            "since": datetime.fromtimestamp(self._request.since_ms / 1000, UTC).isoformat(),
            "sentence": self._sentence(classes, apart),
            "apart": apart,
            "refused": refused,
            "database": {
                "place": self._database.place,
                "decision_table": self._database.table_id,
                "wal_lsn": self._database.wal_lsn,
                "read_at": self._database.read_at,
                "markers": [
                    {
                        "column": str(info.marker),
                        "rows": info.rows,
                        "names": "messages" if info.is_message_id else "transactions",
                    }
                    for info in self._database.markers
                ],
            },
            "brokers": [
                {"broker": broker.number, "cluster": broker.cluster, **broker.report.as_json()}
                for broker in self._brokers
            ],
            "classes": classes,
            "examples": self._examples(rows.where(in_scope)),
            "accounts": accounts,
            "consumers": self._consumers(),
            "not_proven": list(self._not_proven(classes)),
        }

    def _judged(self, markers: DataFrame) -> DataFrame:
        return judged(
            transactions(self._branches, markers, self._decisions),
            has_markers=bool(self._database.markers),
            by_message=all(info.is_message_id for info in self._database.markers),
            is_complete=self._is_complete,
        )

    def _later(self, rows: DataFrame) -> DataFrame | None:
        """Return the rows that orphans have by now: of transactions that committed after the snapshot."""
        orphans = rows.where((F.col("class") == "orphan") & (F.col("rows") == 0)).select("gtrid").limit(RECHECKED_MAX)
        names = {bytes.fromhex(row["gtrid"]).decode(errors="replace"): row["gtrid"] for row in orphans.collect()}
        if not names:
            return None
        found: list[tuple[str, str]] = []
        for info in self._database.markers:
            if info.is_message_id:
                of_orphans = self._owners.join(F.broadcast(orphans), "gtrid").select("id", "gtrid").collect()
                ids = {str(row["id"]): row["gtrid"] for row in of_orphans}
                now = rows_now(self._request.url, info.marker, list(ids))
                found += [(f"{info.marker}:{value}", ids[value]) for value in now]
            else:
                now = rows_now(self._request.url, info.marker, list(names))
                found += [(str(info.marker), names[value]) for value in now]
        return self._spark.createDataFrame(found, "marker string, gtrid string") if found else None

    def _counts(self, rows: DataFrame) -> dict[str, dict[str, int]]:
        counted = rows.groupBy("class").agg(
            F.count("*").alias("transactions"), *(F.sum(name).alias(name) for name in _COUNTS[1:])
        )
        by_class = {row["class"]: row for row in counted.collect()}
        return {
            name: {count: int(by_class[name][count] or 0) if name in by_class else 0 for count in _COUNTS}
            for name in CLASSES
        }

    def _accounts(
        self, classes: dict[str, dict[str, int]], before: dict[str, dict[str, int]], foreign: int, later: int
    ) -> Iterator[dict[str, Any]]:
        """Yield what was counted by classes, and the same counted at its source."""

        def total(count: str) -> int:
            return sum(one[count] for by_class in (classes, before) for one in by_class.values())

        row = self._branches.agg(F.count("*").alias("branches"), F.sum("messages").alias("messages")).first()
        assert row is not None
        names = (
            self._branches.select("gtrid")
            .unionAll(self._markers.select("gtrid"))
            .unionAll(self._decisions.select("gtrid"))
        )
        prefix = f"mq1-{self._database.table_id}-".encode().hex()
        known = (
            names.where(F.col("gtrid").startswith(prefix) | F.col("gtrid").startswith(UNKNOWN_ID)).distinct().count()
        )
        rows = sum(info.rows for info in self._database.markers)
        for what, counted, expected in (
            ("transactions in all classes, and those before the time asked for", total("transactions"), known),
            ("branches", total("branches"), row["branches"]),
            ("messages published", total("messages"), int(row["messages"] or 0)),
            ("marked rows, those of other databases' transactions too", total("rows") + foreign, rows + later),
            ("marked rows read by Spark", sum(self._counted), rows),
        ):
            yield {"what": what, "counted": counted, "expected": expected}

    def _examples(self, rows: DataFrame) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for name in (*BROKEN, "in doubt", "unknown"):
            some = rows.where(F.col("class") == name).orderBy("last_ms", "gtrid").limit(EXAMPLES_MAX).collect()
            found[name] = [
                {
                    "transaction": _name(row["gtrid"]),
                    **{
                        count: int(row[count])
                        for count in ("committed", "rolled_back", "in_doubt", "open", "messages", "rows")
                    },
                    "decision": row["outcome"],
                }
                for row in some
            ]
        return found

    def _consumers(self) -> list[dict[str, Any]]:
        if self._request.offsets is None:
            return []
        ends = {
            (topic, f"{broker.number}-{partition}"): end
            for broker in self._brokers
            for (topic, partition), end in broker.ends.items()
        }
        found = []
        for one in stored_offsets(self._request.url, self._request.offsets):
            end = ends.get((one.topic, one.partition))
            if end is None:
                state = "unknown: no record of the partition"
            else:
                state = "beyond the end" if one.offset > end else "within"
            found.append({**one._asdict(), "end": end, "state": state})
        return found

    def _sentence(self, classes: dict[str, dict[str, int]], apart: dict[str, int]) -> str:
        of = sum(one["transactions"] for one in classes.values())
        number = {name: one["transactions"] for name, one in classes.items()}
        settled = f"{number['committed']:,} committed in both, {number['rolled back']:,} rolled back in both"
        for name in ("in doubt", "open", "unknown"):
            settled += f", {number[name]:,} {name}" if number[name] else ""
        if apart:
            came = ", ".join(f"{count:,} {name}" for name, count in apart.items())
            return f"Of {of:,} transactions {sum(apart.values()):,} CAME APART: {came}; {settled}."
        return f"Of {of:,} transactions none came apart: {settled}."

    def _not_proven(self, classes: dict[str, dict[str, int]]) -> Iterator[str]:
        for broker in self._brokers:
            for claim in broker.report.evidence:
                if not claim.is_vouched:
                    yield f"broker {broker.number}, LSN {claim.since} to {claim.until}: {claim.claim}: {claim.source}"
        if not self._database.markers:
            yield (
                "no marker column was given: decision rows are deleted when brokers have confirmed, so a committed "
                "transaction whose row is gone is unknown on the database's side"
            )
        if not self._is_complete:
            yield "a journal does not begin at its birth: a row without a branch may be older than its first record"
        if classes["unknown"]["transactions"]:
            unknown = classes["unknown"]["transactions"]
            yield f"{unknown:,} transactions: one side committed, and nothing is left of the other"
        yield "that these are all brokers of the cluster: the ones named were read"
        yield "what a row says, apart from its marker"


def _name(gtrid: str) -> str:
    return gtrid if gtrid.startswith(UNKNOWN_ID) else bytes.fromhex(gtrid).decode(errors="replace")
