"""Starts, runs and stops a broker in one event loop, in order: what a master and a slave have in common."""

import asyncio
import contextlib
import gc
import itertools
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from journal.errors import StorageFailed
from journal.records.states import BranchState
from meta_broker.app.service_manager import STOPPING, notify
from meta_broker.app.watchdog import LoopWatchdog
from meta_broker.cluster.membership import Membership
from meta_broker.cluster.registration_task import RegistrationTask
from meta_broker.cluster.topic_announcer import TopicAnnouncer, TopicRegistry, reload
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.exposure import exposure_warnings
from meta_broker.daemon_call import in_daemon_thread
from meta_broker.handlers.context import Context
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.metrics.admin_token import AdminToken
from meta_broker.metrics.status import BrokerStatus, OpenBroker
from meta_broker.net.server import TICK_S, Server
from meta_broker.net.tls_listener import PortTls
from meta_broker.replication.lost_tail import LostTail
from meta_broker.replication.replica.effects import Resync
from meta_broker.store.message_store import MessageStore
from meta_broker.store.topics import Topics
from meta_broker.version import version_answer
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

# Thresholds of the three generations. Nearly all objects of a broker are freed by reference counts, and those it keeps,
# branches and indexes, live long; collecting a hundred thousand branches would stop the loop for 0.2 s. So a full
# collection waits until four million objects have survived.
GARBAGE_THRESHOLDS = (2_000, 10, 200)

STOP_POLL_S = 0.1  # between two checks of what a stop waits for

