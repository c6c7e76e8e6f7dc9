"""What a commit costs after much was put: the branch's bytes are in the journal, and stay where they are."""

import time

from bench.floors import sync_floor
from bench.result import Result
from bench.stage import stage
from meta_client import Client, Xid

PAYLOAD = b"x" * 1024


def commit_after(case: str, messages: int) -> Result:
    """Milliseconds of the commit of a branch of *messages*; PREPARE has made all of them durable. Floor: an fsync."""
    with stage("sync") as on, Client(on.zookeeper) as client:
        producer = client.producer(qualifier="bench")
        producer.tpc_begin(Xid.of("big", "bench"), topics=("bench",))
        started = time.perf_counter()
        for _ in range(messages):
            producer.send_async("bench", PAYLOAD)
        assert producer.tpc_prepare()
        prepared = time.perf_counter()
        producer.tpc_commit()
        committed = time.perf_counter()
        memory = on.memory()
        floor_ms = 1000 / sync_floor(on.directory)
    detail = {
        "put_mb_s": round(messages * len(PAYLOAD) / (prepared - started) / 1e6),
        "broker_mb": round(memory["rss"]),
    }
    return Result(case, (committed - prepared) * 1000, "ms", floor_ms, detail)
