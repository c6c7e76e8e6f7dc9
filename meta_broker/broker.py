"""The order in which a broker starts and stops. One function each."""

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import uvloop

from journal.errors import StorageFailed
from journal.transaction_store import wall_clock_ms
from meta_broker.config import BrokerConfig
from meta_broker.membership import Membership
from meta_broker.message_ids import MessageIds
from meta_broker.offering import Offering, read_again
from meta_broker.processors.context import Context
from meta_broker.processors.dispatch import Dispatcher
from meta_broker.server import TICK_S, Server
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.transactions.timeouts import Timeouts
from meta_broker.version import PRODUCT_VERSION, VERSION_TEXT
from zk.broker_url import BrokerUrl
from zk.registration import BrokerIdTaken

log = logging.getLogger(__name__)


def run(config: BrokerConfig, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. Blocks.

    *on_ready* gets one line once clients can come. Raises JournalError, BrokerError, ZooKeeperError when it can't
    start, and StorageFailed when the journal stopped; nothing is left running or half done.
    """
    uvloop.run(Broker(config).serve(on_ready))


class Broker:
    """One broker in one event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._membership: Membership | None = None
        self._is_reload_asked = False

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start, serve until told to stop, stop. What was opened is closed in reverse, whatever happens."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[None] = loop.create_future()

        def refused(error: BrokerIdTaken) -> None:  # on the membership thread
            loop.call_soon_threadsafe(_settle, stop, error)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_asked, stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked)
        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            server = Server(loop, functools.partial(_settle, stop))
            port = server.reserve(self._config.broker.host, self._config.port)
            stack.push_async_callback(server.close)  # once more below: whatever fails in between
            if self._config.zookeeper is not None:
                self._membership = Membership(self._config, self._config.zookeeper, refused)
                stack.callback(self._membership.close)
                await asyncio.to_thread(self._membership.connect)  # fail before anything is touched
            ids = MessageIds(self._config.broker_id, wall_clock_ms)
            store = MessageStore.open(self._config, PRODUCT_VERSION, server.wake, ids.now_ms, loop.call_soon)
            await stack.enter_async_context(_closing(store))
            ids.begin_after(store.transactions.state.time_ms)
            topics = Topics(self._config.topics, store.transactions.state.topics)
            offering = Offering(topics, store, self._membership)
            context = self._context(store, ids, topics, offering)
            url = BrokerUrl(self._config.url_host, port)
            context.url = str(url)
            stack.push_async_callback(server.close)
            await server.listen(Dispatcher(context))
            if self._membership is not None:
                stack.push_async_callback(self._leave, self._membership, server)  # first out
                try:
                    await asyncio.to_thread(self._membership.join, url, offering.registrations())
                except BrokerIdTaken:
                    if not stop.done():  # else it was told to stop while it waited for the id
                        raise
            if not stop.done():
                on_ready(_ready_line(self._config, store, str(url)))
            await self._tick_until(stop, server, context, offering, loop, worker)

    def _stop_asked(self, stop: "asyncio.Future[None]") -> None:
        _settle(stop, None)
        if self._membership is not None:
            self._membership.cancel()

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
        stop: "asyncio.Future[None]",
        server: Server,
        context: Context,
        offering: Offering,
        loop: asyncio.AbstractEventLoop,
        worker: ThreadPoolExecutor,
    ) -> None:
        store = context.store
        while not stop.done():
            await asyncio.wait([stop], timeout=TICK_S)
            if not stop.done():
                server.tick()
                store.maybe_checkpoint(loop, worker)
            if self._is_reload_asked and not stop.done():
                self._is_reload_asked = False
                await self._reload(context, offering)
        await store.finish_checkpoint()
        stop.result()

    async def _leave(self, membership: Membership, server: Server) -> None:
        """Unregister, and give the clients that are here the time to see it while they are still served."""
        await asyncio.to_thread(membership.leave)
        if server.has_connections:
            await asyncio.sleep(self._config.zookeeper_section.sync_ms / 1000)

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
    """Close the store: with a last checkpoint after a clean stop, without one after a failure."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageFailed):  # it was told: that is why we are here
            store.close()
        raise
    try:
        store.last_checkpoint()
    finally:
        store.close()


def _settle(stop: "asyncio.Future[None]", error: StorageFailed | BrokerIdTaken | None) -> None:
    """Tell `serve` to end, with an error or without; only the first word counts."""
    if stop.done():
        return
    if error is None:
        stop.set_result(None)
    else:
        stop.set_exception(error)


def _ready_line(config: BrokerConfig, store: MessageStore, url: str) -> str:
    recovered = store.transactions.recovered
    in_doubt = len(store.transactions.transactions)
    where = f", ZooKeeper {config.zookeeper}" if config.zookeeper else ", no ZooKeeper: clients need the URL"
    risk = f" (a power cut may cost up to {config.flush.interval_ms} ms)" if config.flush.interval_ms else ""
    return (
        f"broker {config.broker_id} serves at {url}{where}; data {config.data}, flush {config.flush}{risk}; "
        f"replayed {recovered.replayed_bytes} bytes, {in_doubt} branches in doubt"
    )
