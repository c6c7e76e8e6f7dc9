"""Starts a slave, follows its master, and stops, in order.

The copy is changed only while it is closed: to truncate what its master never had, or to start over, the slave closes
everything, makes the change, and starts again on the same port, in the same process.
"""

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.state.transaction_store import wall_clock_ms
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import Identity
from journal.wal.storage import DirectoryStorage
from meta_broker.app.broker import tune_garbage_collector
from meta_broker.app.watchdog import LoopWatchdog
from meta_broker.cluster.membership import Membership
from meta_broker.cluster.registration_task import NotRegistered, RegistrationTask
from meta_broker.cluster.topic_announcer import TopicAnnouncer, reload
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import BrokerError, ConfigError
from meta_broker.handlers.branch_timeouts import Timeouts
from meta_broker.handlers.context import Context
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.net.server import TICK_S, Server
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.replication.replica.resync import resync
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.replication.replica.state import ReplicaState, Resync
from meta_broker.store.clock import Clock
from meta_broker.store.indexes import Indexes
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.version import VERSION_TEXT
from zk.brokers.registration import BrokerIdTaken
from zk.errors import ZooKeeperError
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

# Ends an open slave. None: on request.
Ending = Resync | BrokerError | BrokerIdTaken | StorageFailed | None


class Slave:
    """One slave in one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        assert config.is_slave
        self._config = config
        self._port = config.port
        self._file = SlaveFile(config.data)
        self._ending: asyncio.Future[Ending] | None = None  # while it is open
        self._is_stop_requested = False
        self._stop_now = asyncio.Event()
        self._is_reload_requested = False

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start, follow and serve until told to stop, and stop. What was opened is always closed in reverse.

        Raises JournalError, BrokerError, ZooKeeperError if it cannot start or go on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop)
        loop.add_signal_handler(signal.SIGHUP, self._request_reload)
        while isinstance(ending := await self._open(loop, on_ready), Resync):
            on_ready = _say_nothing
            if self._is_stop_requested:
                return  # the next start ends the same way
            await asyncio.to_thread(resync, self._config, ending)
        if ending is not None:
            raise ending

    async def _open(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[str], None]) -> Ending:
        config = self._config
        ending: asyncio.Future[Ending] = loop.create_future()
        self._ending = ending
        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            server = Server(loop, self._end)
            self._port = server.reserve(config.broker.host, self._port)
            stack.push_async_callback(server.close)  # registered again below; here for failures in between
            membership = await self._connect(stack, loop)
            facts = read_slave_facts(config, self._file)
            store = MessageStore.open_over(
                config,
                functools.partial(_open_copy, config, facts, server.wake),
                Lsn(facts.high_watermark),
                Clock(wall_clock_ms),
            )
            await stack.enter_async_context(_closing(store))
            assert isinstance(store.source, JournalFollower)
            tune_garbage_collector()
            await asyncio.to_thread(self._file.write, facts)  # from now on a slave's directory
            topics = Topics(config.topics, store.source.state.topics)
            serves = membership is not None and config.slave_registers
            announcer = TopicAnnouncer(topics, store, membership if serves else None, decides=False)
            replica = ReplicaState(
                facts,
                self._file,
                store,
                store.source,
                functools.partial(_find_master, config, membership),
                server.wake,
                self._end,
                wall_clock_ms,
                serves=serves,
            )
            stack.push_async_callback(replica.close)
            url = BrokerUrl(config.url_host, self._port)
            context = Context(
                config=config,
                store=store,
                topics=topics,
                ids=MessageIds(config.broker_id, wall_clock_ms),
                timeouts=Timeouts(),
                listener=announcer,
                url=str(url),
                version=VERSION_TEXT,
                slave=replica,
            )
            dispatcher = Dispatcher(context)
            replica.on_topics = functools.partial(_announce_topics, topics, announcer, dispatcher)
            stack.push_async_callback(server.close)
            context.loop_delay.begin(loop)
            stack.callback(context.loop_delay.end)
            await server.listen(dispatcher)
            link = ReplicaReceiver(replica)
            replica.progress = link.progress
            replica.on_change = lambda: replica.tick(loop.time())
            link_task = loop.create_task(link.run())
            link_task.add_done_callback(self._link_ended)
            stack.push_async_callback(_cancelled, link_task)
            registration: RegistrationTask | None = None
            if membership is not None and replica.serves:
                registration = RegistrationTask(membership, self._not_registered)
                stack.push_async_callback(registration.leave)  # first out
            # Nothing to hold: a slave acknowledges only to its master, and only what is durable here.
            watchdog = LoopWatchdog(store.journal, membership, config.broker.hang_seconds_max, _nothing, _nothing)
            stack.callback(watchdog.close)
            watchdog.begin(loop)
            on_ready(_ready_line(config, replica, str(url)))
            await self._tick_until(ending, server, context, replica, registration, worker)
        return ending.result()

    # -- ending -----------------------------------------------------------------------------------------------

    def _end(self, why: Ending) -> None:
        """Close what is open, for this reason; only the first one counts."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(why)

    def _request_stop(self) -> None:
        if self._is_stop_requested:
            self._stop_now.set()
        self._is_stop_requested = True
        self._end(None)

    def _request_reload(self) -> None:
        self._is_reload_requested = True

    def _link_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, BrokerError | StorageFailed):
                raise error
            self._end(error)

    def _not_registered(self, error: NotRegistered) -> None:
        if isinstance(error, BrokerIdTaken | Superseded):
            self._end(error)
        else:
            log.warning("not registered, trying again error=%s", error)  # with the next tick

    # -- while it is open -------------------------------------------------------------------------------------

    async def _connect(self, stack: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop) -> Membership | None:
        config = self._config
        if config.zookeeper is None:
            return None

        def refused(error: BrokerIdTaken | Superseded) -> None:  # on the membership thread
            loop.call_soon_threadsafe(self._end, error)

        membership = Membership(config, config.zookeeper, refused)
        stack.callback(membership.close)
        await asyncio.to_thread(membership.connect)  # fail before anything is changed
        return membership

    async def _tick_until(
        self,
        ending: "asyncio.Future[Ending]",
        server: Server,
        context: Context,
        replica: ReplicaState,
        registration: RegistrationTask | None,
        worker: ThreadPoolExecutor,
    ) -> None:
        loop, store = asyncio.get_running_loop(), context.store
        while not ending.done():
            await asyncio.wait([ending], timeout=TICK_S)
            if not ending.done():
                server.tick()
                replica.tick(loop.time())
                if registration is not None and not registration.has_begun and replica.is_readable:
                    self._register(registration, context, replica)
                if replica.follower.is_complete:
                    store.maybe_checkpoint(loop, worker)
            if self._is_reload_requested and not ending.done():
                self._is_reload_requested = False
                await self._reload(context)
        if ending.result() is None:
            await self._stop_with_care(server, context, registration)
        await store.finish_checkpoint()

    def _register(self, registration: RegistrationTask, context: Context, replica: ReplicaState) -> None:
        """Register, since there is something to read."""
        assert isinstance(context.listener, TopicAnnouncer)
        url = BrokerUrl(context.config.url_host, self._port)
        registration.begin(url, context.listener.registrations(), replica.facts.epoch)

    async def _stop_with_care(self, server: Server, context: Context, registration: RegistrationTask | None) -> None:
        """Unregister; then serve on for a moment, so that consumers notice and go elsewhere."""
        context.is_stopping = True
        log.info("stop began connections=%d", context.counters.connections)
        clock = asyncio.get_running_loop().time
        until = clock()
        if registration is not None:
            await registration.leave()
            until = clock() + context.config.zookeeper_section.sync_ms / 1000
        while server.has_connections and not self._stop_now.is_set() and (left_s := until - clock()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_now.wait(), min(left_s, TICK_S))
            server.tick()

    async def _reload(self, context: Context) -> None:
        """Read the configuration file again and apply its topics; on errors change nothing."""
        fresh = await asyncio.to_thread(reload, context.config)
        if fresh is None:
            return
        context.config = self._config = fresh
        assert isinstance(context.listener, TopicAnnouncer)
        changed = context.listener.follow_file(fresh.topics)
        log.info("reloaded file=%s topics=%d changed=%s", fresh.path, len(fresh.topics), ",".join(changed) or "none")


