"""A producer's view of brokers and partitions, for tasks: threads ask ZooKeeper, and who waits for them is a task."""

import asyncio
from collections.abc import Collection
from concurrent.futures import Future

from meta_client.aio.bridge import in_thread, wait
from meta_client.topology import TopicView
from meta_client.topology import Topology as ThreadedTopology
from zk.broker_url import BrokerUrl


class Topology(ThreadedTopology):
    """The views of one asyncio client. What may have to wait for ZooKeeper belongs inside `run`."""

    def known(self, topic: str) -> TopicView | None:
        """The view of *topic* if it can be had without waiting, and has partitions."""
        view = self._views.get(topic)
        return view if view is not None and view.partitions else None

    def read_masters(self) -> dict[int, BrokerUrl]:
        return wait(in_thread(super().read_masters))

    def read_absent(self, masters: Collection[int]) -> set[int]:
        return wait(in_thread(super().read_absent, masters))

    def _result(self, done: "Future[TopicView]", timeout_s: float) -> TopicView:
        return wait(asyncio.wait_for(asyncio.shield(asyncio.wrap_future(done)), timeout_s))
