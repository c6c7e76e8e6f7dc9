"""Joins a database with brokers' journals as a certificate does, and lists what came apart, each with its remedy."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from meta_client.operations.branch_text import verbs_in
from meta_client.transactions.names import TableName
from spark_jobs.certificate.join import JoinedSides, JoinRequest, OnStep, joined_sides, name_of
from spark_jobs.certificate.statement import sentence
from spark_jobs.reconciliation.apart import LISTED, Apart, BranchSide, Content, MarkerSide
from spark_jobs.reconciliation.remedies import remedy_for

FORMAT: Final = 1
LOST: Final = frozenset({"offsets"})  # of a restored broker some are given up, which takes no branch away
PARTS_MAX: Final = 100  # branches, partitions and rows that are told of one transaction


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts from ZooKeeper; None: it was not asked. *noted*: by table id, the generation that resolvers have noted, if
    any. *brokers*: every broker with a node."""

    noted: dict[str, int]
    brokers: frozenset[int]


def reconcile(
    spark: SparkSession,
    request: JoinRequest,
    facts: ClusterFacts | None,
    limit: int,
    on_progress: OnStep = lambda _: None,
) -> dict[str, Any]:
    """Return the reconciliation. At most *limit* transactions of each class are listed, the oldest first; all are
    counted. *facts* must be older than this call: resolvers raise generations meanwhile.

    Raises DatabaseProblem, StorageFailed, ForeignJournal.
    """
    with joined_sides(spark, request, on_progress, with_contents=True) as sides:
        on_progress("listing what came apart")
        return _Reconciliation(spark, sides, facts, limit).made()


class _Reconciliation:
    def __init__(self, spark: SparkSession, sides: JoinedSides, facts: ClusterFacts | None, limit: int) -> None:
        self._spark = spark
        self._sides = sides
        self._facts = facts
        self._limit = limit
        assert sides.database.table_id is not None, "only coordinators do without, and none is named"
        self._table_id = sides.database.table_id
        self._table = TableName(self._table_id)
        self._noted = None if facts is None else facts.noted.get(self._table_id, 0)
        self._is_restored = None if self._noted is None else sides.database.generation < self._noted

    def made(self) -> dict[str, Any]:
        sides = self._sides
        classes, accounts = sides.counts(), sides.accounts()
        listed = self._listed()
        refused = sides.refusals(accounts, may_lack=LOST)
        apart = {name: classes[name]["transactions"] for name in LISTED if classes[name]["transactions"]}
        consumers = sides.consumers()
        needs_person = (
            bool(refused or self._is_restored or classes["unknown"]["transactions"])
            or any(one["needs_person"] for one in listed)
            or any(apart.get(name, 0) > self._limit for name in LISTED)
            or any(one["state"] != "within" for one in consumers)
        )
        return {
            "format": FORMAT,
            "sentence": sentence(classes, {name: count for name, count in apart.items() if name != "in doubt"}),
            "needs_person": needs_person,
            "refused": refused,
            "database": self._database(),
            "brokers": [
                {
                    "broker": broker.number,
                    "directory": str(broker.path),
                    "first_lsn": broker.report.totals.first_lsn,
                    "end_lsn": broker.report.totals.end_lsn,
                    "audit": broker.report.sentence,
                    "epochs": broker.epochs,
                }
                for broker in sides.brokers
            ],
            "brokers_not_given": None
            if self._facts is None
            else sorted(self._facts.brokers - {broker.number for broker in sides.brokers}),
            "classes": classes,
            "accounts": accounts,
            "transactions": listed,
            "not_listed": {name: count - self._limit for name, count in apart.items() if count > self._limit},
            "consumers": consumers,
            "then": list(self._then()),
        }

    def _database(self) -> dict[str, Any]:
        database = self._sides.database
        return {
            "place": database.place,
            "decision_table": database.table_id,
            "wal_lsn": database.wal_lsn,
            "read_at": database.read_at,
            "generation": database.generation,
            "noted": self._noted,
            "is_restored": self._is_restored,
            "markers": [str(info.marker) for info in database.markers],
        }

    def _then(self) -> list[str]:
        """Return the commands that end the reconciliation."""
        return ['metaq txn init --restored --database "$DATABASE_URL"'] if self._is_restored else []

    def _listed(self) -> list[dict[str, Any]]:
        has_markers = bool(self._sides.database.markers)
        found = []
        for one in self._apart():
            remedy = remedy_for(one, self._table, has_markers=has_markers, is_newest=self._is_restored is False)
            found.append({**asdict(one), **asdict(remedy), "verbs": verbs_in(remedy.commands)})
        return found

    def _apart(self) -> list[Apart]:
        chosen = self._sides.oldest(LISTED, self._limit)
        if not chosen:
            return []
        names = self._spark.createDataFrame([(row["gtrid"],) for row in chosen], "gtrid string")
        branches, rows = self._branches(names), self._rows(names)
        return [
            Apart(
                kind=row["class"],
                name=name_of(row["gtrid"]),
                time_ms=row["last_ms"],
                decision=row["outcome"],
                absent=tuple(row["absent"]),
                branches=tuple(branches[row["gtrid"]]),
                rows=tuple(rows[row["gtrid"]]),
            )
            for row in chosen
        ]

    def _branches(self, names: DataFrame) -> dict[str, list[BranchSide]]:
        contents: dict[tuple[int, int], list[Content]] = defaultdict(list)
        for broker in self._sides.brokers:
            for row in _first(broker.contents, names, "topic", "partition"):
                place = row["broker"], row["branch_lsn"]
                contents[place].append(Content(row["topic"], row["partition"], row["messages"], row["offset"]))
        begins = {broker.number: broker.epochs[-1]["since_lsn"] for broker in self._sides.brokers if broker.epochs}
        found: dict[str, list[BranchSide]] = defaultdict(list)
        for row in _first(self._sides.branches, names, "broker", "branch_lsn"):
            broker, lsn = row["broker"], row["branch_lsn"]
            parts, is_earlier = tuple(contents[broker, lsn]), lsn < begins.get(broker, 0)
            found[row["gtrid"]].append(BranchSide(broker, row["state"], lsn, row["last_lsn"], parts, is_earlier))
        return found

    def _rows(self, names: DataFrame) -> dict[str, list[MarkerSide]]:
        of_messages = {str(info.marker) for info in self._sides.database.markers if info.is_message_id}
        counted = self._sides.markers.groupBy("gtrid", "marker").agg(F.count("*").alias("rows"))
        found: dict[str, list[MarkerSide]] = defaultdict(list)
        for row in _first(counted, names, "marker"):
            gtrid = row["gtrid"]
            column, _, number = row["marker"].rpartition(":")
            is_message_id = column in of_messages
            value, column = (number, column) if is_message_id else (name_of(gtrid), row["marker"])
            found[gtrid].append(MarkerSide(column, value, row["rows"], is_message_id))
        return found


def _first(rows: DataFrame, names: DataFrame, *order: str) -> list[Any]:
    """Return the rows of the transactions in *names*, at most PARTS_MAX of each."""
    ranked = rows.join(F.broadcast(names), "gtrid").withColumn(
        "rank", F.row_number().over(Window.partitionBy("gtrid").orderBy(*order))
    )
    return ranked.where(F.col("rank") <= PARTS_MAX).orderBy("gtrid", *order).collect()
