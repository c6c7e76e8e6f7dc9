"""Makes a certificate: reads the database first, then each broker's journal with an audit of it, then joins them.

In this order a live system does no harm: branches are prepared before the database commits, so what the snapshot has is
in the journals that are read later. What commits in between shows as an orphan, and is looked up once more.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pyspark.sql import SparkSession

from journal.errors import StorageFailed
from spark_jobs.audit.audit import keep
from spark_jobs.certificate.broker_side import JournalSide
from spark_jobs.certificate.database import column, snapshot
from spark_jobs.certificate.statement import CertificateRequest, Statement


def make_certificate(
    spark: SparkSession, request: CertificateRequest, on_progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return the certificate, unsigned. `refused` in it says why it must not be signed, if anything does.

    Raises DatabaseProblem, StorageFailed, ForeignJournal.
    """
    brokers = [JournalSide(path) for path in request.directories]
    names = [(broker.cluster, broker.number) for broker in brokers]
    if len(set(names)) < len(names):
        raise StorageFailed("two directories are of one broker: name one of them")
    with ExitStack() as kept:
        with snapshot(request.url, list(request.markers)) as database:
            on_progress(f"reading the database, as of WAL {database.wal_lsn}")
            columns = [keep(kept, column(spark, database, info)) for info in database.markers]
            counted = [rows.count() for rows in columns]  # read now: an open transaction holds back VACUUM
        for broker in brokers:
            broker.read(spark, f"mq1-{database.table_id}", kept, on_progress)
        on_progress("joining both sides")
        return Statement(spark, request, brokers, database, columns, counted, kept).made()
