"""A Spark program that sends the lines of files to a topic, until it is killed or has sent them all.

    python -m tests.crash.sink_query ZOOKEEPER TOPIC DIRECTORY MASTER TRIGGER

Reads DIRECTORY/in, one file a batch; keeps its checkpoint in DIRECTORY/checkpoint. TRIGGER `all` ends with the files.
"""

import sys

from spark_jobs.formats import register
from spark_jobs.source.session import spark_session
from tests.fixtures.spark_cluster import INTERPRETED


def main(zookeeper: str, topic: str, directory: str, master: str, trigger: str) -> None:
    with spark_session(master, name="sink", options=INTERPRETED) as spark:
        register(spark)
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{directory}/in")
        rows = lines.repartition(2).selectExpr("value AS payload", "value AS key")
        writer = rows.writeStream.format("metaq").options(zookeeper=zookeeper, topic=topic)
        writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
        query = (writer.trigger(availableNow=True) if trigger == "all" else writer).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
