"""What the replication model moves: directories as lists of units, the links between them, and masters that run.

A journal's unit is as many bytes as a record has at least, which say who wrote it; a link is a queue of bytes each way.
"""

import struct
from collections import deque

from journal.frame import Lsn
from journal.lives import Life
from journal.segments import Identity
from meta_broker.replication.frames import (
    Anew,
    Data,
    Fetch,
    FrameDecoder,
    Hello,
    Part,
    Position,
    Refused,
    Report,
    Welcome,
    encode,
)
from meta_broker.replication.in_sync import InSync
from meta_broker.replication.master_side import Extent, MasterSide
from meta_broker.replication.section import ReplicationSection
from meta_broker.replication.slave_side import Holding, SlaveSide
from zk.replication import ReplicationNode

IDENTITY = Identity("metaq", 0)
UNIT = struct.Struct("<BHI49x")  # epoch, incarnation, unit at which the life began; as long as a record is at least


class Copy:
    """One broker's directory, and the process over it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.units: list[Life] = []
        self.flushed = 0  # units
        self.master: MasterProcess | None = None
        self.link: Link | None = None  # as a slave
        self.is_master = False  # the directory's part: what a start makes of it
        self.rest = b""  # of a unit that is not all here
        self.watermark = 0  # units that were acknowledged, as it was written down
        self.heard = 0  # units that the master told were acknowledged
        self.is_whole = True  # nothing acknowledged is missing, as it was written down

    @property
    def lives(self) -> list[Life]:
        return list(dict.fromkeys(self.units))

    @property
    def end(self) -> Lsn:
        return Lsn(len(self.units) * UNIT.size)

    def bytes_of(self, start: int, end: int) -> bytes:
        units = self.units[start // UNIT.size : -(-end // UNIT.size)]
        raw = b"".join(UNIT.pack(life.epoch, life.incarnation, life.lsn // UNIT.size) for life in units)
        return raw[start % UNIT.size :][: end - start]

    def power_cut(self, kept: int) -> None:
        """What was fsynced stays, and of the rest the first *kept* units."""
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
        self.at_master = FrameDecoder(Hello, Report, Data)
        self.at_slave = FrameDecoder(Welcome, Anew, Fetch, Refused, Part, Data, Position)
        self.feeding: MasterSide | None = None
        self.wanted: tuple[Lsn, Lsn] | None = None  # what the master lost, and asked for
        self.fetched = b""
        holding = Holding(tuple((*life,) for life in slave.lives), Lsn(0), slave.end)
        self.side = SlaveSide(IDENTITY, slave.number, holding, serves=False, product="")
        self.to_master.append(encode(self.side.hello))


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
        self.life = Life(epoch, incarnation, copy.end)
        copy.units.append(self.life)
        self.links: dict[int, Link] = {}
        self.in_sync = InSync(section, epoch, f"meta://{copy.number}:1", now)
        self.in_sync.recovered(node, now, is_whole=is_whole)
        self.authorities = node.in_sync if node is not None and node.mode == "sync" else ()
        self.is_whole = is_whole or not self.in_sync.unheard
        self.is_interval = is_interval
        self.fed: set[int] = set()
        self.fence = Lsn(copy.watermark * UNIT.size)
        self.writing: ReplicationNode | None = None  # on its way to ZooKeeper
        self.written: ReplicationNode | None = None  # there, and the answer is on its way

    def is_authority(self, slave: int) -> bool:
        """As `Master` has it."""
        return slave in self.authorities and self.fence <= self.life.lsn

    @property
    def acknowledged_here(self) -> int:
        """Units."""
        return len(self.copy.units) if self.is_interval else self.copy.flushed

    @property
    def extent(self) -> Extent:
        return Extent(self.copy.lives, Lsn(0), self.copy.end)
