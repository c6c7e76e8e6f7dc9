"""The order in which a slave starts, follows its master, and stops.

What it keeps is changed only while nothing of it is open: to cut what its master never had, or to begin anew, it closes
everything, does that, and starts again on the same port, in the same process.
"""

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from journal.errors import StorageFailed
from journal.follower import JournalFollower
from journal.frame import Lsn
from journal.open_journal import JournalConfig
from journal.segments import Identity
from journal.storage import DirectoryStorage
from journal.transaction_store import wall_clock_ms
from meta_broker.broker import calm_collector
from meta_broker.clock import Clock
from meta_broker.config import BrokerConfig
from meta_broker.errors import BrokerError, ConfigError
from meta_broker.joining import Joining, NotJoined
from meta_broker.membership import Membership
from meta_broker.message_ids import MessageIds
from meta_broker.offering import Offering, read_again
from meta_broker.processors.context import Context
from meta_broker.processors.dispatch import Dispatcher
from meta_broker.replication.fencing import Superseded
from meta_broker.replication.follower_link import FollowerLink
from meta_broker.replication.following import Following, Rebuild
from meta_broker.replication.rebuilding import rebuild
from meta_broker.replication.slave_file import SlaveFacts, SlaveFile
from meta_broker.server import TICK_S, Server
from meta_broker.store.indexes import Indexes
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.transactions.timeouts import Timeouts
from meta_broker.version import VERSION_TEXT
from meta_broker.watchdog import Watchdog
from zk.broker_url import BrokerUrl
from zk.errors import ZooKeeperError
from zk.registration import BrokerIdTaken

log = logging.getLogger(__name__)

# Why a slave is not open any more. None: it was told to stop.
Ending = Rebuild | BrokerError | BrokerIdTaken | StorageFailed | None


class Slave:
    """One slave in one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        assert config.is_slave
        self._config = config
        self._port = config.port
        self._file = SlaveFile(config.data)
        self._ending: asyncio.Future[Ending] | None = None  # while it is open
        self._is_told = False  # to stop
        self._hurry = asyncio.Event()
        self._is_reload_asked = False

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start, follow and serve until told to stop, stop. What was opened is closed in reverse, whatever happens.

        Raises JournalError, BrokerError, ZooKeeperError when it can't start or go on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_asked)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked)
        while isinstance(ending := await self._open(loop, on_ready), Rebuild):
            on_ready = _say_nothing
            if self._is_told:
                return  # the next start finds out the same
            await asyncio.to_thread(rebuild, self._config, ending)
        if ending is not None:
            raise ending

    async def _open(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[str], None]) -> Ending:
        config = self._config
        ending: asyncio.Future[Ending] = loop.create_future()
        self._ending = ending
        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            server = Server(loop, self._over)
            self._port = server.reserve(config.broker.host, self._port)
            stack.push_async_callback(server.close)  # once more below: whatever fails in between
            membership = await self._connect(stack, loop)
            facts = slave_facts(config, self._file)
            store = MessageStore.open_over(
                config,
                functools.partial(_open_copy, config, facts, server.wake),
                Lsn(facts.fence),
                Clock(wall_clock_ms),
            )
            await stack.enter_async_context(_closing(store))
            assert isinstance(store.source, JournalFollower)
            calm_collector()
            await asyncio.to_thread(self._file.write, facts)  # from here on this is a slave's directory
            topics = Topics(config.topics, store.source.state.topics)
            serves = membership is not None and config.slave_registers
            offering = Offering(topics, store, membership if serves else None, decides=False)
            following = Following(
                facts,
                self._file,
                store,
                store.source,
                functools.partial(_find_master, config, membership),
                server.wake,
                self._over,
                wall_clock_ms,
                serves=serves,
            )
            stack.push_async_callback(following.close)
            url = BrokerUrl(config.url_host, self._port)
            context = Context(
                config=config,
                store=store,
                topics=topics,
                ids=MessageIds(config.broker_id, wall_clock_ms),
                timeouts=Timeouts(),
                listener=offering,
                url=str(url),
                version=VERSION_TEXT,
                slave=following,
            )
            dispatcher = Dispatcher(context)
            following.on_topics = functools.partial(_tell_topics, topics, offering, dispatcher)
            stack.push_async_callback(server.close)
            context.loop_delay.begin(loop)
            stack.callback(context.loop_delay.end)
            await server.listen(dispatcher)
            link = FollowerLink(following)
            following.progress = link.progress
            following.on_news = lambda: following.tick(loop.time())
            running = loop.create_task(link.run())
            running.add_done_callback(self._link_ended)
            stack.push_async_callback(_cancelled, running)
            joining: Joining | None = None
            if membership is not None and following.serves:
                joining = Joining(membership, self._not_joined)
                stack.push_async_callback(joining.leave)  # first out
            # A slave acknowledges to its master alone, which hears what is durable here, and nothing else.
            watchdog = Watchdog(store.journal, membership, config.broker.hang_seconds_max, _nothing, _nothing)
            stack.callback(watchdog.close)
            watchdog.begin(loop)
            on_ready(_ready_line(config, following, str(url)))
            await self._tick_until(ending, server, context, following, joining, worker)
        return ending.result()

    # -- how it ends ------------------------------------------------------------------------------------------

    def _over(self, why: Ending) -> None:
        """Close what is open, for this reason; only the first one counts."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(why)

    def _stop_asked(self) -> None:
        if self._is_told:
            self._hurry.set()
        self._is_told = True
        self._over(None)

    def _reload_asked(self) -> None:
        self._is_reload_asked = True

    def _link_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, BrokerError | StorageFailed):
                raise error
            self._over(error)

    def _not_joined(self, error: NotJoined) -> None:
        if isinstance(error, BrokerIdTaken | Superseded):
            self._over(error)
        else:
            log.warning("not registered, trying again error=%s", error)  # with the next tick

    # -- while it is open -------------------------------------------------------------------------------------

    async def _connect(self, stack: contextlib.AsyncExitStack, loop: asyncio.AbstractEventLoop) -> Membership | None:
        config = self._config
        if config.zookeeper is None:
            return None

        def refused(error: BrokerIdTaken | Superseded) -> None:  # on the membership thread
            loop.call_soon_threadsafe(self._over, error)

        membership = Membership(config, config.zookeeper, refused)
        stack.callback(membership.close)
        await asyncio.to_thread(membership.connect)  # fail before anything is touched
        return membership

    async def _tick_until(
        self,
        ending: "asyncio.Future[Ending]",
        server: Server,
        context: Context,
        following: Following,
        joining: Joining | None,
        worker: ThreadPoolExecutor,
    ) -> None:
        loop, store = asyncio.get_running_loop(), context.store
        while not ending.done():
            await asyncio.wait([ending], timeout=TICK_S)
            if not ending.done():
                server.tick()
                following.tick(loop.time())
                if joining is not None and not joining.has_begun and following.is_showing:
                    self._join(joining, context, following)
                if following.follower.is_complete:
                    store.maybe_checkpoint(loop, worker)
            if self._is_reload_asked and not ending.done():
                self._is_reload_asked = False
                await self._reload(context)
        if ending.result() is None:
            await self._stop_with_care(server, context, joining)
        await store.finish_checkpoint()

    def _join(self, joining: Joining, context: Context, following: Following) -> None:
        """Register: there is something to show."""
        assert isinstance(context.listener, Offering)
        url = BrokerUrl(context.config.url_host, self._port)
        joining.begin(url, context.listener.registrations(), following.facts.epoch)

    async def _stop_with_care(self, server: Server, context: Context, joining: Joining | None) -> None:
        """Unregister; then serve on for a moment, so that consumers see it and go elsewhere."""
        context.is_stopping = True
        log.info("stop began connections=%d", context.counters.connections)
        clock = asyncio.get_running_loop().time
        until = clock()
        if joining is not None:
            await joining.leave()
            until = clock() + context.config.zookeeper_section.sync_ms / 1000
        while server.has_connections and not self._hurry.is_set() and (left_s := until - clock()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), min(left_s, TICK_S))
            server.tick()

    async def _reload(self, context: Context) -> None:
        """Read the configuration file again and follow what it says of topics; or nothing changes."""
        fresh = await asyncio.to_thread(read_again, context.config)
        if fresh is None:
            return
        context.config = self._config = fresh
        assert isinstance(context.listener, Offering)
        changed = context.listener.follow_file(fresh.topics)
        log.info("reloaded file=%s topics=%d changed=%s", fresh.path, len(fresh.topics), ",".join(changed) or "none")


