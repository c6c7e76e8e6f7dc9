"""A start on a disk that is too full for it: it has to append, and retention may first make room."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from journal.errors import StorageFailed
from journal.follower import JournalFollower
from journal.open_journal import JournalConfig
from journal.reserve import is_full
from journal.segments import Identity
from journal.storage import DirectoryStorage
from meta_broker.clock import Clock
from meta_broker.config import BrokerConfig
from meta_broker.store.indexes import Indexes
from meta_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)


async def opened_with_room(
    open_store: Callable[[], MessageStore], config: BrokerConfig, clock: Clock, worker: Executor
) -> MessageStore:
    """What *open_store* opens; where the disk is full, and *config* lets segments go, once those are deleted.

    Raises as `MessageStore.open`.
    """
    try:
        return open_store()
    except StorageFailed as error:
        retention = config.retention
        # In mode sync a checkpoint may hold no more than slaves have, and nobody has said yet what that is.
        if not is_full(error) or retention.hours is retention.bytes is None or config.replication.mode == "sync":
            raise
        log.warning("disk full, retention goes before the start error=%s", error)
    store = MessageStore.open_over(config, lambda *where: _open_unchanged(config, *where), clock=clock)
    try:
        await store.apply_retention(asyncio.get_running_loop(), worker)
    finally:
        store.close()
    return open_store()


def _open_unchanged(config: BrokerConfig, storage: DirectoryStorage, indexes: Indexes) -> JournalFollower:
    """As a copy, to which nobody appends."""
    return JournalFollower.open(
        storage,
        Identity(config.broker.cluster, config.broker_id),
        JournalConfig(segment_bytes=config.broker.segment_bytes, flush=config.flush),
        sink=indexes,
    )
