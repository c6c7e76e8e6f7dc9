"""The master's interface for its replica senders, and the links that it refused.

A slave that is refused comes back each second, and the reason is logged once.
"""

import asyncio
import logging
from typing import Final, Protocol, TypeVar

from journal.records.header import Lsn
from journal.wal.journal import Journal
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import Handshake, Heartbeat
from meta_broker.replication.master.handshake import SendProgress, StartFetch, StartResync, StartStream
from meta_broker.store.cold_reader import ColdReader
from meta_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 1000  # remembered: any peer may send any number


class Refusals:
    """Reasons for which links were refused, by slave. Loop thread only."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}  # the last reason of each slave

    def log(self, peer: str, slave: str, reason: str) -> None:
        """Log that the link of *slave* at *peer* was refused, unless the one before was for the same reason."""
        if self._logged.get(slave) != reason:
            if len(self._logged) >= SLAVES_MAX:
                self._logged.clear()
            self._logged[slave] = reason
            log.warning("link refused peer=%s slave=%s reason=%s", peer, slave, reason)

    def clear(self, slave: str) -> None:
        """Drop the reason, as the slave was accepted: the next refusal is logged."""
        self._logged.pop(slave, None)


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
