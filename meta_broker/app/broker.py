"""Starts and stops a master, in order. One function each."""

import asyncio
import contextlib
import functools
import gc
import itertools
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from journal.errors import StorageFailed
from journal.records.epoch_history import WriterEpoch
from journal.state.transaction_store import wall_clock_ms
from meta_broker.app.in_doubt_at_stop import is_any_prepared, log_in_doubt
from meta_broker.app.watchdog import LoopWatchdog
from meta_broker.cluster.membership import Membership, some
from meta_broker.cluster.registration_task import NotRegistered, RegistrationTask
from meta_broker.cluster.topic_announcer import TopicAnnouncer, reload
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import ConfigError
from meta_broker.handlers.branch_timeouts import Timeouts
from meta_broker.handlers.context import Context, ReadReplica
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.net.server import TICK_S, Server
from meta_broker.replication.fencing import Superseded, epoch_for
from meta_broker.replication.lost_tail import LostTail
from meta_broker.replication.master.master import Master
from meta_broker.replication.replica.resync import restore_tail, why_async_is_unsafe
from meta_broker.replication.replica.slave_file import SlaveFile
from meta_broker.store.clock import Clock
from meta_broker.store.message_store import MessageStore
from meta_broker.store.relocation_job import RelocationJob
from meta_broker.store.start_on_full_disk import open_or_free_space
from meta_broker.store.topics import Topics
from meta_broker.version import PRODUCT_VERSION, VERSION_TEXT
from zk.brokers.registration import BrokerIdTaken
from zk.brokers.replication import ReplicationNode
from zk.errors import ZooKeeperUnavailable
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

# Ends an open broker: None, on request; a tail to restore; or an error.
Stop = asyncio.Future[LostTail | None]

# Thresholds of the three generations. Nearly all objects of a broker are freed by reference counts, and those it keeps,
# branches and indexes, live long; collecting a hundred thousand branches would stop the loop for 0.2 s. So a full
# collection waits until four million objects have survived.
GARBAGE_THRESHOLDS = (2_000, 10, 200)

STOP_POLL_S = 0.1  # between two checks of what a stop waits for


