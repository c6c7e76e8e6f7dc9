"""A broker inside this process: real server, handlers and journal, over a directory in memory."""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from meta_broker.app.broker import new_context
from meta_broker.config.broker_config import BrokerConfig, TopicConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.loading import check_broker_id, check_topics
from meta_broker.handlers.dispatch import Dispatcher
from meta_broker.handlers.message_ids import MessageIds
from meta_broker.net.server import TICK_S, Server
from meta_broker.store.clock import Clock
from meta_broker.store.message_store import MessageStore
from meta_broker.testing.memory.session import MemorySession
from meta_broker.testing.memory.storage import MemoryStorage
from meta_broker.testing.memory.tree import Tree
from meta_broker.version import PRODUCT_VERSION
from zk.brokers.registration import BrokerRegistration, TopicRegistration
from zk.embedded.held_port import HeldPort
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import BrokerName

HOST = "127.0.0.1"
SEGMENT_BYTES = 16 * 1024 * 1024  # two are reserved ahead: address space, which many test processes share


class ClusterTime:
    """The time of a cluster's brokers: the machine's, and what a test has added."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def wall_ns(self) -> int:
        return time.time_ns() + int(self.offset_s * 1e9)

    def steady_ms(self) -> int:
        return int(self.steady_s() * 1000)

    def steady_s(self) -> float:
        return time.monotonic() + self.offset_s


class MemoryBroker:
    """One broker and its registration. Loop thread only, except `url`. Implements TopicRegistry."""

    def __init__(self, broker_id: int, topics: Mapping[str, int], tree: Tree, clock: ClusterTime) -> None:
        """*topics*: the partitions of each. Raises ConfigError."""
        check_broker_id(broker_id)
        sections = {topic: TopicConfig(partitions=count) for topic, count in topics.items()}
        check_topics(sections, "this cluster")
        self._port = 0  # the same at each start; 0: there was none
        self._name = BrokerName(broker_id)
        self._tree = tree
        self._clock = clock
        self._storage = MemoryStorage()
        # Of indexes, which checkpoints write. No TemporaryDirectory: a forked child that exits would delete it.
        self._files = Path(tempfile.mkdtemp(prefix="metaq-memory-"))
        self._config = BrokerConfig(
            data=self._files,
            broker_id=broker_id,
            port=0,
            topics=sections,
            broker=BrokerSection(segment_bytes=SEGMENT_BYTES),
        )
        self._held_port = HeldPort(HOST)  # from the first start to the end, so that nobody takes it while it is down
        self._running: contextlib.AsyncExitStack | None = None
        self._server: Server
        self._registration: BrokerRegistration

    @property
    def url(self) -> BrokerUrl:
        """Address since the first start. Any thread."""
        return BrokerUrl(HOST, self._port)

    async def start(self) -> None:
        """Recover, listen and register; on return clients find it."""
        assert self._running is None, f"broker {self._name} runs already"
        async with contextlib.AsyncExitStack() as stack:
            server = self._server = Server(asyncio.get_running_loop(), lambda error: None)  # which logs it
            clock = Clock(self._clock.wall_ns, self._clock.steady_ms)
            ids = MessageIds(self._config.broker_id, clock.now_ms)
            store = MessageStore.open(
                *(self._config, PRODUCT_VERSION, server.wake, ids.now_ms, server.loop_hooks()),
                clock=clock,
                storage=self._storage,
            )
            stack.callback(store.close)
            worker = stack.enter_context(ThreadPoolExecutor(1, "checkpoint"))
            stack.push_async_callback(store.stop_jobs)
            self._port = self._port or self._held_port.hold_any()
            server.reserve(HOST, self._port)
            stack.push_async_callback(server.close)
            session = MemorySession(self._tree)
            self._registration = BrokerRegistration(session, self._name, self.url)
            context = new_context(self._config, store, ids, self, self.url)
            context.clock = self._clock.steady_s
            await server.listen(Dispatcher(context))
            session.start()
            stack.callback(session.close)
            self._registration.register_broker()
            for topic, registration in context.announcer.registrations().items():
                self.topic_changed(topic, registration)
            ticking = asyncio.create_task(self._tick(server, store, worker))
            stack.callback(ticking.cancel)
            self._running = stack.pop_all()

    async def kill(self) -> None:
        """Break its connections, and keep nothing but the directory, as the end of the process does. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            self._server.abort()
            await running.aclose()

    async def expire(self) -> None:
        """Roll back the branches that timed out."""
        while self._running is not None and self._server.expire():  # noqa: ASYNC110 - waits for no event
            await asyncio.sleep(0)  # others' turn

    async def close(self) -> None:
        """Kill it, and delete its files. Idempotent."""
        await self.kill()
        self._held_port.release()
        shutil.rmtree(self._files, ignore_errors=True)  # temporary: the system removes leftovers

    async def _tick(self, server: Server, store: MessageStore, worker: Executor) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            server.tick()
            await self.expire()
            store.checkpoints.maybe_begin(worker)

    def topic_used(self, topic: str, registration: TopicRegistration) -> None:
        self.topic_changed(topic, registration)

    def topic_changed(self, topic: str, registration: TopicRegistration | None) -> None:
        for error in self._registration.write_topics({topic: registration}).values():
            raise error
