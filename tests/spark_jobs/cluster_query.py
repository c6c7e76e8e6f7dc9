"""A Spark program on a cluster: audits a journal, writes rows to one topic, streams it into another, counts what is
there, and certifies the transactions of a database. One application: its executors take longer to start than to run.

python -m tests.spark_jobs.cluster_query MASTER ZOOKEEPER DIRECTORY JOURNAL DATABASE HONEST
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from click.testing import CliRunner
from pyspark.sql import SparkSession

from spark_jobs.certificate.database import Marker
from spark_jobs.certificate.join import JoinRequest
from spark_jobs.certificate.statement import make_certificate
from spark_jobs.cli.audit import audit
from spark_jobs.formats import register
from spark_jobs.source import cluster
from spark_jobs.source.session import spark_session
from tests.fixtures.spark_cluster import SETTINGS

ROWS = 40
SOLD = 3  # transactions of the database, a row and a message each


def check_audit(spark: SparkSession, master: str, honest: str) -> None:
    """Run the command on *spark*; test_cluster.py has it start one of its own."""
    with patch("spark_jobs.cli.running.spark_session", return_value=nullcontext(spark)) as started:
        done = CliRunner().invoke(audit, [honest, "--master", master, "--json"])
    assert done.exit_code == 0, done.output
    assert started.call_args.args == (master,)
    assert {check["verdict"] for check in json.loads(done.stdout)["checks"]} == {"holds"}


def main(master: str, zookeeper: str, directory: str, journal: str, database: str, honest: str) -> None:
    cluster.EXECUTORS_S = 120.0  # type: ignore[misc]  # on a machine that does much else a JVM takes its time
    with spark_session(master, name="messages", options=SETTINGS) as spark:
        register(spark)
        check_audit(spark, master, honest)
        rows = spark.range(0, ROWS, 1, 4).selectExpr("string(id) AS payload")
        rows.write.format("metaq").mode("append").options(zookeeper=zookeeper, topic="orders").save()
        source = spark.readStream.format("metaq").options(
            zookeeper=zookeeper, subscribe="orders", startingOffsets="earliest"
        )
        large = source.schema("payload BINARY").load().where("int(string(payload)) >= 10")
        sink = large.writeStream.format("metaq").options(zookeeper=zookeeper, topic="invoices")
        query = sink.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        stored = spark.read.format("metaq").schema("offset BIGINT").option("path", journal).load()
        assert stored.count() == 2 * ROWS - 10 + SOLD
        request = JoinRequest((Path(journal),), database, (Marker.parse("sold.gtrid"),), 0)
        body = make_certificate(spark, request)
        counts = {name: one["transactions"] for name, one in body["classes"].items() if one["transactions"]}
        assert (counts, body["refused"]) == ({"committed": SOLD}, []), body


if __name__ == "__main__":
    main(*sys.argv[1:])
