"""The shell around a replica: carries out its effects, on the network, the copy and slave.json. Loop thread only.

Three things wait for the master's high watermark: what readers see, the topics announced in ZooKeeper, and the LSN a
checkpoint covers. `slave.json` keeps the heartbeat for a promotion, and for a start without the master.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from journal.checksum import crc32
from journal.errors import ForeignStream, JournalClosed, StorageFailed
from journal.records.header import Lsn
from journal.records.index_updates import topics_of
from journal.replica.follower import JournalFollower
from journal.state.replay import PendingUpdates
from meta_broker.errors import BrokerError
from meta_broker.replication.link_protocol import CHUNK_BYTES_MAX, journal_chunk_head
from meta_broker.replication.replica import effects as do
from meta_broker.replication.replica.copy_report import CopyReport
from meta_broker.replication.replica.effects import Effect, Resync
from meta_broker.replication.replica.link import ReplicaLink
from meta_broker.replication.replica.replica import Replica, ReplicaJournal
from meta_broker.replication.replica.replica_state import ReplicaState
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.message_store import MessageStore
from meta_client.errors import InvalidSecurity
from meta_client.net.security import PLAIN, Security
from meta_client.protocol.responses import Behind
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

DIAL_S = 5.0  # timeout of a connection


class ReplicaReceiver:
    """A slave while its store is open. Construct it with the store, `begin` once clients are served, then `close`."""

    def __init__(
        self,
        facts: SlaveFacts,
        file: SlaveFile,
        store: MessageStore,
        follower: JournalFollower,
        find_master: Callable[[SlaveFacts], Awaitable[BrokerUrl | None]],
        announce: Callable[[Sequence[str], Sequence[str]], None],
        wake: Callable[[], None],
        end_with: Callable[[Resync | Exception], None],
        now_ms: Callable[[], int],
        *,
        serves: bool,
        security: Security = PLAIN,
    ) -> None:
        """*facts*: as in *file*. *announce* takes topics used for the first time, and topics decided about; *wake*
        makes the store advance soon; *end_with* is called with the reason this cannot go on. *security*: of its link.
        """
        self.slave_id = facts.slave_id
        self.follower = follower
        self.serves = serves  # registered for consumers
        self.replica = Replica(facts, serves=serves, credentials=security.credentials)
        self.now_ms = now_ms
        self._security = security
        self._file = file
        self._store = store
        self._find_master = find_master
        self._announce = announce
        self._wake = wake
        self._end = end_with
        self._loop = asyncio.get_running_loop()
        self._link: ReplicaLink | None = None  # in use, or being made
        self._tasks: set[asyncio.Task[None]] = set()  # of the link, and `_saving`
        self._timer: asyncio.TimerHandle | None = None
        self._unsaved: SlaveFacts | None = None
        self._saving: asyncio.Task[None] | None = None
        self._seen = {name.topic for name in store.indexes.by_name}
        self._decided: list[str] = []  # topics, since the last `progress`
        self._publish(follower.waiting)

    def begin(self, cluster_id: str | None = None) -> None:
        """Follow the master of the moment from now on, if it is of the cluster *cluster_id*, or either's is unknown."""
        self.replica.cluster_id = cluster_id
        self._measure()
        self.carry_out([do.Dial(0.0)])
        self._tick()

    async def close(self) -> None:
        """End the link, and write slave.json a last time. Idempotent. Raises StorageFailed."""
        self.carry_out(self.replica.close())
        if self._timer is not None:
            self._timer.cancel()
        if tasks := self._cancel_tasks():
            await asyncio.wait(tasks)
        if self._link is not None:
            await self._link.closed.wait()
        if self._saving is not None:
            await self._saving

    # -- what handlers use -----------------------------------------------------------------------------------

    @property
    def facts(self) -> SlaveFacts:
        return self.replica.facts

    @property
    def master(self) -> str:
        return self.facts.master

    @property
    def is_readable(self) -> bool:
        """True if readers may see the copy: it is complete, and a master has confirmed where the journals diverge."""
        return self.facts.heard_ms > 0 and self.follower.is_complete

    @property
    def is_following(self) -> bool:
        """True while the master's heartbeats arrive. Any thread."""
        return self.replica.state is ReplicaState.FOLLOWING

    def lag(self) -> Behind:
        facts, now_ms = self.facts, self.now_ms()
        missing = max(0, facts.end - self._store.high_watermark.acknowledged)
        return Behind(missing, max(0, now_ms - facts.heard_ms) if facts.heard_ms else now_ms)

    def report(self) -> CopyReport:
        follower, facts = self.follower, self.facts
        return CopyReport(
            cluster=facts.cluster,
            broker_id=facts.broker_id,
            slave_id=facts.slave_id,
            start=min(follower.journal.start_lsn, follower.end),
            end=follower.end,
            flushed=follower.journal.flushed,
            high_watermark=facts.high_watermark,
            is_complete=follower.is_complete,
            data=str(self._file.path.parent.absolute()),
            epoch_history=tuple(follower.epoch_history),
        )

    def progress(self) -> Sequence[str]:
        """More of the copy is durable. Return topics about which decisions were acknowledged since the last call."""
        self._measure()
        decided, self._decided = self._decided, []
        return decided

    # -- link.LinkOwner, and effects --------------------------------------------------------------------------

    def journal(self) -> ReplicaJournal:
        copy = self.follower
        epoch_history = tuple((epoch.epoch, epoch.incarnation, epoch.lsn) for epoch in copy.epoch_history)
        return ReplicaJournal(epoch_history, Lsn(min(copy.journal.start_lsn, copy.end)), copy.end, copy.is_unfinished)

    def on_closed(self, link: ReplicaLink, why: str) -> None:
        link.closed.set()
        if self._link is link:
            self._link = None
            self._cancel_tasks()
            self.carry_out(self.replica.closed(link.master, why))

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            link = self._link
            match effect:
                case do.Dial(pause_s):
                    self._start(self._dial(pause_s))
                case do.Send(data):
                    assert link is not None
                    link.send([data])
                case do.ReadProof(lsn, size):
                    assert link is not None
                    self._start(self._verify(link, lsn, size))
                case do.SendTail(lsn, end):
                    assert link is not None
                    self._start(self._send_tail(link, lsn, end))
                case do.Append(lsn, data):
                    self._append(lsn, data)
                case do.Show(high_watermark):
                    self._store.limit_acknowledged(high_watermark)
                    self._wake()
                case do.Save(facts):
                    self._unsaved = facts
                    if self._saving is None or self._saving.done():  # pragma: no branch: CPython joins both ways' jumps
                        self._saving = self._start(self._save())
                case do.Close():
                    if link is not None and link.transport is not None:
                        link.transport.abort()
                case do.End(why):
                    self._end(why)
        if self._link is not None:
            self._link.read(wanted=self.replica.may_read)

    def _measure(self) -> None:
        journal = self.follower.journal
        self.carry_out(self.replica.progress(journal.flushed, journal.queued_bytes))

    def _tick(self) -> None:
        if not self.replica.has_room or self._store.space.free_bytes_min:
            self._check_room()
            if self.replica.has_room and self._link is not None:
                self._link.handle_frames()
        if self._link is not None and (why := self._store.space.why_gone):
            self.carry_out(self.replica.leave(why))  # what it confirms would go with this process
        self.carry_out(self.replica.tick(self._loop.time()))
        self._timer = self._loop.call_later(self.replica.heartbeat_s, self._tick)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _cancel_tasks(self) -> set[asyncio.Task[None]]:
        tasks = self._tasks - {self._saving}
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BrokerError | StorageFailed):
            self._end(error)
        elif error is not None:
            raise error

    async def _dial(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s * random.uniform(0.5, 2))  # noqa: S311 (spreads load, keeps no secret)
        url = await self._find_master(self.facts)
        if url is None or self._store.space.why_gone:
            why = self._store.space.why_gone or "there is no master now"
            self.carry_out(self.replica.closed(str(url or "?"), why))
            return
        link = self._link = ReplicaLink(self, str(url))
        try:
            context = None if self._security.tls is None else self._security.tls.context()
            async with asyncio.timeout(DIAL_S):  # wait_for may swallow a cancellation
                await self._loop.create_connection(lambda: link, url.host, url.port, ssl=context)
        # Of a connection that was made meanwhile uvloop says no more, whichever of these it is.
        except TimeoutError:
            self.on_closed(link, f"no connection within {DIAL_S:g} s")
        except (OSError, InvalidSecurity) as error:
            self.on_closed(link, f"no connection: {getattr(error, 'strerror', None) or error}")
        except BaseException:
            self.on_closed(link, "cancelled")
            raise

    async def _verify(self, link: ReplicaLink, lsn: Lsn, size: int) -> None:
        try:
            proof = await asyncio.to_thread(_checksum_before, self.follower, lsn, size)
        except (StorageFailed, KeyError) as error:
            self.carry_out(self.replica.leave(str(error)))
        else:
            self.carry_out(self.replica.proof_read(proof))
            link.handle_frames()

    async def _send_tail(self, link: ReplicaLink, lsn: Lsn, end: Lsn) -> None:
        journal = self.follower.journal
        log.warning("the master lost what is here, sending it from=%d to=%d", lsn, end)
        try:
            await asyncio.to_thread(journal.wait_flushed, end)
            while lsn < end:
                base, file = journal.reader(lsn)
                size = min(CHUNK_BYTES_MAX, base + file.size - lsn, end - lsn)
                link.send([journal_chunk_head(lsn, size), await asyncio.to_thread(file.read, lsn - base, size)])
                lsn = Lsn(lsn + size)
                await link.can_write.wait()
                self.replica.heard(self._loop.time())  # the master reads, so it is alive
        except (StorageFailed, KeyError) as error:
            self.carry_out(self.replica.leave(f"what the master lost can't be sent: {error}"))

    async def _save(self) -> None:
        while (facts := self._unsaved) is not None:  # the newest alone
            self._unsaved = None
            await asyncio.to_thread(self._file.write, facts)

    def _append(self, lsn: Lsn, data: bytes | memoryview) -> None:
        try:
            received = self.follower.receive(lsn, data)
        except ForeignStream as error:
            self.carry_out(self.replica.append_refused(error))
        except (StorageFailed, JournalClosed) as error:  # the task that advances the store stops the broker
            self.carry_out(self.replica.leave(str(error)))
        else:
            self._publish(received)
            if self.follower.journal.segments.end - lsn < 2 * CHUNK_BYTES_MAX:
                self._check_room()  # the next chunk may need another segment
            self._measure()

    def _check_room(self) -> None:
        """Stop, or go on, by the free space. A file system that can't be asked is left to the writer."""
        with contextlib.suppress(StorageFailed):
            self.replica.has_room = self._store.space.has_room_to_copy()

    def _publish(self, received: Iterable[PendingUpdates]) -> None:
        """Publish records once the high watermark has passed them."""
        for record in received:
            self._store.publish_when_acknowledged(record.lsn, record.updates, self._on_acknowledged, record)

    def _on_acknowledged(self, record: PendingUpdates) -> None:
        used = [topic for topic in topics_of(record.updates) if topic not in self._seen]
        self._seen.update(used)
        for name, start in record.starts:
            if name in self._store.indexes.by_name:
                self._store.indexes.trim(name, start)
        if used or record.change is not None:
            decided = [record.change.topic] if record.change is not None else []
            self._decided += decided
            self._announce(used, decided)


def _checksum_before(follower: JournalFollower, lsn: Lsn, size: int) -> int:
    """Return the checksum of the *size* bytes before *lsn*, in one segment, once they are fsynced. Blocks.

    Raises StorageFailed; KeyError if retention has taken them.
    """
    if not size:
        return crc32(b"")
    follower.journal.wait_flushed(lsn)
    base, file = follower.journal.reader(lsn - size)
    return crc32(file.read(lsn - size - base, size))
