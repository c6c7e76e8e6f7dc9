"""A Spark program on a cluster: writes rows to one topic, streams it into another, and counts what is there.

python -m tests.spark_jobs.cluster_query MASTER ZOOKEEPER DIRECTORY JOURNAL
"""

import sys

from spark_jobs.formats import register
from spark_jobs.source.session import spark_session
from tests.fixtures.spark_cluster import SETTINGS

ROWS = 40


def main(master: str, zookeeper: str, directory: str, journal: str) -> None:
    with spark_session(master, name="messages", options=SETTINGS) as spark:
        register(spark)
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
        assert stored.count() == 2 * ROWS - 10


if __name__ == "__main__":
    main(*sys.argv[1:])
