"""The master's interface for its replica senders."""

import asyncio
from typing import Protocol, TypeVar

from journal.records.header import Lsn
from journal.wal.journal import Journal
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import Handshake, Heartbeat
from meta_broker.replication.master.handshake import SendProgress, StartFetch, StartResync, StartStream
from meta_broker.replication.master.refusals import Refusals
from meta_broker.store.cold_reader import ColdReader
from meta_broker.store.message_store import MessageStore

S = TypeVar("S", contravariant=True)


class SenderOwner(Protocol[S]):
    """The master, as a replica sender sees it."""

    section: ReplicationSection
    store: MessageStore
    journal: Journal
    cold_reader: ColdReader
    refusals: Refusals
    url: str

    def decide_start(self, handshake: Handshake) -> StartStream | StartFetch | StartResync:
        """Decide how to start the slave. Raises LinkRefused."""

    def checkpoint(self) -> "asyncio.Future[bytes]":
        """Return the newest checkpoint's file; blank: the journal is complete. The future may fail with a
        JournalError.
        """

    def on_attached(self, sender: S, side: SendProgress) -> None:
        """Record that the slave was accepted. Raises LinkRefused if there are too many."""

    def fetch(self, sender: S, handshake: Handshake, divergence_lsn: Lsn) -> None:
        """Fetch the slave's tail from *divergence_lsn* on. Raises LinkRefused if another slave is sending one."""

    def on_fetched(self, sender: S, lsn: Lsn, data: bytes | memoryview) -> None:
        """Add a piece of the tail. Raises LinkRefused."""

    def on_ack(self, sender: S, side: SendProgress) -> None: ...
    def position(self, slave_id: int) -> Heartbeat: ...
    def on_closed(self, sender: S) -> None: ...
