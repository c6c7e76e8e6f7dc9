"""Cost of a commit after much was put: the branch's bytes are in the journal and stay there."""

import time

from bench.baselines import fsync_baseline
from bench.environment import environment
from bench.result import Result
from meta_client import Client, Xid

PAYLOAD = b"x" * 1024


def commit_after(case: str, messages: int) -> Result:
    """Milliseconds of the commit of a branch of *messages*; PREPARE has made all of them durable. Floor: an fsync."""
    with environment("sync") as on, Client(on.zookeeper) as client:
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
        baseline_ms = 1000 / fsync_baseline(on.directory)
    detail = {
        "put_mb_s": round(messages * len(PAYLOAD) / (prepared - started) / 1e6),
        "broker_mb": round(memory["rss"]),
    }
    return Result(case, (committed - prepared) * 1000, "ms", baseline_ms, detail)
