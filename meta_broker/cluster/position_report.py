"""Tells ZooKeeper now and then how far a master's journal is, so that an older copy of its directory is noticed."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from journal.state.wall_clock import wall_clock_ms
from meta_broker.replication.stale_copy import WRITE_S
from meta_broker.store.message_store import MessageStore
from zk.brokers.journal_position import JournalPosition


class PositionReport:
    """Position of one open store. Loop thread only."""

    def __init__(self, directory: Path, store: MessageStore) -> None:
        self._directory = str(directory.absolute())[:1024]
        self._store = store
        self._told: tuple[int, int, int] | None = None
        self._told_at = 0.0

    def tick(self, write: Callable[[JournalPosition], None]) -> None:
        """Call *write* if the position moved, at once after the open and then every WRITE_S. Call it twice a second.

        Only what is acknowledged and fsynced counts: a power cut never leaves less. A master that may itself lack
        something is silent until a slave has confirmed it.
        """
        store = self._store
        if store.watermark is not None and not store.watermark.is_whole:
            return
        now = time.monotonic()
        if self._told is not None and now - self._told_at < WRITE_S:
            return
        journal = store.transactions.journal
        end = min(store.high_watermark.acknowledged, journal.flushed)
        position = JournalPosition(
            epoch=journal.epoch,
            incarnation=journal.incarnation,
            end=end,
            directory=self._directory,
            host=socket.gethostname(),
            time_ms=wall_clock_ms(),
        )
        if position.order != self._told:
            self._told, self._told_at = position.order, now
            write(position)
