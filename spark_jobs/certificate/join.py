"""Both sides of every transaction, joined and judged; a certificate and a reconciliation state what came of it.

Reads the database first, then coordinators' logs, then each broker's journal with an audit of it. In this order a live
system does no harm: branches are prepared before the database commits, so what the snapshot has is in the journals that
are read later. What commits in between shows as an orphan, and is looked up once more.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.errors import StorageFailed
from spark_jobs.audit.audit import keep
from spark_jobs.audit.report import AuditVerdict
from spark_jobs.certificate.broker_side import JournalSide
from spark_jobs.certificate.classes import BROKEN, CLASSES, judged, transactions, with_sources
from spark_jobs.certificate.coordinator_side import CoordinatorLogs, decision_table
from spark_jobs.certificate.database import (
    DatabaseSnapshot,
    Marker,
    column,
    rows_now,
    snapshot,
    stored_offsets,
)
from spark_jobs.certificate.sides import Deciders, begins_with, gtrid_of_text

RECHECKED_MAX: Final = 100_000
UNKNOWN_ID: Final = "id "  # before a message id that no broker knows, in place of a gtrid
COUNTS: Final = ("transactions", "branches", "messages", "rows")
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Sides to join: brokers' directories, and a database with its marker columns. Transactions with news since
    *since_ms*, Unix milliseconds, are in scope. *offsets*: a table of consumers' offsets, if any. *coordinators*:
    directories of decision logs."""

    directories: tuple[Path, ...]
    url: str
    markers: tuple[Marker, ...]
    since_ms: int
    offsets: str | None = None
    coordinators: tuple[Path, ...] = ()


@contextmanager
def joined_sides(
    spark: SparkSession, request: JoinRequest, on_progress: OnStep, *, with_contents: bool = False
) -> Iterator["JoinedSides"]:
    """Read and join both sides; what Spark keeps of them goes with the block. *with_contents*: read, too, where each
    branch's messages are.

    Raises DatabaseProblem, StorageFailed, ForeignJournal, ForeignLog.
    """
    logs = CoordinatorLogs(request.coordinators)
    brokers = [JournalSide(path) for path in request.directories]
    names = [(broker.cluster, broker.number) for broker in brokers]
    if len(set(names)) < len(names):
        raise StorageFailed("two directories are of one broker: name one of them")
    with ExitStack() as kept:
        with snapshot(request.url, list(request.markers), may_lack_table=bool(request.coordinators)) as database:
            on_progress(f"reading the database, as of WAL {database.wal_lsn}")
            columns = [keep(kept, column(spark, database, info)) for info in database.markers]
            counted = [rows.count() for rows in columns]  # read now: an open transaction holds back VACUUM
        logs.read(request.url)
        deciders = Deciders(database.qualifier, logs.prefixes)
        with_owners = any(info.is_message_id for info in database.markers)
        for broker in brokers:
            broker.read(
                spark,
                deciders,
                kept,
                on_progress,
                with_owners=with_owners,
                with_contents=with_contents,
                with_ends=request.offsets is not None,
            )
        on_progress("joining both sides")
        yield JoinedSides(spark, request, brokers, database, logs, columns, counted, kept)


