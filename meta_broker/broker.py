"""The order in which a master starts and stops. One function each."""

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
from journal.lives import Life
from journal.transaction_store import wall_clock_ms
from meta_broker.clock import Clock
from meta_broker.config import BrokerConfig
from meta_broker.errors import ConfigError
from meta_broker.joining import Joining, NotJoined
from meta_broker.membership import Membership, some
from meta_broker.message_ids import MessageIds
from meta_broker.offering import Offering, read_again
from meta_broker.processors.context import Context, ReadReplica
from meta_broker.processors.dispatch import Dispatcher
from meta_broker.replication.fencing import Superseded, epoch_for
from meta_broker.replication.lost_tail import LostTail
from meta_broker.replication.master import Master
from meta_broker.replication.rebuilding import take_back, why_not_async
from meta_broker.replication.slave_file import SlaveFile
from meta_broker.server import TICK_S, Server
from meta_broker.store.carrying_job import CarryingJob
from meta_broker.store.making_room import opened_with_room
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.transactions.stopping import is_any_prepared, tell_left
from meta_broker.transactions.timeouts import Timeouts
from meta_broker.version import PRODUCT_VERSION, VERSION_TEXT
from meta_broker.watchdog import Watchdog
from zk.broker_url import BrokerUrl
from zk.errors import ZooKeeperUnavailable
from zk.registration import BrokerIdTaken
from zk.replication import ReplicationNode

log = logging.getLogger(__name__)

# Why a broker is not open any more: None, it was told to stop; else what it lost. Or an error.
Stop = asyncio.Future[LostTail | None]

# When the garbage collector looks: at what is young after so many new objects, at what is older after so many such
# looks, at everything after so many of those. A broker drops nearly all it makes by itself, and what it keeps, branches
# and indexes, it keeps for long: a look at a hundred thousand branches takes 0.2 s, in which nobody is served. So the
# one at everything waits until four million objects have come to stay.
GARBAGE_THRESHOLDS = (2_000, 10, 200)

LOOK_S = 0.1  # how long a stop may go on after there is nothing left to wait for


