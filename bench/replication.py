"""Cost of a slave to its master, speed of a new slave's initial sync, and time of a promotion."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.baselines import copy_baseline
from bench.environment import Environment, environment
from bench.recovery import GB, directory_for, fill, prepare_branches, started, store_in
from bench.result import Result
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_client import Client
from zk.brokers.replication import ReplicationNode, read_replication, write_replication
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.session import ZooKeeperSession

KIB = 1024
JOIN_TIMEOUT_S = 300.0
CONFIG = '[topics.bench]\npartitions = 8\n[replication]\nmode = "{mode}"\n'

Load = Callable[[Client], tuple[int, float]]
"""Works for a while; how much was acknowledged, and in what time."""


def beside(case: str, mode: str, unit: str, load: Load, scale: float = 1.0) -> Result:
    """Measure *load* on a master whose slave follows in *mode*; the baseline is the same run without a slave."""
    with environment("sync") as on, Client(on.zookeeper) as client:
        done, elapsed = load(client)
        baseline = done / elapsed * scale
    with environment("sync", CONFIG.format(mode=mode)) as on, slave(on), Client(on.zookeeper) as client:
        wait_in_sync(on)
        done, elapsed = load(client)
    return Result(case, done / elapsed * scale, unit, baseline, {"mode": mode})


@contextlib.contextmanager
def slave(on: Environment) -> Iterator[None]:
    """Run a slave of the environment's broker from an empty directory; it ends with the block."""
    words = ["broker", "--role", "slave", "--slave-id", "1", "--data", str(on.directory / "slave"), "--id", "0"]
    words += ["--port", "0", "--zk", on.zookeeper, "--config", str(on.directory / "broker.toml"), "--flush", "sync"]
    with started(words):
        yield


def wait_in_sync(on: Environment) -> float:
    """Wait until slave 1 is in sync. Returns the seconds."""
    start = time.perf_counter()
    with ZooKeeperSession(on.zookeeper) as session:
        while (node := read_replication(session, 0).node) is None or 1 not in node.in_sync:
            if time.perf_counter() - start > JOIN_TIMEOUT_S:
                raise RuntimeError(f"the slave is not in sync after {JOIN_TIMEOUT_S:g} s: {node}")
            time.sleep(0.02)
    return time.perf_counter() - start


def catch_up(case: str, total: int) -> Result:
    """Measure the MB/s at which an empty slave receives *total* bytes, including its start.

    The baseline is that of bytes: over loopback into a file, and back.
    """
    with environment("interval:100") as on, Client(on.zookeeper) as client:
        producer, payload = client.producer(), b"x" * (64 * KIB)
        for _ in range(total // len(payload)):
            producer.send_async("bench", payload)
        producer.flush()
        start = time.perf_counter()
        with slave(on):
            wait_in_sync(on)
            elapsed = time.perf_counter() - start
        baseline = copy_baseline(on.directory, total)
    return Result(case, total / elapsed / 1e6, "MB/s", baseline.bytes_per_s / 1e6, baseline.detail())


RECORD_BYTES = 8 * KIB


def promote(case: str, total: int, branches: int) -> Result:
    """Seconds from the command until a slave of *total* bytes and *branches* in doubt serves in its master's place.

    The baseline is a start of the same broker without the promotion.
    """
    with directory_for(total) as data:
        with store_in(data) as store:
            fill(store, total // 2, RECORD_BYTES)
            prepare_branches(store, branches)
            fill(store, total - total // 2, RECORD_BYTES)
            store.last_checkpoint()
            end = store.journal.end
        with EmbeddedZooKeeper(data.parent / "zookeeper") as zookeeper:
            _follow(data, zookeeper.connect, end)
            words = [str(data), "--port", "0", "--zk", zookeeper.connect]
            with started(["promote", *words, "--yes"]) as promoted:
                assert f"{branches} branches in doubt" in promoted.said, promoted.said
                assert "epoch=2" in promoted.said, promoted.said
            with started(["broker", "--data", *words, "--id", "0"]) as again:
                baseline_s = again.start_s
    return Result(case, promoted.start_s, "s", baseline_s, {"journal_mb": total // 1_000_000, "in_doubt": branches})


def _follow(data: Path, zookeeper: str, end: int) -> None:
    """Make *data* the directory of a slave that is in sync with a master that is gone."""
    facts = SlaveFacts(
        cluster="metaq",
        broker_id=0,
        slave_id=1,
        master="meta://127.0.0.1:1",
        epoch=1,
        end=end,
        high_watermark=end,
        heard_ms=time.time_ns() // 1_000_000,
        in_sync=True,
        mode="sync",
    )
    SlaveFile(data).write(facts)
    node = ReplicationNode(epoch=1, mode="sync", in_sync=(1,), in_sync_min=1, master=facts.master)
    with ZooKeeperSession(zookeeper) as session:
        assert write_replication(session, 0, node, None) is not None


def promote_5gb(case: str) -> Result:
    """A slave with 5 GB of journal and 1,000 branches in doubt is promoted: from the command until it serves."""
    return promote(case, 5 * GB, 1_000)