def read_slave_facts(config: BrokerConfig, file: SlaveFile) -> SlaveFacts:
    """Return the slave file's facts, new ones without a file. Raises ConfigError if the directory is another
    slave's.
    """
    section = config.slave
    assert section.id is not None
    own = SlaveFacts(cluster=config.broker.cluster, broker_id=config.broker_id, slave_id=section.id)
    facts = file.read() or own
    if (facts.cluster, facts.broker_id, facts.slave_id) != (own.cluster, own.broker_id, own.slave_id):
        raise ConfigError(
            f"{config.data} is the directory of slave {facts.slave_id} of broker {facts.broker_id}, cluster "
            f"{facts.cluster!r}, not of slave {own.slave_id} of broker {own.broker_id}, cluster {own.cluster!r}: start "
            f"that one here, or give this one a --data directory of its own"
        )
    return facts


def _open_copy(
    config: BrokerConfig, facts: SlaveFacts, wake: Callable[[], None], storage: DirectoryStorage, indexes: Indexes
) -> JournalFollower:
    return JournalFollower.open(
        storage,
        Identity(config.broker.cluster, config.broker_id),
        JournalConfig(segment_bytes=config.broker.segment_bytes, flush=config.flush),
        sink=indexes,
        on_progress=wake,
        publish_below=Lsn(facts.high_watermark),
        clock_ms=wall_clock_ms,
    )


