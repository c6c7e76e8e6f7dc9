"""Makes a certificate: joins both sides, and states what came of it."""

from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.certificate.join import JoinRequest, Progress, joined_sides
from spark_jobs.certificate.statement import Statement


def make_certificate(
    spark: SparkSession, request: JoinRequest, on_progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Return the certificate, unsigned. `refused` in it says why it must not be signed, if anything does.

    Raises DatabaseProblem, StorageFailed, ForeignJournal.
    """
    with joined_sides(spark, request, on_progress) as sides:
        return Statement(sides).made()
