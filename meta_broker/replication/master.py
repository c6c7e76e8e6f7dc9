"""The master's part in a replication: its links, who is in sync, and how far everybody is."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor

from journal.checkpoint import encode_checkpoint, read_newest
from journal.errors import StorageFailed
from journal.frame import Lsn
from journal.lives import Life
from journal.segments import SEGMENT_HEADER_BYTES
from journal.storage import Storage
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.feeder import Feeder
from meta_broker.replication.frames import Hello, Position
from meta_broker.replication.in_sync import SLAVES_MAX, InSync, changed
from meta_broker.replication.lost_tail import LostTail, TailFile
from meta_broker.replication.master_side import Extent, FromAnew, Lacking, MasterSide, Share, drops, judge
from meta_broker.replication.section import ReplicationSection
from meta_broker.store.far_reads import FarReads
from meta_broker.store.message_store import MessageStore
from zk.replication import ReplicationNode

log = logging.getLogger(__name__)

POSITION_DELAY_S = 0.005  # a fence that moved is told with the next data, or after so long
# In mode sync, fsynced here and not there; beyond, sockets are not read: a slave that is slower sets the pace.
UNREPLICATED_BYTES_MAX = 32 * 1024 * 1024
LAST_WORD_S = 2.0  # at a clean stop, for slaves to take the rest

# Writes a node to ZooKeeper, in its own time, then calls the function on the loop thread.
NodeWriter = Callable[[ReplicationNode, Callable[[ReplicationNode], object]], None]


class Master:
    """Loop thread only. Make it once the store is open; `begin`, before anybody is served; `close` once nobody is."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        section: ReplicationSection,
        url: str,
        worker: Executor,
        progress: Callable[[], object],
        write_node: NodeWriter | None,
        lost: Callable[[LostTail], object],
        dropped: frozenset[Life] = frozenset(),
    ) -> None:
        """*progress*: let the fence move. *write_node* None: there is no ZooKeeper.

        *lost* is told what this master lost, as a slave has it: it is to close, put that into its journal, and begin
        again. Nothing is acknowledged from then on. *dropped*: lives that went so before.
        """
        self.section = section
        self.store = store
        self.journal = store.transactions.journal
        self.reads = FarReads()
        self.url = url
        self.in_sync = InSync(section, self.journal.epoch, url, loop.time())
        self._loop = loop
        self._worker = worker
        self._progress = progress
        self._write_node = write_node
        self._lost = lost
        self._dropped = dropped - {store.source.state.lives[-1]}
        self._authorities: frozenset[int] = frozenset()  # slaves in sync when this master began
        self._fed: set[int] = set()  # of those, whoever was let in
        self._came_empty: set[int] = set()  # all that they have is from here: they can't say that nothing is missing
        self._fetching: tuple[Feeder, TailFile, Lsn] | None = None  # from whom, what came, up to where
        self._is_lost_told = False
        self._feeders: dict[int, Feeder] = {}  # of slaves that were let in, by id
        self._greeting: set[Feeder] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tell_due: asyncio.TimerHandle | None = None
        self._told = Lsn(0)  # the fence
        self._late_below = Lsn(0)
        self._is_closing = False
        self._drained = asyncio.Event()  # while it closes: every slave has what there is
        self._is_closed = False

    def begin(self, node: ReplicationNode | None) -> None:
        """*node* is what ZooKeeper had when this master was allowed to begin."""
        if node is not None and node.mode == "sync":
            self._authorities = frozenset(node.in_sync)
        mark = self.store.watermark
        self.in_sync.recovered(node, self._loop.time(), is_whole=mark is None or mark.is_whole)
        if self.in_sync.unheard:
            log.warning(
                "acknowledged messages may be missing here, waiting for one of the slaves that have them slaves=%s",
                ",".join(map(str, sorted(self.in_sync.unheard))),
            )
        elif mark is not None:
            mark.is_whole = True  # there is nobody to ask
        self._limit()
        if self.section.mode == "sync" and self._write_node is None:
            log.warning("no ZooKeeper: after this master's end nobody can tell which slave was in sync")
        self._beat()

    def attach(self, transport: asyncio.Transport, name: str) -> asyncio.Protocol | None:
        """Who speaks on *transport* from now on; None: there are too many links."""
        if self._is_closing or len(self._greeting) >= SLAVES_MAX:
            return None
        feeder = Feeder(self, self._loop, transport, name)
        self._greeting.add(feeder)
        self.journal.tell_written(True)
        return feeder

    def pump(self) -> None:
        """The journal has more: send it."""
        for feeder in self._feeders.values():
            feeder.pump()

    def fence_moved(self) -> None:
        """Tell slaves, soon."""
        if self._feeders and self._tell_due is None and self.store.fence.acknowledged > self._told:
            self._tell_due = self._loop.call_later(POSITION_DELAY_S, self._tell)

    @property
    def unreplicated_bytes(self) -> int:
        """Acknowledged here, if it were for this broker alone, and not by the slaves that must have it."""
        return self.journal.acknowledged_here - self.store.fence.acknowledged

    def late(self, lsn: Lsn) -> None:
        """What was written below *lsn* is not replicated in time."""
        self._late_below = lsn

    def why_refusing(self) -> str:
        """Why nothing new can be written at present; blank: it can."""
        if self.in_sync.is_refusing:
            return (
                f"slaves in sync: {','.join(map(str, self.in_sync.members)) or 'none'}, not all of them there: "
                f"{self.section.in_sync_min} must be"
            )
        if self.in_sync.unheard and self._late_below > self.store.fence.acknowledged:
            slaves = ", ".join(map(str, sorted(self.in_sync.unheard)))
            return (
                f"this master may have lost what was acknowledged, and no slave that has it is heard: one of {slaves}"
            )
        if self._late_below > self.store.fence.acknowledged:
            return "what was written before is not yet replicated"
        return ""

    @property
    def is_full(self) -> bool:
        """Whether so much waits for slaves that producers must, too."""
        return (
            self.section.mode == "sync"
            and self.unreplicated_bytes > UNREPLICATED_BYTES_MAX
            and not self.why_refusing()  # else they are told
        )

    def links(self) -> list[tuple[int, Feeder | None]]:
        """Every slave that is known, with its link if it has one."""
        return [(slave_id, self._feeders.get(slave_id)) for slave_id in sorted(self.in_sync.slaves)]

    def serving(self) -> list[tuple[int, Lsn]]:
        """The slaves that answer gets and fetches, and what they have."""
        return [
            (slave_id, feeder.side.reported)
            for slave_id, feeder in sorted(self._feeders.items())
            if feeder.hello is not None and feeder.hello.serves and feeder.side is not None and feeder.side.reported
        ]

    async def close(self) -> None:
        """Give slaves a moment to take the rest, then end every link. What they lack stays unacknowledged: the last
        checkpoint must not hold it. Idempotent."""
        self._is_closing = True
        self._maybe_drained()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), LAST_WORD_S)
        for timer in (self._timer, self._tell_due):
            if timer is not None:
                timer.cancel()
        for feeder in [*self._feeders.values(), *self._greeting]:
            feeder.drop("this master stops")
        self._is_closed = True
        await self.reads.close()

    # -- feeder.FeederOwner -----------------------------------------------------------------------------------

    def judged(self, hello: Hello) -> Share | Lacking | FromAnew:
        journal = self.journal
        first = Lsn(journal.start_lsn - SEGMENT_HEADER_BYTES)
        extent = Extent(self.store.transactions.state.lives, first, journal.end)
        is_authority, was_fed = self._is_authority(hello, extent), hello.slave_id in self._fed
        found = judge(
            hello, journal.identity, extent, is_authority=is_authority, was_fed=was_fed, dropped=self._dropped
        )
        if self.in_sync.unheard and drops(hello, found):
            raise LinkRefused(
                f"this master may have lost what that slave has, and nobody is to cut it before one of slaves "
                f"{', '.join(map(str, sorted(self.in_sync.unheard)))} is heard, which were in sync"
            )
        if isinstance(found, FromAnew) and found.is_empty:
            if hello.slave_id in self.in_sync.unheard:
                # Fed, it would pass for one that has everything: with its next link, or at this master's next start.
                raise LinkRefused(
                    f"this master may have lost what slave {hello.slave_id} had, which was in sync and has nothing "
                    f"now: bring its directory back, or begin another slave, with a number that was never in sync"
                )
            self._came_empty.add(hello.slave_id)
        return found

    def _is_authority(self, hello: Hello, ours: Extent) -> bool:
        """May that slave have what was acknowledged and is not here? Not once something of this life is acknowledged:
        then a slave in sync has said that nothing is missing, or all of them were given up."""
        own = ours.lives[-1]
        if self.section.mode == "async" or self.store.fence.acknowledged > own.lsn:
            return False
        if self._write_node is not None:
            return hello.slave_id in self._authorities
        # Without ZooKeeper nobody knows who was in sync. One that has all that was found here, and more, may be.
        return hello.end > own.lsn and bool(hello.lives) and hello.lives[-1] == ours.lives[-2:][0]

    def fetch(self, feeder: Feeder, hello: Hello, parting: Lsn) -> None:
        if self._fetching is not None:
            raise LinkRefused("this master fetches from another slave what it lost")
        log.warning("lost here, fetching it from=%d to=%d slave=%d", parting, hello.end, hello.slave_id)
        try:
            self._fetching = feeder, TailFile(self.journal.storage.path, parting), Lsn(hello.end)
        except StorageFailed as error:
            raise LinkRefused(str(error)) from error
        self.in_sync.doubt(hello.slave_id)
        if self.store.watermark is not None:
            self.store.watermark.is_whole = False

    def fetched(self, feeder: Feeder, lsn: Lsn, data: bytes | memoryview) -> None:
        if self._fetching is None or self._fetching[0] is not feeder:
            raise LinkRefused("DATA that nobody asked for")
        _, file, end = self._fetching
        if lsn != file.end or lsn + len(data) > end:
            raise LinkRefused(f"it sent LSN {lsn} where {file.end} follows, up to {end}")
        try:
            file.add(data)
        except StorageFailed as error:
            raise LinkRefused(str(error)) from error
        if file.end == end:
            assert feeder.hello is not None
            self._fetching, self._is_lost_told = None, True
            lives = self.store.transactions.state.lives
            dropped = frozenset(life for life in lives if life.lsn >= file.parting)
            self._lost(LostTail(file.parting, end, feeder.hello.slave_id, file, dropped))

    def _give_up_fetching(self) -> None:
        if self._fetching is not None:
            self._fetching[1].close()
            self._fetching = None

    def checkpoint(self) -> "asyncio.Future[bytes]":
        if self.journal.start_lsn == SEGMENT_HEADER_BYTES:
            whole: asyncio.Future[bytes] = self._loop.create_future()
            whole.set_result(b"")
            return whole
        return self._loop.run_in_executor(self._worker, _newest_checkpoint, self.journal.storage)

    def linked(self, feeder: Feeder, side: MasterSide) -> None:
        former = self._feeders.get(side.slave_id)
        self.in_sync.linked(side.slave_id, self.journal.end, self._loop.time(), begins_anew=not side.is_shared)
        self._greeting.discard(feeder)
        self._feeders[side.slave_id] = feeder
        if side.slave_id in self._authorities:
            self._fed.add(side.slave_id)
        if former is not None:
            former.drop("the same slave has another link now")

    def reported(self, feeder: Feeder, side: MasterSide) -> None:
        if self._feeders.get(side.slave_id) is feeder and side.reported is not None:
            self.in_sync.heard(side.slave_id, side.reported, self.journal.end, self._loop.time())
            may_confirm = side.is_shared and side.slave_id not in self._came_empty and not self._is_lost_told
            if may_confirm and self.in_sync.confirmed(side.slave_id):
                self._confirmed(side.slave_id)
            if self.section.mode == "sync":
                self._limit()
            self._maybe_drained()

    def _confirmed(self, slave_id: int) -> None:
        """A slave in sync has no more than this master: what others have was not acknowledged."""
        log.info("nothing that was acknowledged is missing here slave=%d", slave_id)
        if self.store.watermark is not None:
            self.store.watermark.is_whole = True
        if self._fetching is not None:
            feeder = self._fetching[0]
            self._give_up_fetching()
            feeder.drop("a slave in sync has no more than this master")

    def position(self, slave_id: int) -> Position:
        self._told = self.store.fence.acknowledged
        is_in_sync = slave_id in self.in_sync.members
        return Position(self._told, self.journal.end, time.time_ns() // 1_000_000, is_in_sync, self.section.mode)

    def gone(self, feeder: Feeder) -> None:
        self._greeting.discard(feeder)
        if self._fetching is not None and self._fetching[0] is feeder:
            self._give_up_fetching()
        slave_id = feeder.side.slave_id if feeder.side is not None else None
        if slave_id is not None and self._feeders.get(slave_id) is feeder:
            del self._feeders[slave_id]
            self.in_sync.lost(slave_id)
            log.warning("slave gone slave=%d peer=%s", slave_id, feeder.name)
        if not self._feeders and not self._greeting:
            self.journal.tell_written(False)
        self._maybe_drained()

    # -- in its own time --------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now, silence_s = self._loop.time(), self.section.silence_ms / 1000
        self._timer = self._loop.call_later(self.section.heartbeat_ms / 1000, self._beat)
        # First: after a pause it forgives.
        wanted = self.in_sync.look(self.store.fence.acknowledged, now, self.journal.flushed)
        if self.in_sync.wants_flush:
            self.journal.flush()
        for slave_id, feeder in list(self._feeders.items()):
            if now - max(feeder.heard, self.in_sync.slaves[slave_id].heard) > silence_s:
                feeder.drop(f"silent for {silence_s:g} s")
            else:
                feeder.tell()
        for feeder in [feeder for feeder in self._greeting if now - feeder.heard > silence_s]:
            feeder.drop(f"no HELLO for {silence_s:g} s")
        if wanted is None:
            return
        if self._write_node is None:
            self._node_written(wanted)
        else:
            self._write_node(wanted, lambda node: self._loop.call_soon_threadsafe(self._node_written, node))
            self._limit()

    def _node_written(self, node: ReplicationNode) -> None:
        before = self.in_sync.node
        self.in_sync.written(node)
        if (before.in_sync if before is not None else ()) != node.in_sync:
            log.warning("in-sync set changed mode=%s %s", node.mode, changed(before, node))
        self._limit()

    def _limit(self) -> None:
        """What slaves have may have moved the fence."""
        if self._is_closed or self._is_lost_told:
            return
        replicated = self.in_sync.replicated
        self.store.limit_to(replicated)
        if replicated > self.store.fence.acknowledged:
            self._progress()

    def _maybe_drained(self) -> None:
        if self._is_closing and (
            self.journal.failure is not None
            or all(feeder.has_all_below(self.journal.end) for feeder in self._feeders.values())
        ):
            self._drained.set()

    def _tell(self) -> None:
        self._tell_due = None
        for feeder in self._feeders.values():
            feeder.tell()


def _newest_checkpoint(storage: Storage) -> bytes:
    """The newest checkpoint that reads back. On the worker thread. Raises LinkRefused, StorageFailed."""
    newest = read_newest(storage)
    if newest.content is None:
        raise LinkRefused(f"{storage.path} has no checkpoint that reads back: run `metaq checkpoint` on the master")
    return bytes(encode_checkpoint(newest.content[0]))