class Broker:
    """One master in one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._port = config.port
        self._stop: Stop | None = None  # while it is open
        self._is_told = False  # to stop
        self._membership: Membership | None = None
        self._is_reload_asked = False
        self._dropped: frozenset[Life] = frozenset()  # lives that went for what a slave in sync had
        self._hurry = asyncio.Event()  # a stop that has begun is to end without delay

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start, serve until told to stop, stop. What was opened is closed in reverse, whatever happens.

        Where a slave in sync has what this master lost, it stops, takes that, and starts again on the same port.
        """
        if (copy := SlaveFile(self._config.data).read()) is not None:
            raise ConfigError(
                f"{self._config.data} is a copy, slave {copy.slave_id}'s of broker {copy.broker_id}: start it as that "
                f"slave, or make it the master with `metaq promote {self._config.data}`"
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_asked)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked)
        on_ready = _once(on_ready)
        while (lost := await self._open(loop, on_ready)) is not None:
            try:
                await asyncio.to_thread(take_back, self._config, lost)
            finally:
                lost.pieces.close()
            self._dropped |= lost.dropped
            if self._is_told:
                return

    async def _open(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[str], None]) -> LostTail | None:
        """Serve until told to stop; return what to take back before it is opened again, None when it is to end."""
        stop: Stop = loop.create_future()
        self._stop = stop

        def refused(error: BrokerIdTaken | Superseded) -> None:  # on the membership thread
            loop.call_soon_threadsafe(self._settle, stop, error)

        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            server = Server(loop, functools.partial(self._settle, stop))
            port = self._port = server.reserve(self._config.broker.host, self._port)
            stack.push_async_callback(server.close)  # once more below: whatever fails in between
            node: ReplicationNode | None = None
            if self._config.zookeeper is not None:
                self._membership = Membership(self._config, self._config.zookeeper, refused)
                stack.callback(self._membership.close)
                await asyncio.to_thread(self._membership.connect)  # fail before anything is touched
                try:
                    node = await asyncio.to_thread(self._membership.replication)
                except ZooKeeperUnavailable:
                    return None  # it was told to stop while ZooKeeper was away
            if (reason := why_not_async(self._config, node)) is not None:
                raise ConfigError(reason)
            clock = Clock(wall_clock_ms)
            ids = MessageIds(self._config.broker_id, clock.now_ms)
            epoch = functools.partial(epoch_for, node=node, broker_id=self._config.broker_id)
            open_store = functools.partial(
                MessageStore.open,
                *(self._config, PRODUCT_VERSION, server.wake, ids.now_ms, server.turns(), epoch, clock),
            )
            store = await opened_with_room(open_store, self._config, clock, worker)
            await stack.enter_async_context(_closing(store))
            calm_collector()
            ids.begin_after(store.transactions.state.time_ms)
            topics = Topics(self._config.topics, store.transactions.state.topics)
            offering = Offering(topics, store, self._membership)
            context = self._context(store, ids, topics, offering)
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
                functools.partial(self._settle, stop),
                self._dropped,
            )
            context.master = master
            stack.push_async_callback(master.close)  # slaves get the last checkpoint's record, too
            stack.enter_context(_last_checkpoint(store))
            context.replicas = lambda: [ReadReplica(*found) for found in master.serving()]
            master.begin(node)
            stack.push_async_callback(server.close)
            context.loop_delay.begin(loop)
            stack.callback(context.loop_delay.end)
            await server.listen(Dispatcher(context))

            def ready() -> None:
                on_ready(_ready_line(self._config, store, str(url), self._membership))

            joining: Joining | None = None
            if self._membership is None:
                ready()
            else:
                joining = Joining(self._membership, functools.partial(self._settle, stop))
                stack.push_async_callback(joining.leave)  # first out
                joining.begin(url, offering.registrations(), store.transactions.state.epoch, ready)

            def release() -> None:
                store.release()
                server.wake()

            hang_seconds_max = self._config.broker.hang_seconds_max
            watchdog = Watchdog(store.journal, self._membership, hang_seconds_max, store.hold, release)
            stack.callback(watchdog.close)
            watchdog.begin(loop)
            await self._tick_until(stop, server, context, offering, joining, loop, worker)
        return stop.result()

    def _stop_asked(self) -> None:
        self._is_told = True
        if self._stop is not None:
            self._settle(self._stop, None)
        if self._membership is not None:
            self._membership.cancel()

    def _settle(self, stop: "Stop", why: StorageFailed | NotJoined | LostTail | None) -> None:
        """Tell `serve` to end, with an error or without. Only the first word counts; a second one hurries it."""
        if stop.done():
            self._hurry.set()
        elif why is None or isinstance(why, LostTail):
            stop.set_result(why)
        else:
            stop.set_exception(why)

    def _reload_asked(self) -> None:
        self._is_reload_asked = True

    def _context(self, store: MessageStore, ids: MessageIds, topics: Topics, offering: Offering) -> Context:
        return Context(
            config=self._config,
            store=store,
            topics=topics,
            ids=ids,
            timeouts=Timeouts(),
            listener=offering,
            url="",  # until the port is known
            version=VERSION_TEXT,
        )

    async def _tick_until(
        self,
        stop: "Stop",
        server: Server,
        context: Context,
        offering: Offering,
        joining: Joining | None,
        loop: asyncio.AbstractEventLoop,
        worker: ThreadPoolExecutor,
    ) -> None:
        store = context.store
        carrying = CarryingJob(store.transactions, store.fence, context.config.broker.carry_after_segments)
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
                if not store.space.why_full:  # what is carried takes room before it makes any
                    carrying.maybe_begin(loop, worker)
            if self._is_reload_asked and not stop.done():
                self._is_reload_asked = False
                await self._reload(context, offering)
        if stop.exception() is None and stop.result() is None:
            await self._stop_with_care(server, context, joining)
        await carrying.finish()
        await store.finish_checkpoint()
        stop.result()  # raises what ended it

    async def _stop_with_care(self, server: Server, context: Context, joining: Joining | None) -> None:
        """Begin no branch any more and unregister; then, while clients are here and still served, give them the time to
        see it, and to finish what they have prepared. In hurry, do not wait."""
        context.is_stopping = True
        log.info("stop began connections=%d", context.counters.connections)
        clock, sync_s = asyncio.get_running_loop().time, 0.0
        finish_until = clock() + context.config.broker.stop_seconds_max
        if joining is not None:
            await joining.leave()
            sync_s = context.config.zookeeper_section.sync_ms / 1000
        see_until = clock() + sync_s
        while server.has_connections and not self._hurry.is_set():
            now = clock()
            left_s = finish_until - now if is_any_prepared(context.store.transactions) else 0.0
            if (wait_s := max(left_s, see_until - now)) <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), min(wait_s, LOOK_S))
            server.tick()
            server.expire()

    async def _reload(self, context: Context, offering: Offering) -> None:
        """Read the configuration file again and follow what it says of topics; or nothing changes."""
        fresh = await asyncio.to_thread(read_again, context.config)
        if fresh is None:
            return
        context.config = fresh
        changed = offering.follow_file(fresh.topics)
        if self._membership is not None:
            self._membership.config_changed(fresh.checksum)
        log.info("reloaded file=%s topics=%d changed=%s", fresh.path, len(fresh.topics), ",".join(changed) or "none")


@contextlib.asynccontextmanager
async def _closing(store: MessageStore) -> AsyncIterator[None]:
    """Close the store."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageFailed):  # it was told: that is why we are here
            store.close()
        raise
    store.close()


@contextlib.contextmanager
def _last_checkpoint(store: MessageStore) -> Iterator[None]:
    """After a clean stop, take a last checkpoint, and say what is in doubt."""
    yield
    try:
        store.last_checkpoint()
    except StorageFailed as error:
        if store.journal.failure is not None:
            raise
        log.error("no last checkpoint, the next start reads more of the journal error=%s", error)
    tell_left(store.transactions)


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


def calm_collector() -> None:
    """Never look at what the start has made, and seldom at everything else."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """*tell*, but only its first call counts."""
    calls = itertools.count()
    return lambda line: None if next(calls) else tell(line)