RoleChange = LostTail | Resync  # of a directory, made while it is closed
# Ends an open broker: None, on request; a change, after which it is opened again; or an error.
Ending = asyncio.Future[RoleChange | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The parts of an open broker that any role needs. *stack* closes what a role opens, in reverse."""

    loop: asyncio.AbstractEventLoop
    stack: contextlib.AsyncExitStack
    worker: ThreadPoolExecutor
    server: Server
    url: BrokerUrl
    membership: Membership | None  # None: there is no ZooKeeper
    end: Callable[[RoleChange | Exception | None], None]  # only the first call counts


class Role(ABC):
    """A master's or a slave's part in a broker's life. Loop thread only.

    For each opening of the directory: `open`, `begin`, `tick` twice a second, `stop`; then `apply` if it has to be
    changed.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config

    @abstractmethod
    async def open(self, start: Start) -> Dispatcher | None:
        """Open the store, and what clients need. None: stopped before that."""

    @abstractmethod
    def begin(self, start: Start, on_ready: Callable[[str], None]) -> RegistrationTask | None:
        """Begin what needs a listening broker, the registration included; call *on_ready* once clients can come."""

    @abstractmethod
    def tick(self, start: Start, store: MessageStore) -> None:
        """Begin what is due."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop what `tick` has begun, and wait for its end."""

    @abstractmethod
    async def apply(self, change: RoleChange, *, is_stopping: bool) -> None:
        """Change the closed directory."""


class Broker:
    """One broker in one event loop, in one role."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._port = role.config.port
        self._status = BrokerStatus(role.config)
        self._tls = PortTls(role.config.tls) if role.config.tls.is_on else None
        self._admin_token = AdminToken(role.config.admin)
        self._ending: Ending | None = None  # while it is open
        self._membership: Membership | None = None
        self._is_stop_requested = False
        self._is_reload_requested = False
        self._stop_now = asyncio.Event()  # set: end a running stop without delay

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Start, serve until told to stop, and stop. What was opened is always closed in reverse.

        If the directory has to change, it is closed, changed and opened again, on the same port. *on_ready* is called
        once. Raises JournalError, BrokerError, ZooKeeperError, CannotServe if it cannot start or go on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop)
        loop.add_signal_handler(signal.SIGHUP, self._request_reload)
        async with contextlib.AsyncExitStack() as stack:
            where = ""
            if self._role.config.admin.port is not None:
                from meta_broker.metrics.admin import serve_admin  # a tenth of a second, which others need not wait

                admin = serve_admin(self._status, self._role.config.admin.port, self._admin_token, self._tls)
                stack.push_async_callback(asyncio.to_thread, admin.close)
                where = f"; metrics at {admin.url}/metrics"

            def ready(line: str) -> None:
                for text in exposure_warnings(self._role.config):
                    log.warning(text)
                on_ready(line + where)

            on_ready_once = _once(ready)
            while (change := await self._open(loop, on_ready_once)) is not None:
                await self._role.apply(change, is_stopping=self._is_stop_requested)
                if self._is_stop_requested:
                    return

    async def _open(self, loop: asyncio.AbstractEventLoop, on_ready: Callable[[str], None]) -> RoleChange | None:
        """Serve until told to stop; return the change to make before the next opening, None to end."""
        role, config = self._role, self._role.config
        ending: Ending = loop.create_future()
        self._ending, end = ending, partial(self._end_serving, ending)
        self._stop_now.clear()  # of an opening that ended twice

        def membership_ended(error: Exception) -> None:  # on the membership thread
            loop.call_soon_threadsafe(end, error)

        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            server = Server(loop, end, self._tls)
            self._port = server.reserve(config.broker.host, self._port)
            stack.push_async_callback(server.close)  # registered again below; here for failures in between
            if config.zookeeper is not None:
                self._membership = Membership(config, config.zookeeper, membership_ended)
                stack.callback(self._membership.close)
                await asyncio.to_thread(self._membership.connect)  # fail before anything is changed
            membership = self._membership
            if membership is not None and not await asyncio.to_thread(membership.cluster.check):
                return None  # stopped while ZooKeeper was away
            url = BrokerUrl(config.url_host, self._port)
            start = Start(loop=loop, stack=stack, worker=worker, server=server, url=url, membership=membership, end=end)
            if (dispatcher := await role.open(start)) is None:
                return None
            context, store = dispatcher.context, dispatcher.context.store
            if membership is not None and not await asyncio.to_thread(membership.cluster.join, store.journal.storage):
                return None
            stack.push_async_callback(server.close)
            context.loop_delay.start(loop)
            stack.callback(context.loop_delay.stop)
            await server.listen(dispatcher)

            def suspend_acks() -> None:
                if context.slave is None:  # a slave tells only its master, and only what is durable here
                    store.suspend_acks()

            def resume_acks() -> None:
                store.resume_acks()
                server.wake()

            hang_seconds_max = config.broker.hang_seconds_max
            watchdog = LoopWatchdog(store.journal, membership, hang_seconds_max, suspend_acks, resume_acks)
            registering = membership if not config.is_slave or config.slave_registers else None
            self._status.open = OpenBroker(dispatcher, server, registering, lambda: watchdog.is_hanging)
            stack.callback(self._status.close)
            registration = role.begin(start, on_ready)
            stack.callback(watchdog.close)
            watchdog.begin(loop)
            await self._run(ending, start, context, registration)
        return ending.result()

    async def _run(self, ending: Ending, start: Start, context: Context, registration: RegistrationTask | None) -> None:
        role, server = self._role, start.server
        reloading: asyncio.Task[None] | None = None
        while not ending.done():
            await asyncio.wait([ending], timeout=TICK_S)
            if not ending.done():
                server.tick()
                while server.expire():
                    await asyncio.sleep(0)
                    if ending.done():
                        break
                role.tick(start, context.store)
            if reloading is not None and reloading.done():
                reloading.result()  # raises what went wrong
                reloading = None
            if self._is_reload_requested and reloading is None and not ending.done():
                self._is_reload_requested = False
                reloading = start.loop.create_task(self._reload(context, server))
        if reloading is not None and reloading.cancel():
            self._is_reload_requested = True  # for the next opening, if there is one
        if ending.exception() is None and ending.result() is None:
            await self._stop_with_care(server, context, registration)
        await role.stop()
        await context.store.stop_jobs()
        ending.result()  # raises what ended it

    # -- ending -----------------------------------------------------------------------------------------------

    def _end_serving(self, ending: Ending, why: RoleChange | Exception | None) -> None:
        """End `serve`, with an error or without. Only the first call counts; a second one hurries it."""
        if ending.done():
            self._stop_now.set()
        elif isinstance(why, Exception):
            ending.set_exception(why)
        else:
            ending.set_result(why)

    def _request_stop(self) -> None:
        notify(STOPPING)
        self._is_stop_requested = True
        if self._ending is not None:
            self._end_serving(self._ending, None)
        if self._membership is not None:
            self._membership.cancel()

    def _request_reload(self) -> None:
        self._is_reload_requested = True

    async def _stop_with_care(self, server: Server, context: Context, registration: RegistrationTask | None) -> None:
        """Begin no more branches and unregister; then give connected clients time to notice, and to finish prepared
        branches.

        Does not wait once `_stop_now` is set.
        """
        context.is_stopping = True
        log.info("stop began connections=%d", context.counters.connections)
        clock, sync_s = asyncio.get_running_loop().time, 0.0
        finish_until = clock() + context.config.broker.stop_seconds_max
        if registration is not None:
            await registration.unregister()
            sync_s = context.config.zookeeper_section.sync_ms / 1000
        see_until = clock() + sync_s
        while server.has_connections and not self._stop_now.is_set():
            now = clock()
            is_unfinished = context.slave is None and any(
                live.state is BranchState.PREPARED for live in context.store.transactions.transactions.values()
            )
            left_s = finish_until - now if is_unfinished else 0.0
            if (wait_s := max(left_s, see_until - now)) <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_now.wait(), min(wait_s, STOP_POLL_S))
            server.tick()
            server.expire()

    # -- reloading --------------------------------------------------------------------------------------------

    async def _reload(self, context: Context, server: Server) -> None:
        """Read the configuration file again and apply its topics; on errors change nothing."""
        fresh = await asyncio.wrap_future(in_daemon_thread(partial(reload, context.config), "reload"))
        if fresh is None:
            return
        context.config = self._role.config = fresh
        if self._tls is not None:
            self._tls.renew(fresh.tls)
        self._admin_token.renew(fresh.admin)
        server.renew_access(fresh.rules)
        changed = context.announcer.follow_file(fresh.topics)
        if self._membership is not None:
            self._membership.config_changed(fresh.checksum)
        log.info("reloaded file=%s topics=%d changed=%s", fresh.path, len(fresh.topics), ",".join(changed) or "none")


def new_context(
    config: BrokerConfig,
    store: MessageStore,
    ids: MessageIds,
    registry: TopicRegistry | None,
    url: BrokerUrl,
    *,
    decides: bool = True,
) -> Context:
    """Return what handlers share, over a recovered *store*, without replication. *registry* and *decides*: as
    TopicAnnouncer takes them."""
    ids.begin_after(store.source.state.time_ms)
    topics = Topics(config.topics, store.source.state.topics)
    return Context(
        config=config,
        store=store,
        topics=topics,
        ids=ids,
        announcer=TopicAnnouncer(topics, store, registry, decides=decides),
        url=str(url),
        version=version_answer(config.broker_id, has_logins=config.rules is not None),
    )


@contextlib.asynccontextmanager
async def closing(store: MessageStore) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageFailed):  # already reported: it caused this
            store.close()
        raise
    store.close()


def tune_garbage_collector() -> None:
    """Exclude everything made by the start from garbage collection, and collect the rest seldom."""
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that calls *tell* only the first time."""
    calls = itertools.count()
    return lambda line: None if next(calls) else tell(line)
