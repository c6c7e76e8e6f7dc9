"""Moving parts of the replication model: directories as lists of units, the links between them, and running masters.

A journal's unit is as many bytes as a record has at least, which say who wrote it; a link is a queue of bytes each way.
"""

import struct
from collections import deque

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import (
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkDecoder,
    Rejected,
    SnapshotChunk,
)
from meta_broker.replication.master.handshake import MasterJournal, SendProgress
from meta_broker.replication.master.in_sync_replicas import InSyncReplicas
from meta_broker.replication.master.loss_check import LossCheck
from meta_broker.replication.replica.replica import Replica, ReplicaJournal
from tests.fixtures.replica_links import facts_of, shake
from zk.brokers.replication import ReplicationNode

IDENTITY = JournalIdentity("metaq", 0)
UNIT = struct.Struct("<BHI49x")  # epoch, incarnation, unit at which the life began; as long as a record is at least


class Copy:
    """One broker's directory, and the process over it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.units: list[WriterEpoch] = []
        self.flushed = 0  # units
        self.master: MasterProcess | None = None
        self.link: Link | None = None  # as a slave
        self.is_master = False  # the directory's part: what a start makes of it
        self.rest = b""  # of a unit that is not all here
        self.watermark = 0  # units that were acknowledged, as it was written down
        self.heard = 0  # units that the master told were acknowledged
        self.is_whole = True  # nothing acknowledged is missing, as it was written down

    @property
    def lives(self) -> list[WriterEpoch]:
        return list(dict.fromkeys(self.units))

    @property
    def end(self) -> Lsn:
        return Lsn(len(self.units) * UNIT.size)

    def bytes_of(self, start: int, end: int) -> bytes:
        units = self.units[start // UNIT.size : -(-end // UNIT.size)]
        raw = b"".join(UNIT.pack(life.epoch, life.incarnation, life.lsn // UNIT.size) for life in units)
        return raw[start % UNIT.size :][: end - start]

    def power_cut(self, kept: int) -> None:
        """Keep the fsynced units, and the first *kept* of the rest."""
        del self.units[self.flushed + kept :]
        self.flushed = len(self.units)
        self.rest = b""
        self.link = self.master = None


class Link:
    """A connection: bytes under way, frame by frame, and what either end makes of them."""

    def __init__(self, slave: Copy, master: "MasterProcess") -> None:
        self.master, self.slave = master, slave
        self.to_master: deque[bytes] = deque()
        self.to_slave: deque[bytes] = deque()
        self.at_master = LinkDecoder(Handshake, FlushAck, JournalChunk)
        self.at_slave = LinkDecoder(Accept, FullResync, FetchTail, Rejected, SnapshotChunk, JournalChunk, Heartbeat)
        self.feeding: SendProgress | None = None
        self.wanted: tuple[Lsn, Lsn] | None = None  # what the master lost, and asked for
        self.fetched = b""
        holding = ReplicaJournal(tuple((*life,) for life in slave.lives), Lsn(0), slave.end)
        self.side = Replica(facts_of(IDENTITY, slave.number, slave.heard * UNIT.size), serves=False)
        self.side.progress(Lsn(slave.flushed * UNIT.size), 0)
        self.to_master.append(shake(self.side, holding).data)


class MasterProcess:
    """A master that runs, on *copy*."""

    def __init__(
        self,
        copy: Copy,
        epoch: int,
        node: ReplicationNode | None,
        section: ReplicationSection,
        now: float,
        *,
        is_interval: bool,
    ) -> None:
        is_whole = copy.is_whole and copy.watermark <= len(copy.units)
        copy.watermark = min(copy.watermark, len(copy.units))
        copy.is_whole = is_whole and not is_interval
        incarnation = max((life.incarnation for life in copy.units), default=0) + 1
        self.copy = copy
        self.epoch = epoch
        self.life = WriterEpoch(epoch, incarnation, copy.end)
        copy.units.append(self.life)
        self.links: dict[int, Link] = {}
        self.loss = LossCheck()
        self.loss.load(node, is_whole=is_whole)
        self.in_sync = InSyncReplicas(section, epoch, f"meta://{copy.number}:1", now, self.loss)
        self.in_sync.load(node, now)
        self.is_whole = is_whole or not self.loss.unconfirmed
        self.is_interval = is_interval
        self.high_watermark = Lsn(copy.watermark * UNIT.size)
        self.writing: ReplicationNode | None = None  # on its way to ZooKeeper
        self.written: ReplicationNode | None = None  # there, and the answer is on its way

    @property
    def acknowledged_here(self) -> int:
        """Units."""
        return len(self.copy.units) if self.is_interval else self.copy.flushed

    @property
    def extent(self) -> MasterJournal:
        return MasterJournal(self.copy.lives, Lsn(0), self.copy.end)
