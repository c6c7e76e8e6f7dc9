"""One process of a sink: an attempt of a task, or a driver that ends a batch. It kills itself at a step.

    python -m tests.crash.sink_child ROLE ZOOKEEPER TOPIC QUERY BATCH STEP ARGUMENT

ROLE `task`: ARGUMENT is the rows as JSON; writes the branches it has prepared to stdout. ROLE `commit`: ARGUMENT is
branches as JSON. A step is before or after a request to a broker, or a read or a write of the decision; 0: never.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from meta_client.batches.names import BatchName, BranchName
from meta_client.net.connection import Connection
from spark_jobs.messages.options import ClusterAddress
from spark_jobs.sink.commit import BatchEnd, connected
from spark_jobs.sink.options import WriteOptions
from spark_jobs.sink.writers import write_task
from zk.session.session import ZooKeeperSession


def options_of(zookeeper: str, topic: str) -> WriteOptions:
    return WriteOptions(ClusterAddress(zookeeper), topic, "", is_named=False, timeout_s=600, checkpoint="")


def rows_of(rows: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    """*rows*: partition and payload."""
    partitions, payloads = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict({"partition": list(partitions), "payload": list(payloads)})


def die_at(step: int) -> None:
    """SIGKILL this process at its *step*."""
    steps = 0

    def passed() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            passed()
            result = real(*args, **options)
            passed()
            return result

        setattr(owner, name, call)

    around(Connection, "submit")
    around(ZooKeeperSession, "exchange")
    around(ZooKeeperSession, "read")


def main(role: str, zookeeper: str, topic: str, query: str, batch: str, step: str, argument: str) -> None:
    die_at(int(step))
    name = BatchName(query, int(batch))
    if role == "task":
        prepared = write_task(options_of(zookeeper, topic), name, iter([rows_of(json.loads(argument))]))
        print(json.dumps(prepared.branches))
        return
    with connected(ClusterAddress(zookeeper)) as client:
        BatchEnd(client, query).commit(name, tuple(BranchName(*each) for each in json.loads(argument)))


if __name__ == "__main__":
    main(*sys.argv[1:])
