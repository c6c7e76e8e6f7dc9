"""Starts on a disk too full to append: retention may make room first."""

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from journal.errors import StorageFailed
from journal.replica.follower import JournalFollower
from journal.wal.reserve import is_full
from journal.wal.storage import Storage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.store.clock import Clock
from meta_broker.store.indexes import Indexes
from meta_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)


async def open_or_free_space(
    open_store: Callable[[], MessageStore], config: BrokerConfig, clock: Clock, worker: Executor
) -> MessageStore:
    """Open the store with *open_store*; on a full disk delete what retention allows first.

    Raises as `MessageStore.open`.
    """
    try:
        return open_store()
    except StorageFailed as error:
        retention = config.retention
        # In mode sync a checkpoint may contain no more than slaves have, which is not known yet.
        if not is_full(error) or retention.hours is retention.bytes is None or config.replication.mode == "sync":
            raise
        log.warning("disk full, retention goes before the start error=%s", error)
    store = MessageStore.open_over(config, lambda *where: _open_unchanged(config, *where), clock=clock)
    with contextlib.closing(store):
        await store.checkpoints.apply_retention(worker)
    return open_store()


def _open_unchanged(config: BrokerConfig, storage: Storage, indexes: Indexes) -> JournalFollower:
    """Open the journal as a copy, which appends nothing."""
    return JournalFollower.open(storage, config.identity, config.journal, sink=indexes)
