"""Samples of a master's slaves, or of a slave. Called on any thread."""

import time
from collections.abc import Iterator

from meta_broker.metrics import families as f
from meta_broker.replication.master.master import Master
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_client.admin.families import Sample


def master_samples(master: Master) -> Iterator[Sample]:
    in_sync, section = master.in_sync, master.section
    members, now, end = in_sync.members, time.monotonic(), master.journal.end
    yield Sample(f.IN_SYNC, len(members))
    if section.mode == "sync":
        yield Sample(f.IN_SYNC_MIN, section.in_sync_min)
        yield Sample(f.REFUSING, bool(master.why_refusing()))
        yield Sample(f.UNREPLICATED, max(master.unreplicated_bytes, 0))
    for slave_id, replica in sorted(in_sync.slaves.copy().items()):
        label = (str(slave_id),)
        yield Sample(f.REPLICA_CONNECTED, replica.is_linked, label)
        yield Sample(f.REPLICA_IN_SYNC, slave_id in members, label)
        if (reported := replica.reported) is not None:
            behind = max(end - reported, 0)
            yield Sample(f.REPLICA_LAG_BYTES, behind, label)
            yield Sample(f.REPLICA_LAG_SECONDS, max(now - replica.caught_up_at, 0.0) if behind else 0, label)


def slave_samples(slave: ReplicaReceiver) -> Iterator[Sample]:
    if (facts := slave.facts).heard_ms > 0:  # it has ever been in touch
        lag = slave.lag()
        yield Sample(f.SLAVE_HEARTBEAT, lag.silent_ms / 1000)
        if slave.is_following:  # else its master may have more, and have taken it out of the set
            yield Sample(f.SLAVE_LAG_BYTES, lag.bytes)
            yield Sample(f.SLAVE_IN_SYNC, facts.in_sync)
