"""Samples of a broker's journal, disk and transactions. Called on any thread."""

import os
import time
from collections.abc import Iterator

from journal.errors import StorageFailed
from journal.records.states import BranchState
from journal.records.xid import XaKey
from journal.state.checkpoint import checkpoint_numbers
from meta_broker.handlers.context import Context
from meta_broker.metrics import families as f
from meta_client.admin.families import PAUSE_S, Sample

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
