"""Samples of a broker's numbers. Called on any thread."""

import os
import time
from collections.abc import Iterator

from journal.errors import StorageFailed
from journal.records.states import BranchState
from journal.records.xid import XaKey
from journal.state.checkpoint import checkpoint_numbers
from meta_broker.handlers.context import Context
from meta_broker.metrics import families as f
from meta_broker.metrics.status import BrokerStatus, OpenBroker
from meta_broker.replication.master.master import Master
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.version import PRODUCT_VERSION
from meta_client.admin.families import PAUSE_S, Sample

PARTITIONS_AT_ONCE = 2_000  # a fraction of a millisecond


def process_samples(status: BrokerStatus) -> Iterator[Sample]:
    """Yield what is known of a broker that starts, too."""
    config = status.config
    about = {"version": PRODUCT_VERSION, "cluster": config.broker.cluster, "broker_id": str(config.broker_id)}
    if config.is_slave:
        about["slave"] = str(config.slave.id)
    yield Sample(f.BROKER, about | {"role": config.role})
    yield Sample(f.READY, not status.why_not_ready())


def connection_samples(broker: OpenBroker) -> Iterator[Sample]:
    context, server = broker.context, broker.server
    if broker.membership is not None:
        yield Sample(f.REGISTERED, broker.membership.is_registered)
    yield Sample(f.LOOP_DELAY, context.loop_delay.delays())
    yield Sample(f.CONNECTIONS, context.counters.connections)
    yield Sample(f.CONNECTIONS_LIMIT, server.limit.connections_max)
    yield Sample(f.CONNECTIONS_REFUSED, server.limit.refused)
    if server.tls is not None and (ends := server.tls.ends) is not None:
        yield Sample(f.CERTIFICATE, ends - time.time())
    for principal, limit, totals in context.accounts.totals():
        yield Sample(f.QUOTA_THROTTLED, totals.throttled_s, (principal, limit))
        yield Sample(f.QUOTA_REFUSED, totals.refused, (principal, limit))
    yield Sample(f.RECEIVED_BYTES, server.receiving.total)
    yield Sample(f.UNSENT_BYTES, server.sending.total)
    yield Sample(f.ANSWERS_WAITING, len(context.store.high_watermark))
    yield Sample(f.FETCHES_WAITING, broker.dispatcher.fetches_waiting)


def request_samples(context: Context) -> Iterator[Sample]:
    counters = context.counters
    for verb, durations in context.times.snapshots():
        if any(durations.counts):  # else a broker exports the buckets of twenty verbs that nobody uses
            yield Sample(f.REQUEST_SECONDS, durations, (verb,))
    yield Sample(f.PUTS_FAILED, counters.puts_failed)
    yield Sample(f.GETS_MISSED, counters.gets_missed)
    yield Sample(f.UNREADABLE, counters.gets_unreadable)
    for topic, traffic in context.traffic.totals():
        yield Sample(f.MESSAGES_IN, traffic.messages_in, (topic,))
        yield Sample(f.BYTES_IN, traffic.bytes_in, (topic,))
        yield Sample(f.MESSAGES_OUT, traffic.messages_out, (topic,))
        yield Sample(f.BYTES_OUT, traffic.bytes_out, (topic,))


def topic_samples(context: Context) -> Iterator[Sample]:
    label_of = context.traffic.labels.of
    partitions: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for count, (name, index) in enumerate(list(context.store.indexes.by_name.items()), 1):
        topic = label_of(name.topic)
        partitions[topic] = partitions.get(topic, 0) + 1
        sizes[topic] = sizes.get(topic, 0) + index.end - index.start
        if count % PARTITIONS_AT_ONCE == 0:
            time.sleep(PAUSE_S)
    for topic, held in partitions.items():
        yield Sample(f.PARTITIONS, held, (topic,))
        yield Sample(f.TOPIC_BYTES, sizes[topic], (topic,))
    yield Sample(f.INDEXES_REBUILDING, len(context.store.indexes.damaged))


BRANCHES_AT_ONCE = 2_000  # a fraction of a millisecond


