"""A producer's view of brokers and partitions, for tasks: threads ask ZooKeeper, and a task waits."""

import asyncio
from collections.abc import Collection
from concurrent.futures import Future

from meta_client.aio.bridge.bridge import in_thread, is_inside, wait
from meta_client.metadata.topology import TopicView
from meta_client.metadata.topology import Topology as ThreadedTopology
from zk.tree.broker_url import BrokerUrl


class Topology(ThreadedTopology):
    """Views of one asyncio client. Methods that may wait for ZooKeeper belong inside `run`, or in a thread."""

    def known(self, topic: str) -> TopicView | None:
        """Return the view of *topic* if it is available without waiting, and has partitions."""
        view = self._views.get(topic)
        return view if view is not None and view.partitions else None

    def read_masters(self) -> dict[int, BrokerUrl]:
        return wait(in_thread(super().read_masters)) if is_inside() else super().read_masters()

    def read_absent(self, masters: Collection[int]) -> set[int]:
        return wait(in_thread(super().read_absent, masters)) if is_inside() else super().read_absent(masters)

    def _result(self, done: "Future[TopicView]", timeout_s: float) -> TopicView:
        return wait(asyncio.wait_for(asyncio.shield(asyncio.wrap_future(done)), timeout_s))
