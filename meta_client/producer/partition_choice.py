"""Choice of partitions for batches: in turn, if possible on a broker that was reachable a moment ago. Pure."""

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from meta_client.metadata.topology import TopicView
from meta_client.producer.outgoing import RoundRobin
from zk.tree.nodes import Partition

UNREACHABLE_S: Final = 1.0  # batches avoid a broker for so long after a failed connect


class PartitionChoice:
    """Chooses partitions of all topics. One thread at a time."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, RoundRobin] = defaultdict(RoundRobin)  # by topic
        self._unreachable: dict[int, float] = {}  # by broker id: avoid it until then

    def choose(self, now: float, view: TopicView, wanted: Partition | None) -> Partition:
        """Return *wanted*, or the next partition. Raises NoPartition."""
        return self._turns[view.topic].choose_allowing_down(view, wanted, self._avoided(now))

    def maybe_elsewhere(self, now: float, view: TopicView) -> Partition | None:
        """Return the next partition of a broker that is up and was reachable; None if there is none."""
        avoided = self._avoided(now)
        if all(partition.broker_id in avoided for partition in view.available):
            return None
        return self._turns[view.topic].choose_allowing_down(view, None, avoided)

    def reached(self, broker_id: int) -> None:
        self._unreachable.pop(broker_id, None)

    def not_reached(self, now: float, broker_id: int) -> None:
        """Note that a broker could not be reached."""
        self._unreachable[broker_id] = now + UNREACHABLE_S

    def _avoided(self, now: float) -> Collection[int]:
        if self._unreachable:
            self._unreachable = {broker_id: until for broker_id, until in self._unreachable.items() if until > now}
        return self._unreachable
