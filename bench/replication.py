"""What a slave costs its master, how fast a new one catches up, and how soon one takes its master's place."""

import time
from pathlib import Path

from bench.recovery import GB, directory_for, fill, prepare_branches, started, store_in
from bench.result import Result
from meta_broker.replication.slave_file import SlaveFacts, SlaveFile
from zk.embedded import EmbeddedZooKeeper
from zk.replication import ReplicationNode, write_replication
from zk.session import ZooKeeperSession

KIB = 1024
RECORD_BYTES = 8 * KIB


def promote(case: str, total: int, branches: int) -> Result:
    """Seconds from the command until a slave of *total* bytes and *branches* in doubt serves in its master's place.

    The floor is a start of the same broker without the promotion.
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
                floor_s = again.start_s
    return Result(case, promoted.start_s, "s", floor_s, {"journal_mb": total // 1_000_000, "in_doubt": branches})


def _follow(data: Path, zookeeper: str, end: int) -> None:
    """Make *data* a slave's, which is in sync with a master that is gone."""
    facts = SlaveFacts(
        cluster="metaq",
        broker_id=0,
        slave_id=1,
        master="meta://127.0.0.1:1",
        epoch=1,
        end=end,
        fence=end,
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
