"""Who owns a partition for a group, as far as fetches told: the highest epoch, and whose is stale. Pure.

ZooKeeper is not asked: an owner that comes later has a higher epoch, whatever became of the one before it. What is
forgotten, at a restart or because there are too many, is told again with the next fetch.
"""

from typing import NamedTuple

from journal.records import PartitionName


class Owned(NamedTuple):
    """What is owned: a partition, for one group."""

    group: str
    partition: PartitionName


class OwnerEpochs:
    """The highest epoch that was seen of each; of *owners_max* at most, the latest. One owner thread."""

    def __init__(self, owners_max: int) -> None:
        self._owners_max = owners_max
        self._epochs: dict[Owned, int] = {}  # who fetched last stands last

    def __len__(self) -> int:
        return len(self._epochs)

    def seen(self, owned: Owned, epoch: int) -> int:
        """Somebody fetches who says that *epoch* is theirs. Returns the highest one seen so far, this one included:
        if it is another, theirs is stale."""
        highest = max(epoch, self._epochs.pop(owned, epoch))
        self._epochs[owned] = highest
        if len(self._epochs) > self._owners_max:
            del self._epochs[next(iter(self._epochs))]
        return highest

    def known(self, owned: Owned) -> int | None:
        """The highest epoch seen so far."""
        return self._epochs.get(owned)