def slave_facts(config: BrokerConfig, file: SlaveFile) -> SlaveFacts:
    """What this slave knows of its master, nothing if it is new. Raises ConfigError for another one's directory."""
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
        publish_below=Lsn(facts.fence),
        clock_ms=wall_clock_ms,
    )


async def _find_master(config: BrokerConfig, membership: Membership | None, facts: SlaveFacts) -> BrokerUrl | None:
    """Whom to follow: as configured, or as ZooKeeper says; while that is away, whom this slave followed last."""
    if config.slave.master is not None:
        host, _, port = config.slave.master.rpartition(":")
        return BrokerUrl(host.strip("[]"), int(port))
    assert membership is not None
    try:
        return await asyncio.to_thread(membership.master_url)
    except ZooKeeperError as error:
        log.warning("master not looked up, following the last one master=%s error=%s", facts.master, error)
        return BrokerUrl.parse(facts.master) if facts.master else None


def _tell_topics(
    topics: Topics, offering: Offering, dispatcher: Dispatcher, used: list[str], decided: list[str]
) -> None:
    """Topics have got their first message here, or were decided about."""
    topics.used.update(used)
    if decided:
        topics.changed()
    for topic in used:
        if topics.find(topic) is not None:
            offering.topic_used(topic)
    # What is stored of topics that no section names is looked up for all of them at once: there may be thousands.
    if changed := {*decided, *(topic for topic in used if topics.find(topic) is None)}:
        offering.topics_changed(changed)
    for topic in decided:
        dispatcher.topic_decided(topic)


def _nothing() -> None:
    pass


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def _closing(store: MessageStore) -> AsyncIterator[None]:
    """Close the store: with a last checkpoint, unless something failed, or the copy is not whole yet."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageFailed):  # it was told: that is why we are here
            store.close()
        raise
    try:
        assert isinstance(store.source, JournalFollower)
        if store.journal.failure is None and store.source.is_complete:
            store.last_checkpoint()
    finally:
        store.close()


def _ready_line(config: BrokerConfig, following: Following, url: str) -> str:
    facts, recovered = following.facts, following.follower.recovered
    whom = config.slave.master or facts.master or "the master that ZooKeeper names"
    where = f", ZooKeeper {config.zookeeper}" if config.zookeeper else ""
    unseen = "" if following.serves else "; not registered, consumers do not come here"
    return (
        f"slave {facts.slave_id} of broker {config.broker_id} serves at {url}{where}, follows {whom}; data "
        f"{config.data}, flush {config.flush}; replayed {recovered.replayed_bytes} bytes up to LSN "
        f"{following.follower.end}{unseen}"
    )


def _say_nothing(line: str) -> None:
    del line  # it was ready before
