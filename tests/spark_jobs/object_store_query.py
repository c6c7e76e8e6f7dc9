"""A Spark program that reads messages of an archive by its URL, and prints what its workers found.

python -m tests.spark_jobs.object_store_query URL
"""

import json
import sys

from spark_jobs.formats import register
from spark_jobs.source.session import spark_session
from tests.spark_jobs.conftest import QUICK


def main(url: str) -> None:
    with spark_session("local[2]", name="archive", options=QUICK) as spark:
        register(spark)
        messages = spark.read.format("metaq").schema("topic STRING, partition STRING, offset BIGINT, payload BINARY")
        rows = messages.option("path", url).load().collect()
        found = sorted([row["topic"], row["partition"], row["offset"], row["payload"].hex()] for row in rows)
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