class Broker:
    """One master in one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._port = config.port
        self._stop: Stop | None = None  # while it is open
        self._is_stop_requested = False
        self._membership: Membership | None = None
        self._is_reload_requested = False
        self._dropped: frozenset[WriterEpoch] = frozenset()  # epochs replaced by an in-sync slave's tail
        self._stop_now = asyncio.Event()  # set: end a running stop without delay

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start, serve until told to stop, and stop. What was opened is always closed in reverse.

        If an in-sync slave has what this master lost, it stops, restores that, and starts again on the same port.
        """
        if (copy := SlaveFile(self._config.data).read()) is not None:
            raise ConfigError(
                f"{self._config.data} is a copy, slave {copy.slave_id}'s of broker {copy.broker_id}: start it as that "
                f"slave, or make it the master with `metaq promote {self._config.data}`"
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop)
        loop.add_signal_handler(signal.SIGHUP, self._request_reload)
        on_ready = _once(on_ready)
        while (lost := await self._open(loop, on_ready)) is not None:
            try:
                await asyncio.to_thread(restore_tail, self._config, lost)
            finally:
                lost.pieces.close()
            self._dropped |= lost.dropped
            if self._is_stop_requested:
                return

    async def _open(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[str], None]) -> LostTail | None:
        """Serve until told to stop; return the tail to restore before it is opened again, None to end."""
        stop: Stop = loop.create_future()
        self._stop = stop

        def refused(error: BrokerIdTaken | Superseded) -> None:  # on the membership thread
            loop.call_soon_threadsafe(self._end, stop, error)

        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            server = Server(loop, functools.partial(self._end, stop))
            port = self._port = server.reserve(self._config.broker.host, self._port)
            stack.push_async_callback(server.close)  # registered again below; here for failures in between
            node: ReplicationNode | None = None
            if self._config.zookeeper is not None:
                self._membership = Membership(self._config, self._config.zookeeper, refused)
                stack.callback(self._membership.close)
                await asyncio.to_thread(self._membership.connect)  # fail before anything is changed
                try:
                    node = await asyncio.to_thread(self._membership.replication)
                except ZooKeeperUnavailable:
                    return None  # stopped while ZooKeeper was away
            if (reason := why_async_is_unsafe(self._config, node)) is not None:
                raise ConfigError(reason)
            clock = Clock(wall_clock_ms)
            ids = MessageIds(self._config.broker_id, clock.now_ms)
            epoch = functools.partial(epoch_for, node=node, broker_id=self._config.broker_id)
            open_store = functools.partial(
                MessageStore.open,
                *(self._config, PRODUCT_VERSION, server.wake, ids.now_ms, server.loop_hooks(), epoch, clock),
                # In parallel with recovery: ZooKeeper is slow with thousands of topics.
                locked=self._membership.end_former_session if self._membership is not None else lambda: None,
            )
            store = await open_or_free_space(open_store, self._config, clock, worker)
            await stack.enter_async_context(_closing(store))
            tune_garbage_collector()
            ids.begin_after(store.transactions.state.time_ms)
            topics = Topics(self._config.topics, store.transactions.state.topics)
            announcer = TopicAnnouncer(topics, store, self._membership)
            context = self._context(store, ids, topics, announcer)
            url = BrokerUrl(self._config.url_host, port)
            context.url = str(url)
            write_node = self._membership.in_sync_changed if self._membership is not None else None
            master = Master(
                loop,
                store,
                self._config.replication,
                str(url),
                worker,
                server.progress,
                write_node,
                functools.partial(self._end, stop),
                self._dropped,
            )
            context.master = master
            stack.push_async_callback(master.close)  # after the last checkpoint, whose record slaves get, too
            stack.enter_context(_last_checkpoint(store))
            context.replicas = lambda: [ReadReplica(*found) for found in master.serving()]
            master.begin(node)
            stack.push_async_callback(server.close)
            context.loop_delay.begin(loop)
            stack.callback(context.loop_delay.end)
            await server.listen(Dispatcher(context))

            def ready() -> None:
                on_ready(_ready_line(self._config, store, str(url), self._membership))

            registration: RegistrationTask | None = None
            if self._membership is None:
                ready()
            else:
                registration = RegistrationTask(self._membership, functools.partial(self._end, stop))
                stack.push_async_callback(registration.leave)  # first out
                registration.begin(url, announcer.registrations(), store.transactions.state.epoch, ready)

            def release() -> None:
                store.resume_acks()
                server.wake()

            hang_seconds_max = self._config.broker.hang_seconds_max
            watchdog = LoopWatchdog(store.journal, self._membership, hang_seconds_max, store.suspend_acks, release)
            stack.callback(watchdog.close)
            watchdog.begin(loop)
            await self._tick_until(stop, server, context, announcer, registration, loop, worker)
        return stop.result()

    def _request_stop(self) -> None:
        self._is_stop_requested = True
        if self._stop is not None:
            self._end(self._stop, None)
        if self._membership is not None:
            self._membership.cancel()

    def _end(self, stop: "Stop", why: StorageFailed | NotRegistered | LostTail | None) -> None:
        """End `serve`, with an error or without. Only the first call counts; a second one hurries it."""
        if stop.done():
            self._stop_now.set()
        elif why is None or isinstance(why, LostTail):
            stop.set_result(why)
        else:
            stop.set_exception(why)

    def _request_reload(self) -> None:
        self._is_reload_requested = True

    def _context(self, store: MessageStore, ids: MessageIds, topics: Topics, announcer: TopicAnnouncer) -> Context:
        return Context(
            config=self._config,
            store=store,
            topics=topics,
            ids=ids,
            timeouts=Timeouts(),
            listener=announcer,
            url="",  # until the port is known
            version=VERSION_TEXT,
        )

    async def _tick_until(
        self,
        stop: "Stop",
        server: Server,
        context: Context,
        announcer: TopicAnnouncer,
        registration: RegistrationTask | None,
        loop: asyncio.AbstractEventLoop,
        worker: ThreadPoolExecutor,
    ) -> None:
        store = context.store
        relocation = RelocationJob(
            store.transactions, store.high_watermark, context.config.broker.relocate_after_segments
        )
        while not stop.done():
            await asyncio.wait([stop], timeout=TICK_S)
            if not stop.done():
                server.tick()
                while server.expire():
                    await asyncio.sleep(0)
                    if stop.done():
                        break
                store.maybe_checkpoint(loop, worker)
                if store.watermark is not None:
                    store.watermark.tick()
                if not store.space.why_full:  # relocation needs room before it frees any
                    relocation.maybe_begin(loop, worker)
            if self._is_reload_requested and not stop.done():
                self._is_reload_requested = False
                await self._reload(context, announcer)
        if stop.exception() is None and stop.result() is None:
            await self._stop_with_care(server, context, registration)
        await relocation.finish()
        await store.finish_checkpoint()
        stop.result()  # raises what ended it

    async def _stop_with_care(self, server: Server, context: Context, registration: RegistrationTask | None) -> None:
        """Begin no more branches and unregister; then give connected clients time to notice and to finish prepared
        branches.

        Does not wait once `_stop_now` is set.
        """
        context.is_stopping = True
        log.info("stop began connections=%d", context.counters.connections)
        clock, sync_s = asyncio.get_running_loop().time, 0.0
        finish_until = clock() + context.config.broker.stop_seconds_max
        if registration is not None:
            await registration.leave()
            sync_s = context.config.zookeeper_section.sync_ms / 1000
        see_until = clock() + sync_s
        while server.has_connections and not self._stop_now.is_set():
            now = clock()
            left_s = finish_until - now if is_any_prepared(context.store.transactions) else 0.0
            if (wait_s := max(left_s, see_until - now)) <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_now.wait(), min(wait_s, STOP_POLL_S))
            server.tick()
            server.expire()

    async def _reload(self, context: Context, announcer: TopicAnnouncer) -> None:
        """Read the configuration file again and apply its topics; on errors change nothing."""
        fresh = await asyncio.to_thread(reload, context.config)
        if fresh is None:
            return
        context.config = fresh
        changed = announcer.follow_file(fresh.topics)
        if self._membership is not None:
            self._membership.config_changed(fresh.checksum)
        log.info("reloaded file=%s topics=%d changed=%s", fresh.path, len(fresh.topics), ",".join(changed) or "none")


@contextlib.asynccontextmanager
async def _closing(store: MessageStore) -> AsyncIterator[None]:
    """Close the store."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageFailed):  # already reported: it caused this
            store.close()
        raise
    store.close()


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
    log_in_doubt(store.transactions)


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


def tune_garbage_collector() -> None:
    """Exclude everything made by the start from garbage collection, and collect the rest seldom."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that calls *tell* only the first time."""
    calls = itertools.count()
    return lambda line: None if next(calls) else tell(line)
