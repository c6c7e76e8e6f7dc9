"""A master's part in a broker's life."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

from journal.errors import StorageFailed
from journal.records.epoch_history import WriterEpoch
from journal.state.recovery import Recovered
from journal.state.transaction_store import JournalTransactionStore
from meta_broker.app.broker import Role, RoleChange, Start, closing, new_context, tune_garbage_collector
from meta_broker.cluster.membership import Membership
from meta_broker.cluster.position_report import PositionReport
from meta_broker.cluster.registration_plan import some
from meta_broker.cluster.registration_task import RegistrationTask
from meta_broker.cluster.topic_announcer import TopicAnnouncer
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import BrokerError, ConfigError
from meta_broker.handlers.context import ReadReplica
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.replication.fencing import check_epoch
from meta_broker.replication.lost_tail import LostTail
from meta_broker.replication.master.master import Master
from meta_broker.replication.replica.resync import restore_tail, why_async_is_unsafe
from meta_broker.replication.replica.slave_file import SlaveFile
from meta_broker.replication.stale_copy import is_behind, is_kept_by_slaves, stale_copy
from meta_broker.store.clock import Clock
from meta_broker.store.message_store import MessageStore
from meta_broker.store.relocation_job import RelocationJob
from meta_broker.store.start_on_full_disk import open_or_free_space
from meta_broker.version import PRODUCT_VERSION
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode
from zk.errors import MalformedNode, ZooKeeperUnavailable
from zk.tree.paths import BrokerKey, BrokerNode, Paths

log = logging.getLogger(__name__)

LISTED_MAX = 20  # branches in doubt in the log of a stop; the command lists all


class IdHeld(BrokerError):
    """Another process is registered under this broker's id. Nothing was written: wait for its end, and open again."""


class MasterRole(Role):
    """Serves a journal of its own, and replicates it. If an in-sync slave has what it lost, it restores that."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError if the directory is a slave's."""
        super().__init__(config)
        if (copy := SlaveFile(config.data).read()) is not None:
            raise ConfigError(
                f"{config.data} is a copy, slave {copy.slave_id}'s of broker {copy.broker_id}: start it as that "
                f"slave, or make it the master with `metaq promote {config.data}`"
            )
        self._dropped: frozenset[WriterEpoch] = frozenset()  # epochs replaced by an in-sync slave's tail
        self._announcer: TopicAnnouncer
        self._relocation: RelocationJob
        self._position: PositionReport
        self._is_behind = False  # ZooKeeper knows a later end of the journal
        self._is_held = False  # another process is registered, and perhaps dead
        self._store: MessageStore

    async def open(self, start: Start) -> Dispatcher | None:
        config, membership, server, stack = self.config, start.membership, start.server, start.stack
        node: ReplicationNode | None = None
        position: JournalPosition | None = None
        registered = ""
        if membership is not None:
            try:
                node = await asyncio.to_thread(membership.replication)
                position = await asyncio.to_thread(membership.journal_position)
                with contextlib.suppress(MalformedNode):  # it is read again, and judged, before it is replaced
                    registered = str(await asyncio.to_thread(membership.master_node.url) or "")
                self._is_held = await asyncio.to_thread(membership.master_node.has_holder)
            except ZooKeeperUnavailable:
                return None  # stopped while ZooKeeper was away
        if (reason := why_async_is_unsafe(config, node)) is not None:
            raise ConfigError(reason)
        clock = Clock()
        ids = MessageIds(config.broker_id, clock.now_ms)
        open_store = functools.partial(
            MessageStore.open,
            *(config, PRODUCT_VERSION, server.wake, ids.now_ms, server.loop_hooks()),
            *(lambda recovered: self._epoch(recovered, node, position, registered), clock),
            # In parallel with recovery: ZooKeeper is slow with thousands of topics.
            locked=membership.end_former_session if membership is not None else lambda: None,
        )
        try:
            store = await open_or_free_space(open_store, config, clock, start.worker)
        except IdHeld:
            assert membership is not None
            try:
                await asyncio.to_thread(membership.master_node.await_free)
                node = await asyncio.to_thread(membership.replication)  # as the other one, or a promotion, left it
                position = await asyncio.to_thread(membership.journal_position)
            except ZooKeeperUnavailable:
                return None  # stopped meanwhile
            self._is_held = False
            store = await open_or_free_space(open_store, config, clock, start.worker)
        self._store = store
        if self._is_behind and store.watermark is not None:
            store.watermark.is_whole = False  # a slave in sync has what is missing
        await stack.enter_async_context(closing(store))
        tune_garbage_collector()
        context = new_context(config, store, ids, membership, start.url)
        self._announcer = context.announcer
        self._relocation = RelocationJob(
            store.transactions, store.high_watermark, config.broker.relocate_after_segments
        )
        master = Master(
            *(start.loop, store, config.replication, str(start.url), start.worker, server.progress),
            membership.in_sync_changed if membership is not None else None,
            *(start.end, self._dropped),
            cluster_id=lambda: membership.cluster.id if membership is not None else None,
        )
        stack.push_async_callback(master.close)  # after the last checkpoint, whose record slaves get, too
        stack.enter_context(_last_checkpoint(store))
        master.begin(node, position)
        self._position = PositionReport(config.data, store)
        context.master = master
        context.replicas = lambda: [ReadReplica(*found) for found in master.serving()]
        return Dispatcher(context)

    def _epoch(
        self, recovered: Recovered, node: ReplicationNode | None, position: JournalPosition | None, master: str
    ) -> int:
        """Return the epoch to write with. Raises Superseded, StaleCopy, IdHeld."""
        config = self.config
        epoch = max(recovered.state.epoch, 1)  # 0: a new journal
        check_epoch(epoch, node, config.broker_id)
        self._is_behind = is_behind(recovered, position)
        if self._is_behind and not is_kept_by_slaves(config.replication.mode, node):
            assert position is not None
            path = Paths(config.zookeeper_section.root).of(BrokerKey(BrokerNode.JOURNAL, config.broker_id))
            raise stale_copy(config.data, config.broker_id, recovered, position, path, master)
        if self._is_held and recovered.state.epoch:
            # A record of this start would make a copy look newer than its original. An empty directory is no copy.
            raise IdHeld
        return epoch

    def begin(self, start: Start, on_ready: Callable[[str], None]) -> RegistrationTask | None:
        membership, url = start.membership, start.url

        def ready() -> None:
            on_ready(_ready_line(self.config, self._store, str(url), membership))

        if membership is None:
            ready()
            return None
        registration = RegistrationTask(membership, start.end)
        start.stack.push_async_callback(registration.unregister)  # first out
        registration.begin(url, self._announcer.registrations(), self._store.transactions.state.epoch, ready)
        return registration

    def tick(self, start: Start, store: MessageStore) -> None:
        store.checkpoints.maybe_begin(start.worker)
        if store.watermark is not None:
            store.watermark.tick()
        if start.membership is not None:
            self._position.tick(start.membership.position_changed)
        if not store.space.is_out_of_room:  # relocation needs room before it frees any
            self._relocation.maybe_begin(start.worker)

    async def stop(self) -> None:
        await self._relocation.stop()

    async def apply(self, change: RoleChange, *, is_stopping: bool) -> None:
        """Restore a lost tail, also before a stop: the next start might not find the slave that has it."""
        del is_stopping
        assert isinstance(change, LostTail)
        try:
            await asyncio.to_thread(restore_tail, self.config, change)
        finally:
            change.pieces.close()
        self._dropped |= change.dropped