class JoinedSides:
    """The joined sides, and what is counted of them. *rows*: one a transaction, with its class (classes.py)."""

    def __init__(
        self,
        spark: SparkSession,
        request: JoinRequest,
        brokers: list[JournalSide],
        database: DatabaseSnapshot,
        logs: CoordinatorLogs,
        columns: list[DataFrame],
        counted: list[int],
        kept: ExitStack,
    ) -> None:
        self._spark = spark
        self.request = request
        self.brokers = brokers
        self.database = database
        self.logs = logs
        self._counted = counted
        coordinated = logs.read(request.url)
        self.elsewhere = Counter(coordinated.elsewhere.values())
        branches = reduce(DataFrame.unionAll, [broker.branches for broker in brokers])
        self.branches = _without(spark, branches, coordinated.elsewhere)
        self.is_complete = all(broker.report.totals.first_lsn == 0 for broker in brokers)
        self.markers = keep(kept, self._marked(columns))
        decided = spark.createDataFrame(decision_table(database.decisions, coordinated.decisions))
        named = self.branches.select("gtrid").unionAll(self.markers.select("gtrid")).distinct()
        later = decided.where(~F.col("is_early")).join(named, "gtrid", "left_semi")
        self._decisions = keep(kept, decided.where("is_early").unionAll(later))
        table = () if database.qualifier is None else (f"{database.qualifier}-".encode(),)
        self._prefixes = (*table, *logs.prefixes)
        is_ours = self._is_known(self.markers)
        ours = self.markers.where(is_ours)
        self._foreign = self.markers.where(~is_ours).count()
        self._later_rows = 0
        rows = keep(kept, self._judged(ours))
        if (rows_later := self._later(rows)) is not None:
            rows.unpersist()
            self._later_rows = rows_later.count()
            rows = keep(kept, self._judged(ours.unionAll(rows_later)))
        self.rows = rows.withColumn("in_scope", F.coalesce(F.col("last_ms") >= request.since_ms, F.lit(True)))
        sums = [F.sum(name).alias(name) for name in COUNTS[1:]]
        self._tallies = (
            self.rows.groupBy("in_scope", "class", "source").agg(F.count("*").alias(COUNTS[0]), *sums).collect()
        )

    def counts(self, *, in_scope: bool = True) -> dict[str, dict[str, int]]:
        """Return transactions, branches, messages and rows of each class. *in_scope* False: of what is older than the
        time asked for, by the clocks of the brokers that wrote it."""
        found = {name: dict.fromkeys(COUNTS, 0) for name in CLASSES}
        for row in self._tallies:
            if row["in_scope"] is in_scope:
                for count in COUNTS:
                    found[row["class"]][count] += int(row[count] or 0)
        return found

    def sources(self) -> list[dict[str, Any]]:
        """Return the number of transactions in scope by class and by source of the database's side."""
        found = [
            {"class": row["class"], "database": row["source"], "transactions": row["transactions"]}
            for row in self._tallies
            if row["in_scope"]
        ]
        order = list(CLASSES)
        return sorted(found, key=lambda one: (order.index(one["class"]), -one["transactions"], one["database"]))

    def oldest(self, classes: Sequence[str], limit: int) -> list[Row]:
        """Return at most *limit* transactions in scope of each of *classes*, in their order, the oldest first."""
        counts = self.counts()
        if not any(counts[name]["transactions"] for name in classes):
            return []
        rank = F.row_number().over(Window.partitionBy("class").orderBy("last_ms", "gtrid"))
        chosen = self.rows.where(F.col("in_scope") & F.col("class").isin(*classes)).withColumn("rank", rank)
        found = chosen.where(F.col("rank") <= limit).collect()
        return sorted(found, key=lambda row: (classes.index(row["class"]), row["rank"]))

    def refusals(self, accounts: list[dict[str, Any]], *, may_lack: frozenset[str] = frozenset()) -> list[str]:
        """Return what forbids to rely on the classes: an account that differs, an audit that fails in other checks than
        *may_lack*."""
        found = [
            f"{account['what']}: {account['counted']}, not {account['expected']}"
            for account in accounts
            if account["counted"] != account["expected"]
        ]
        found += [
            f"the audit of {broker.path}: {broker.report.sentence}"
            for broker in self.brokers
            if any(
                check.verdict in (AuditVerdict.FAILS, AuditVerdict.UNPROVEN)
                for check in broker.report.checks
                if check.name not in may_lack
            )
        ]
        return found

    @cached_property
    def _owners(self) -> DataFrame:
        return reduce(DataFrame.unionAll, [broker.owners for broker in self.brokers])

    def _marked(self, columns: list[DataFrame]) -> DataFrame:
        """Return (marker, gtrid) of each row; a message id that no broker knows stands for itself."""
        found = [self._spark.createDataFrame([], "marker string, gtrid string")]
        for info, values in zip(self.database.markers, columns, strict=True):
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

    def _judged(self, markers: DataFrame) -> DataFrame:
        has_markers, partial = bool(self.database.markers), self.logs.partial
        rows = judged(
            transactions(self.branches, markers, self._decisions),
            read=[broker.number for broker in self.brokers],
            has_markers=has_markers,
            by_message=all(info.is_message_id for info in self.database.markers),
            is_complete=self.is_complete,
            coordinators=self.logs.prefixes,
            partial=partial,
        )
        return with_sources(rows, has_markers=has_markers, coordinators=self.logs.prefixes, partial=partial)

    def _later(self, rows: DataFrame) -> DataFrame | None:
        """Return the rows that orphans have by now: of transactions that committed after the snapshot."""
        if not self.database.markers:
            return None
        orphans = rows.where((F.col("class") == "orphan") & (F.col("rows") == 0)).select("gtrid").limit(RECHECKED_MAX)
        names = {bytes.fromhex(row["gtrid"]).decode(errors="replace"): row["gtrid"] for row in orphans.collect()}
        if not names:
            return None
        found: list[tuple[str, str]] = []
        for info in self.database.markers:
            if info.is_message_id:
                of_orphans = self._owners.join(F.broadcast(orphans), "gtrid").select("id", "gtrid").collect()
                ids = {str(row["id"]): row["gtrid"] for row in of_orphans}
                now = rows_now(self.request.url, info.marker, list(ids))
                found += [(f"{info.marker}:{value}", ids[value]) for value in now]
            else:
                now = rows_now(self.request.url, info.marker, list(names))
                found += [(str(info.marker), names[value]) for value in now]
        return self._spark.createDataFrame(found, "marker string, gtrid string") if found else None

    def accounts(self) -> list[dict[str, Any]]:
        """Return what was counted by classes, and the same counted at its source."""
        classes, before = self.counts(), self.counts(in_scope=False)

        def total(count: str) -> int:
            return sum(one[count] for by_class in (classes, before) for one in by_class.values())

        row = self.branches.agg(F.count("*").alias("branches"), F.sum("messages").alias("messages")).first()
        assert row is not None
        names = (
            self.branches.select("gtrid")
            .unionAll(self.markers.select("gtrid"))
            .unionAll(self._decisions.select("gtrid"))
        )
        known = names.where(self._is_known(names)).distinct().count()
        rows = sum(info.rows for info in self.database.markers)
        found = (
            ("transactions in all classes, and those before the time asked for", total("transactions"), known),
            ("branches", total("branches"), row["branches"]),
            ("messages published", total("messages"), int(row["messages"] or 0)),
            (
                "marked rows, those of other databases' transactions too",
                total("rows") + self._foreign,
                rows + self._later_rows,
            ),
            ("marked rows read by Spark", sum(self._counted), rows),
        )
        return [{"what": what, "counted": counted, "expected": expected} for what, counted, expected in found]

    def _is_known(self, rows: DataFrame) -> Column:
        gtrid = rows["gtrid"]
        return begins_with(gtrid, self._prefixes) | gtrid.startswith(UNKNOWN_ID)

    def consumers(self) -> list[dict[str, Any]]:
        """Return each group's offsets in the database, and whether they are within the journals."""
        if self.request.offsets is None:
            return []
        ends = {
            (topic, f"{broker.number}-{partition}"): end
            for broker in self.brokers
            for (topic, partition), end in broker.ends.items()
        }
        found = []
        for one in stored_offsets(self.request.url, self.request.offsets):
            end = ends.get((one.topic, one.partition))
            if end is None:
                state = "unknown: no record of the partition"
            else:
                state = "beyond the end" if one.offset > end else "within"
            found.append({**one._asdict(), "end": end, "state": state})
        return found


def _without(spark: SparkSession, branches: DataFrame, gtrids: Iterable[bytes]) -> DataFrame:
    names = [(gtrid.hex(),) for gtrid in gtrids]
    return branches.join(spark.createDataFrame(names, "gtrid string"), "gtrid", "left_anti") if names else branches


def name_of(gtrid: str) -> str:
    """Return a transaction's name as people know it."""
    return gtrid if gtrid.startswith(UNKNOWN_ID) else bytes.fromhex(gtrid).decode(errors="replace")


def came_apart(classes: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return the number of transactions in each class that should have none."""
    return {name: classes[name]["transactions"] for name in BROKEN if classes[name]["transactions"]}
