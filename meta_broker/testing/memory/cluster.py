"""A cluster for unit tests: brokers inside this process, and their clients."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import uvloop

from journal.state.wall_clock import TIME_MS_END
from meta_broker.testing.memory.broker import ClusterTime, MemoryBroker
from meta_broker.testing.memory.session import MemorySession
from meta_broker.testing.memory.tree import Tree
from meta_client.client import Client
from meta_client.net.connections import Connections
from meta_client.net.opaques import next_opaque
from meta_client.protocol.requests import TopicCommand, TopicVerb
from meta_client.protocol.responses import Result
from zk.forks import invalidate_after_fork, skip_after_fork

if TYPE_CHECKING:
    from meta_client import aio

TOPICS: Mapping[str, int] = {"*": 2}
ANSWER_S = 60.0


class MemoryCluster:
    """Brokers of this process, by default one that accepts every topic, with two partitions. Any thread.

    Use as a context manager; its clients are closed with it. *topics*: names, or patterns with `*`, and the number of
    partitions each broker has of them; *brokers*: their ids. Each listens on a port of 127.0.0.1. Raises ConfigError.
    """

    def __init__(self, topics: Mapping[str, int] = TOPICS, brokers: Iterable[int] = (0,)) -> None:
        self._tree = Tree()
        self._clock = ClusterTime()
        self._brokers = {broker_id: MemoryBroker(broker_id, topics, self._tree, self._clock) for broker_id in brokers}
        self._loop = uvloop.new_event_loop()
        self._steps = threading.Lock()  # one at a time: a broker that starts while it dies would share its directory
        self._operator = Connections()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metaq-memory", daemon=True)
        self._thread.start()
        with contextlib.ExitStack() as opened:
            opened.callback(self._end_loop)
            for broker in self._brokers.values():
                opened.callback(self._close, broker)
                self._run(broker.start())
            opened.callback(self._operator.close)
            self._opened = opened.pop_all()
        invalidate_after_fork(self)  # a child has no thread of the brokers

    def client(self, **options: Any) -> Client:
        """Return a new client of these brokers, closed with the cluster at the latest.

        *options* are `batching` and `default_topic`, as for Client.
        """
        client = Client.over(lambda enqueue: MemorySession(self._tree, enqueue), Connections(), **options)
        return self._opened.enter_context(client)

    def aio_client(self, **options: Any) -> "aio.Client":
        """Return a new client for tasks: its `async with` block ends before the cluster does. *options* as of
        `client`."""
        from meta_client import aio  # not imported by tests without it

        return aio.Client.over(lambda enqueue: MemorySession(self._tree, enqueue), **options)

    def kill(self, broker_id: int = 0) -> None:
        """Simulate a crash of the broker: connections break and its registration disappears.

        Branches that are not prepared are gone when it starts again; everything acknowledged is kept.
        """
        self._run(self._brokers[broker_id].kill())

    def start(self, broker_id: int = 0) -> None:
        """Start a killed broker, on its former port; on return it has recovered and is registered."""
        self._run(self._brokers[broker_id].start())

    def close_partition(self, topic: str, partition: str, *, is_closed: bool = True) -> None:
        """Close or open a partition, as `metaq topics close` and `open` do. *partition* as in `0-1`. Raises ValueError
        if the broker refuses that."""
        broker_id, _, number = partition.partition("-")
        verb = TopicVerb.CLOSE if is_closed else TopicVerb.OPEN
        command = TopicCommand(verb, topic, (("partitions", number),), next_opaque())
        broker = self._operator.get(self._brokers[int(broker_id)].url, ANSWER_S)
        answer = broker.submit(command).wait(ANSWER_S)
        if isinstance(answer, Result) and not answer.is_success:
            raise ValueError(answer.text)

    def expire(self, client: "Client | aio.Client") -> None:
        """Expire a client's ZooKeeper session, as a long silence does; a new one begins at once."""
        assert isinstance(client.session, MemorySession)
        client.session.expire()

    def advance(self, seconds: float) -> None:
        """Advance the brokers' time; on return transactions that are due have expired. Raises ValueError for a time
        that message ids can't have."""
        if not 0 <= seconds < TIME_MS_END / 1000 - self.now():
            raise ValueError(f"cannot advance by {seconds} s: time goes forward, and message ids end in 2081")
        self._clock.offset_s += seconds
        for broker in self._brokers.values():
            self._run(broker.expire())

    def now(self) -> float:
        """Return the brokers' time, in Unix seconds."""
        return self._clock.wall_ns() / 1e9

    def __enter__(self) -> Self:
        return self

    @skip_after_fork
    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        """Run *step* on the brokers' loop, to its end even if an interrupt is raised here. Raises what it raises."""
        with self._steps:
            if self._loop.is_closed():
                step.close()
                raise RuntimeError("the cluster is closed")
            running = asyncio.run_coroutine_threadsafe(step, self._loop)
            try:
                running.result()
            finally:
                concurrent.futures.wait([running])

    def _close(self, broker: MemoryBroker) -> None:
        self._run(broker.close())

    def _end_loop(self) -> None:
        with self._steps:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