def journal_samples(context: Context) -> Iterator[Sample]:
    store, journal = context.store, context.store.journal
    yield Sample(f.QUEUED_BYTES, journal.queued_bytes)
    yield Sample(f.BATCH_BYTES, journal.batch_bytes())
    yield Sample(f.FSYNC_SECONDS, journal.fsync_seconds())
    yield Sample(f.SEGMENTS, len(journal.segments))
    end = journal.end
    if len(journal.segments):
        yield Sample(f.JOURNAL_BYTES, end - journal.start_lsn)
    yield Sample(f.END_LSN, end)
    yield Sample(f.DURABLE_LSN, journal.flushed)
    yield Sample(f.HIGH_WATERMARK, store.high_watermark.acknowledged)
    yield Sample(f.CHECKPOINT_AGE, _checkpoint_age_s(context))
    yield Sample(f.CHECKPOINT_SECONDS, context.config.broker.checkpoint_seconds)
    yield Sample(f.CHECKPOINT_BYTES, context.config.broker.checkpoint_bytes)
    yield Sample(f.REPLAY_BYTES, max(end - store.source.durable_checkpoint_lsn, 0))


def archive_samples(context: Context) -> Iterator[Sample]:
    """Yield nothing unless consumers read the archive."""
    if (tier := context.store.tier) is None:
        return
    cache = tier.cache
    yield Sample(f.ARCHIVE_READS, tier.reads)
    yield Sample(f.ARCHIVE_HITS, cache.hits)
    yield Sample(f.ARCHIVE_DOWNLOADS, cache.downloads)
    yield Sample(f.ARCHIVE_FAILURES, cache.failures)
    yield Sample(f.ARCHIVE_BYTES, cache.bytes_downloaded)
    yield Sample(f.ARCHIVE_CACHE, cache.bytes_held)
    yield Sample(f.ARCHIVE_CACHE_MAX, cache.bytes_max)


def _checkpoint_age_s(context: Context) -> float | None:
    """Return the age of the newest checkpoint, by the wall clock if it is from before the start; None: there is none,
    or its file can't be seen."""
    if (taken_at := context.store.source.checkpointed_at) is not None:
        return time.monotonic() - taken_at
    try:
        numbers = checkpoint_numbers(context.store.journal.storage)
        written = (context.config.data / f"checkpoint.{numbers[-1]}").stat().st_mtime
    except (StorageFailed, OSError, IndexError):
        return None
    return max(time.time() - written, 0.0)


def disk_samples(context: Context) -> Iterator[Sample]:
    space = context.store.space
    yield Sample(f.DISK_FULL, space.is_full)
    yield Sample(f.DISK_FREE_MIN, space.free_bytes_min)
    try:
        found = os.statvfs(context.config.data)
    except OSError:
        return  # unknown
    yield Sample(f.DISK_FREE, found.f_frsize * found.f_bavail)
    yield Sample(f.DISK_SIZE, found.f_frsize * found.f_blocks)


def transaction_samples(context: Context) -> Iterator[Sample]:
    source, counters = context.store.source, context.counters
    state = source.state
    is_master = context.slave is None
    live = context.store.transactions.live_count if is_master else len(state.branches)
    yield Sample(f.BRANCHES, live)
    yield Sample(f.BRANCH_BYTES, state.branches_accounted_bytes)
    in_doubt, oldest_ms = 0, source.now_ms()
    for count, branch in enumerate(list(state.branches.values()), 1):
        if branch.state is BranchState.PREPARED and isinstance(branch.key, XaKey):
            in_doubt += 1
            oldest_ms = min(oldest_ms, branch.prepared_ms)
        if count % BRANCHES_AT_ONCE == 0:
            time.sleep(PAUSE_S)
    yield Sample(f.IN_DOUBT, in_doubt)
    if in_doubt:
        yield Sample(f.IN_DOUBT_AGE, max(source.now_ms() - oldest_ms, 0) / 1000)
    yield Sample(f.HEURISTICS, len(state.heuristics))
    yield Sample(f.FINDINGS, len(state.ledger))
    if is_master:
        yield Sample(f.BEGUN, counters.xa_begins, ("xa",))
        yield Sample(f.BEGUN, counters.begins - counters.xa_begins, ("local",))
        yield Sample(f.ENDED, counters.commits, ("committed",))
        yield Sample(f.ENDED, counters.rollbacks, ("rolled_back",))


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