async def _find_master(config: BrokerConfig, membership: Membership | None, facts: SlaveFacts) -> BrokerUrl | None:
    """Return the master to follow: the configured one, or ZooKeeper's; without a connection, the last one followed."""
    if config.slave.master is not None:
        host, _, port = config.slave.master.rpartition(":")
        return BrokerUrl(host.strip("[]"), int(port))
    assert membership is not None
    try:
        return await asyncio.to_thread(membership.master_url)
    except ZooKeeperError as error:
        log.warning("master not looked up, following the last one master=%s error=%s", facts.master, error)
        return BrokerUrl.parse(facts.master) if facts.master else None


def _announce_topics(
    topics: Topics, announcer: TopicAnnouncer, dispatcher: Dispatcher, used: list[str], decided: list[str]
) -> None:
    """Announce topics that got their first message here, or were decided about."""
    topics.used.update(used)
    if decided:
        topics.changed()
    for topic in used:
        if topics.find(topic) is not None:
            announcer.topic_used(topic)
    # Stored partitions of topics without a section are looked up together: there may be thousands.
    if changed := {*decided, *(topic for topic in used if topics.find(topic) is None)}:
        announcer.topics_changed(changed)
    for topic in decided:
        dispatcher.topic_decided(topic)


def _nothing() -> None:
    pass


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def _closing(store: MessageStore) -> AsyncIterator[None]:
    """Close the store: with a last checkpoint, unless something failed or the copy is incomplete."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageFailed):  # already reported: it caused this
            store.close()
        raise
    try:
        assert isinstance(store.source, JournalFollower)
        if store.journal.failure is None and store.source.is_complete:
            store.last_checkpoint()
    finally:
        store.close()


def _ready_line(config: BrokerConfig, replica: ReplicaState, url: str) -> str:
    facts, recovered = replica.facts, replica.follower.recovered
    whom = config.slave.master or facts.master or "the master that ZooKeeper names"
    where = f", ZooKeeper {config.zookeeper}" if config.zookeeper else ""
    unseen = "" if replica.serves else "; not registered, consumers do not come here"
    return (
        f"slave {facts.slave_id} of broker {config.broker_id} serves at {url}{where}, follows {whom}; data "
        f"{config.data}, flush {config.flush}; replayed {recovered.replayed_bytes} bytes up to LSN "
        f"{replica.follower.end}{unseen}"
    )


def _say_nothing(line: str) -> None:
    del line  # only the first start is announced