@contextlib.contextmanager
def _last_checkpoint(store: MessageStore) -> Iterator[None]:
    """After a clean stop, take a last checkpoint, and log branches in doubt."""
    yield
    try:
        store.last_checkpoint()
    except StorageFailed as error:
        if store.journal.failure is not None:
            raise
        log.error("no last checkpoint, the next start reads more of the journal error=%s", error)
    _log_in_doubt(store.transactions)


def _log_in_doubt(store: JournalTransactionStore) -> None:
    """Log the branches that a stop leaves in doubt, oldest first. Everything must be durable."""
    left = store.recover()
    now_ms = store.now_ms()
    for transaction in left[:LISTED_MAX]:
        branch = transaction.branch
        assert branch is not None, "a prepared branch has messages"
        key, prepared_s = transaction.key, max(0, now_ms - branch.prepared_ms) // 1000
        log.warning(
            "left in doubt xid=%s prepared_s=%d messages=%d bytes=%d", key, prepared_s, branch.messages, branch.bytes
        )
    if left:
        log.warning(
            "branches left in doubt count=%d: they survive; list them with `metaq txn list --dir %s` while the broker "
            "is down, with `metaq txn list` once it is back",
            len(left),
            store.journal.storage.path,
        )


def _ready_line(config: BrokerConfig, store: MessageStore, url: str, membership: Membership | None) -> str:
    recovered = store.transactions.recovered
    in_doubt = len(store.transactions.transactions)
    where = f", ZooKeeper {config.zookeeper}" if config.zookeeper else ", no ZooKeeper: clients need the URL"
    risk = f" (a power cut may cost up to {config.flush.interval_ms} ms)" if config.flush.interval_ms else ""
    return (
        f"broker {config.broker_id} serves at {url}{where}; data {config.data}, flush {config.flush}{risk}; "
        f"replayed {recovered.replayed_bytes} bytes, {in_doubt} branches in doubt"
        f"{_unregistered(membership.unregistered_topics if membership is not None else [])}"
    )


def _unregistered(topics: list[str]) -> str:
    if not topics:
        return ""
    return f"; {len(topics)} topic{'s' * (len(topics) > 1)} not registered yet: {some(topics)}"
