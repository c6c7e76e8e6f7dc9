"""The master of a replication: its links, the in-sync set and the high watermark."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.wal.segments import SEGMENT_HEADER_BYTES
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import Handshake, Heartbeat
from meta_broker.replication.lost_tail import LostTail
from meta_broker.replication.master.handshake import (
    MasterJournal,
    SendProgress,
    StartFetch,
    StartResync,
    StartStream,
    check_cluster_id,
)
from meta_broker.replication.master.handshake_reads import read_snapshot
from meta_broker.replication.master.in_sync_replicas import SLAVES_MAX, InSyncReplicas, changed
from meta_broker.replication.master.loss_check import LossCheck, LossState
from meta_broker.replication.master.replica_sender import ReplicaSender
from meta_broker.replication.master.sender_owner import Refusals
from meta_broker.replication.master.tail_fetch import TailFetch
from meta_broker.store.cold_reader import ColdReader
from meta_broker.store.message_store import MessageStore
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

log = logging.getLogger(__name__)

POSITION_DELAY_S = 0.005  # a moved high watermark is sent with the next data, or after this delay
# Mode sync: fsynced here and not on the slaves. Beyond it sockets are not read: the slowest slave sets the pace.
UNREPLICATED_BYTES_MAX = 32 * 1024 * 1024
LAST_WORD_S = 2.0  # time for slaves to take the rest at a clean stop

# Writes a node to ZooKeeper asynchronously, then calls the function from its own thread.
NodeWriter = Callable[[ReplicationNode, Callable[[ReplicationNode], object]], None]


class Master:
    """Replicates a journal to its slaves. Loop thread only.

    Construct it once the store is open, call `begin` before the first client is served, and `close` after the last
    one.
    """

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
        dropped: frozenset[WriterEpoch] = frozenset(),
        *,
        cluster_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        """*progress* lets the high watermark advance. *write_node* None: there is no ZooKeeper. *cluster_id*
        returns None if it is unknown.

        *lost* receives the tail this master lost, as a slave has it: close, write it to the journal, and start again.
        Nothing is acknowledged from then on. *dropped*: epochs replaced by such a tail before.
        """
        self.section = section
        self.store = store
        self.journal = store.transactions.journal
        self.cold_reader = ColdReader()
        self.url = url
        self._cluster_id = cluster_id
        self.loss = LossCheck(
            is_sync=section.mode == "sync",
            knows_in_sync=write_node is not None,
            dropped=dropped - {store.source.state.epoch_history[-1]},
        )
        self.in_sync = InSyncReplicas(section, self.journal.epoch, url, loop.time(), self.loss)
        self._loop = loop
        self._worker = worker
        self._progress = progress
        self._write_node = write_node
        self._lost = lost
        self._fetch = TailFetch[ReplicaSender](self.journal.storage.path, loop.time)
        self.refusals = Refusals()
        self._senders: dict[int, ReplicaSender] = {}  # of accepted slaves, by id
        self._handshaking: set[ReplicaSender] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat_due: asyncio.TimerHandle | None = None
        self._watermark_sent = Lsn(0)  # the high watermark last sent
        self._late_below = Lsn(0)
        self._is_closing = False
        self._drained = asyncio.Event()  # while closing: every slave has everything
        self._is_closed = False

    def begin(self, node: ReplicationNode | None, position: JournalPosition | None = None) -> None:
        """Start, with the *node* and the *position* ZooKeeper had when this master was allowed to serve."""
        mark = self.store.watermark
        self.loss.load(node, is_whole=mark is None or mark.is_whole, position=position)
        self.in_sync.load(node, self._loop.time())
        if self.loss.unconfirmed:
            log.warning(
                "acknowledged messages may be missing here, waiting for one of the slaves that have them slaves=%s",
                self.loss.names(","),
            )
        elif mark is not None:
            mark.is_whole = True  # no slave could have more
        self._limit()
        if self.section.mode == "sync" and self._write_node is None:
            log.warning("no ZooKeeper: once this master is gone, the slaves in sync are unknown")
        self._heartbeat()

    def attach(self, transport: asyncio.Transport, name: str, slaves: Collection[int] = ()) -> asyncio.Protocol | None:
        """Return the protocol that takes over *transport*, whose peer is one of *slaves*, any if that is empty; None:
        there are too many links."""
        if self._is_closing or len(self._handshaking) >= SLAVES_MAX:
            return None
        sender = ReplicaSender(self, self._loop, transport, name, slaves)
        self._handshaking.add(sender)
        self.journal.notify_written(True)
        return sender

    def pump(self) -> None:
        """Send what was added to the journal."""
        for sender in self._senders.values():
            sender.pump()

    def on_high_watermark(self) -> None:
        """Schedule a heartbeat if the high watermark has moved."""
        if (
            self._senders
            and self._heartbeat_due is None
            and self.store.high_watermark.acknowledged > self._watermark_sent
        ):
            self._heartbeat_due = self._loop.call_later(POSITION_DELAY_S, self._send_heartbeats)

    @property
    def unreplicated_bytes(self) -> int:
        """Bytes that are durable here and not yet acknowledged by the required slaves."""
        return self.journal.acknowledged_here - self.store.high_watermark.acknowledged

    def mark_late(self, lsn: Lsn) -> None:
        """Record that what was written below *lsn* was not replicated in time."""
        self._late_below = lsn

    def why_refusing(self) -> str:
        """Return why nothing new can be written at present; blank: it can."""
        if why := self.in_sync.why_refusing():
            return why
        if self._late_below <= self.store.high_watermark.acknowledged:
            return ""
        if self.loss.unconfirmed:
            return (
                f"this master may have lost what was acknowledged, and no slave that has it is connected: "
                f"one of {self.loss.names(', ')}"
            )
        return "what was written before is not yet replicated"

    @property
    def is_full(self) -> bool:
        """True if so much waits for slaves that producers must wait, too."""
        return (
            self.section.mode == "sync"
            and self.unreplicated_bytes > UNREPLICATED_BYTES_MAX
            and not self.why_refusing()  # else producers get an error instead
        )

    def links(self) -> list[tuple[int, ReplicaSender | None]]:
        """Return every known slave, with its link if it has one."""
        return [(slave_id, self._senders.get(slave_id)) for slave_id in sorted(self.in_sync.slaves)]

    def serving(self) -> list[tuple[int, Lsn]]:
        """Return the slaves that answer gets and fetches, and what they have."""
        return [(slave_id, end) for slave_id, sender in sorted(self._senders.items()) if (end := sender.serves_below)]

    async def close(self) -> None:
        """Give slaves a moment to take the rest, then end every link. Idempotent.

        What they lack stays unacknowledged: the last checkpoint must not contain it.
        """
        self._is_closing = True
        self._maybe_drained()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), LAST_WORD_S)
        for timer in (self._timer, self._heartbeat_due):
            if timer is not None:
                timer.cancel()
        for sender in [*self._senders.values(), *self._handshaking]:
            sender.abort_with("this master stops")
        self._is_closed = True
        await self.cold_reader.close()

    # -- sender_owner.SenderOwner -------------------------------------------------------------------------------------

    def decide_start(self, handshake: Handshake) -> StartStream | StartFetch | StartResync:
        journal = self.journal
        check_cluster_id(handshake, self._cluster_id())
        first = Lsn(journal.start_lsn - SEGMENT_HEADER_BYTES)
        extent = MasterJournal(self.store.transactions.state.epoch_history, first, journal.end)
        return self.loss.decide_start(handshake, journal.identity, extent, self.store.high_watermark.acknowledged)

    def fetch(self, sender: ReplicaSender, handshake: Handshake, divergence_lsn: Lsn) -> None:
        self._fetch.begin(sender, handshake, divergence_lsn)
        self.loss.suspect({handshake.slave_id, *self.in_sync.members})
        if self.store.watermark is not None:
            self.store.watermark.is_whole = False

    def on_fetched(self, sender: ReplicaSender, lsn: Lsn, data: bytes | memoryview) -> None:
        lost = self._fetch.add(sender, lsn, data, self.store.transactions.state.epoch_history)
        if lost is not None:
            self.loss.on_fetched()
            self._lost(lost)

    def checkpoint(self) -> "asyncio.Future[bytes]":
        return read_snapshot(self.journal, self._loop, self._worker)

    def on_attached(self, sender: ReplicaSender, side: SendProgress) -> None:
        former = self._senders.get(side.slave_id)
        self.in_sync.on_connected(
            side.slave_id, self.journal.end, self._loop.time(), is_empty=not side.keeps_own_journal
        )
        self._handshaking.discard(sender)
        self._senders[side.slave_id] = sender
        self.loss.on_streaming(side.slave_id)
        if former is not None:
            former.abort_with("the same slave has another link now")

    def on_ack(self, sender: ReplicaSender, side: SendProgress) -> None:
        if self._senders.get(side.slave_id) is sender and side.reported is not None:
            self.in_sync.on_ack(side.slave_id, side.reported, self.journal.end, self._loop.time())
            if self.loss.confirm(side):
                self._confirmed(side.slave_id)
            if self.section.mode == "sync":
                self._limit()
            self._maybe_drained()

    def _confirmed(self, slave_id: int) -> None:
        """A slave in sync has no more than this master: nothing that other slaves have beyond it was acknowledged."""
        log.info("nothing that was acknowledged is missing here slave=%d", slave_id)
        if self.store.watermark is not None:
            self.store.watermark.is_whole = True
        if (sender := self._fetch.give_up()) is not None:
            sender.abort_with("a slave in sync has no more than this master")

    def position(self, slave_id: int) -> Heartbeat:
        self._watermark_sent = self.store.high_watermark.acknowledged
        is_in_sync = slave_id in self.in_sync.members
        return Heartbeat(
            self._watermark_sent, self.journal.end, time.time_ns() // 1_000_000, is_in_sync, self.section.mode
        )

    def on_closed(self, sender: ReplicaSender) -> None:
        self._handshaking.discard(sender)
        if self._fetch.sender is sender:
            self._fetch.give_up()
        slave_id = sender.side.slave_id if sender.side is not None else None
        if slave_id is not None and self._senders.get(slave_id) is sender:
            del self._senders[slave_id]
            self.in_sync.on_disconnected(slave_id)
            log.warning("slave gone slave=%d peer=%s", slave_id, sender.name)
        if not self._senders and not self._handshaking:
            self.journal.notify_written(False)
        self._maybe_drained()

    # -- timers -----------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        now, silence_s = self._loop.time(), self.section.silence_ms / 1000
        self._timer = self._loop.call_later(self.section.heartbeat_ms / 1000, self._heartbeat)
        wanted = self.in_sync.plan(self.store.high_watermark.acknowledged, now, self.journal.flushed)
        if self.in_sync.wants_flush:
            self.journal.flush()
        for sender in [*self._senders.values(), *self._handshaking]:
            # What came while this process paused is read only after this.
            sender.last_heard = min(sender.last_heard + self.in_sync.pause_s, now)
            if now - sender.last_heard > silence_s:
                sender.abort_with(f"silent for {silence_s:g} s")
            else:
                sender.send_heartbeat()
        if wanted is None:
            return
        if self._write_node is None:
            self._node_written(wanted)
        else:
            self._write_node(wanted, lambda node: self._loop.call_soon_threadsafe(self._node_written, node))
            self._limit()

    def _node_written(self, node: ReplicationNode) -> None:
        before = self.in_sync.node
        self.in_sync.on_written(node)
        if (before.in_sync if before is not None else ()) != node.in_sync:
            log.warning("in-sync set changed mode=%s joined=%s left=%s in_sync=%s", node.mode, *changed(before, node))
        self._limit()

    def _limit(self) -> None:
        """Apply what the slaves have to the high watermark."""
        if self._is_closed or self.loss.state is LossState.FETCHED:
            return
        replicated = self.in_sync.replicated
        self.store.limit_acknowledged(replicated)
        if replicated > self.store.high_watermark.acknowledged:
            self._progress()

    def _maybe_drained(self) -> None:
        if self._is_closing and (
            self.journal.failure is not None
            or all(sender.has_all_below(self.journal.end) for sender in self._senders.values())
        ):
            self._drained.set()

    def _send_heartbeats(self) -> None:
        self._heartbeat_due = None
        for sender in self._senders.values():
            sender.send_heartbeat()
