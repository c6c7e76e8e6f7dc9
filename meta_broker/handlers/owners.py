"""Tracks the highest owner epoch of each group's partitions, as fetches report it, to detect stale owners. Pure.

ZooKeeper is not asked: a later owner has a higher epoch. An entry lost in a restart, or because there are too many,
comes back with the next fetch.
"""

from typing import NamedTuple

from journal.records.record import PartitionName


class Owned(NamedTuple):
    """A partition owned by a group."""

    group: str
    partition: PartitionName


class OwnerEpochs:
    """Highest epoch seen for each; at most *owners_max*, the latest. One thread."""

    def __init__(self, owners_max: int) -> None:
        self._owners_max = owners_max
        self._epochs: dict[Owned, int] = {}  # latest fetch last

    def __len__(self) -> int:
        return len(self._epochs)

    def seen(self, owned: Owned, epoch: int) -> int:
        """Record a fetch with *epoch*. Return the highest one seen so far, including it: if that is another, *epoch*
        is stale.
        """
        highest = max(epoch, self._epochs.pop(owned, epoch))
        self._epochs[owned] = highest
        if len(self._epochs) > self._owners_max:
            del self._epochs[next(iter(self._epochs))]
        return highest

    def known(self, owned: Owned) -> int | None:
        """Return the highest epoch seen so far."""
        return self._epochs.get(owned)
