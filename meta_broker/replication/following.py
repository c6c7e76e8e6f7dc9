"""What a slave has heard of its master, and what it shows of what it has got. The link drives it.

Three things wait for the fence that the master tells: what readers see, which topics ZooKeeper is told of, and how far
a checkpoint may go. `slave.json` says what was heard, for a promotion, and for a start without the master.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

import msgspec

from journal.errors import StorageFailed
from journal.follower import JournalFollower
from journal.frame import Lsn
from journal.publications import topics_of
from journal.replaying import Received
from meta_broker.errors import BrokerError
from meta_broker.replication.copy_report import CopyReport
from meta_broker.replication.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.responses import Behind
from zk.broker_url import BrokerUrl

log = logging.getLogger(__name__)

WRITE_S = 1.0  # how old slave.json may be, while things change


class Rebuild(msgspec.Struct, frozen=True):
    """What is to be done to the directory while nothing is open, before the slave goes on.

    With *checkpoint*, it begins anew at *lsn*; None: everything from *lsn* on is cut.
    """

    lsn: Lsn
    reason: str
    checkpoint: bytes | None = None


class Following:
    """One slave's, for as long as its store is open. Loop thread only."""

    def __init__(
        self,
        facts: SlaveFacts,
        file: SlaveFile,
        store: MessageStore,
        follower: JournalFollower,
        find_master: Callable[[SlaveFacts], Awaitable[BrokerUrl | None]],
        wake: Callable[[], None],
        over: Callable[[Rebuild | BrokerError | StorageFailed], None],
        now_ms: Callable[[], int],
        *,
        serves: bool,
    ) -> None:
        """*wake* has the store advance soon; *over* is told why this can't go on."""
        self.slave_id = facts.slave_id
        self.follower = follower
        self.serves = serves  # will it be registered?
        self.progress: Callable[[], None] = lambda: None  # told whenever the copy's disk got on
        self.on_news: Callable[[], None] = lambda: None  # told when a tick should not be waited for
        self.on_topics: Callable[[Iterable[str], Iterable[str]], None] = lambda used, decided: None
        self._facts = facts
        self._file = file
        self._store = store
        self._find_master = find_master
        self._wake = wake
        self._over = over
        self._now_ms = now_ms
        self._seen = {name.topic for name in store.indexes.by_name}
        self._is_dirty = True
        self._written_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._is_linked = False
        self.received(follower.waiting)

    # -- processors.context.SlaveOf ---------------------------------------------------------------------------

    @property
    def facts(self) -> SlaveFacts:
        return self._facts

    @property
    def master(self) -> str:
        return self._facts.master

    @property
    def is_showing(self) -> bool:
        """Whether readers may see what is here: not before a master has said where our logs part, and not while the
        beginning of a copy is all there is."""
        return self._facts.heard_ms > 0 and self.follower.is_complete

    def behind(self) -> Behind:
        facts = self._facts
        missing = max(0, facts.end - self._store.fence.acknowledged)
        return Behind(missing, max(0, self._now_ms() - facts.heard_ms) if facts.heard_ms else self._now_ms())

    def copy(self) -> CopyReport:
        follower, facts = self.follower, self._facts
        return CopyReport(
            cluster=facts.cluster,
            broker_id=facts.broker_id,
            slave_id=facts.slave_id,
            start=min(follower.journal.start_lsn, follower.end),
            end=follower.end,
            flushed=follower.journal.flushed,
            fence=facts.fence,
            is_complete=follower.is_complete,
            data=str(self._file.path.parent.absolute()),
            lives=tuple(follower.lives),
        )

    # -- follower_link.Follows --------------------------------------------------------------------------------

    async def find_master(self) -> BrokerUrl | None:
        """Where to dial; None: nobody is master now. Never raises."""
        return await self._find_master(self._facts)

    def heard(
        self, *, master: str, epoch: int, end: Lsn, fence: Lsn, mode: Literal["async", "sync"], in_sync: bool
    ) -> None:
        """The master, with which this slave agrees up to its own end, is so far."""
        before = self._facts
        self._facts = msgspec.structs.replace(
            before,
            master=master,
            epoch=epoch,
            end=end,
            fence=fence,
            heard_ms=self._now_ms(),
            mode=mode,
            in_sync=in_sync,
        )
        self._is_dirty = True
        is_news = (mode, in_sync) != (before.mode, before.in_sync)
        if not self._is_linked:
            self._is_linked = is_news = True
            log.info("following master=%s epoch=%d end=%d behind=%d", master, epoch, end, end - self.follower.end)
        if (mode, in_sync) != (before.mode, before.in_sync):
            log.info("in sync changed mode=%s in_sync=%s", mode, in_sync)
        if is_news:
            self._written_at = 0.0  # at once: a slave that never heard of a master may lack anything, for a promotion
            self.on_news()
        if fence != before.fence:
            self._store.limit_to(fence)
            self._wake()

    def received(self, received: Sequence[Received]) -> None:
        """Records have come; what they say is shown once the fence has passed them."""
        for said in received:
            self._store.show(said.lsn, said.publications, self._shown, said)

    def lost(self) -> None:
        """The link broke."""
        if self._is_linked:
            self._is_linked = False
            log.warning("link lost master=%s end=%d", self._facts.master, self.follower.end)

    def must_cut(self, lsn: Lsn) -> None:
        """The master never had what is here from *lsn* on."""
        self._facts = msgspec.structs.replace(self._facts, fence=min(self._facts.fence, lsn))
        self._is_dirty = True
        self._forget_unfinished()
        self._over(Rebuild(lsn, "the master never had it"))

    def must_begin_anew(self, start: Lsn, checkpoint: bytes, reason: str) -> None:
        """What is here is of no use: the copy begins at *start*, with *checkpoint* (blank: with nothing before it)."""
        self._forget_unfinished()
        self._over(Rebuild(start, reason, checkpoint))

    def must_stop(self, error: BrokerError) -> None:
        """This slave can't go on without an operator."""
        self._over(error)

    def _forget_unfinished(self) -> None:
        """Of a copy that is unfinished nothing is left, so that nothing was heard of what there will be."""
        if self.follower.is_unfinished:
            self._facts = msgspec.structs.replace(
                self._facts, end=Lsn(0), fence=Lsn(0), heard_ms=0, mode="async", in_sync=False
            )
            self._is_dirty = True

    # -- what is shown ----------------------------------------------------------------------------------------

    def _shown(self, said: Received) -> None:
        used = [topic for topic in topics_of(said.publications) if topic not in self._seen]
        self._seen.update(used)
        for name, start in said.starts:
            if name in self._store.indexes.by_name:
                self._store.indexes.trim(name, start)
        if used or said.change is not None:
            self.on_topics(used, [said.change.topic] if said.change is not None else [])

    # -- slave.json -------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Due twice a second: write down what was heard, if that is due."""
        if self._is_dirty and self._writing is None and now_s - self._written_at >= WRITE_S:
            self._is_dirty, self._written_at = False, now_s
            self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._file.write, self._facts))
            self._writing.add_done_callback(self._written)

    def _written(self, task: "asyncio.Task[None]") -> None:
        self._writing = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StorageFailed):
            self._over(error)
        elif error is not None:
            raise error

    async def close(self) -> None:
        """Write down what was heard last. The link is over. Idempotent. Raises StorageFailed."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._is_dirty:
            self._is_dirty = False
            await asyncio.to_thread(self._file.write, self._facts)
