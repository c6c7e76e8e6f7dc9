"""Index updates: the extents that a record makes visible, at offsets of partitions. Pure.

A commit publishes all extents of a branch at once, one IndexUpdateRun a partition. IndexUpdates makes the single
updates lazily, since a branch may have millions; fast callers use the runs.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, overload

from journal.records.extents import Extent, ExtentList
from journal.records.header import Offset
from journal.records.record import PartitionName


class IndexUpdate(NamedTuple):
    """An extent at offsets [base, base + extent.bytes) of a partition."""

    name: PartitionName
    base: Offset
    extent: Extent


class IndexUpdateRun(NamedTuple):
    """Extents at contiguous offsets of a partition from *base* on. Immutable."""

    name: PartitionName
    base: Offset
    extents: ExtentList


class IndexUpdates(Sequence[IndexUpdate]):
    """The updates of some runs, in order."""

    __slots__ = ("update_runs",)

    def __init__(self, update_runs: Sequence[IndexUpdateRun]) -> None:
        self.update_runs = update_runs

    def __len__(self) -> int:
        return sum(len(update_run.extents) for update_run in self.update_runs)

    def __iter__(self) -> Iterator[IndexUpdate]:
        for name, base, extents in self.update_runs:
            for extent in extents:
                yield IndexUpdate(name, base, extent)
                base = Offset(base + extent.bytes)

    @overload
    def __getitem__(self, at: int) -> IndexUpdate: ...
    @overload
    def __getitem__(self, at: slice) -> list[IndexUpdate]: ...
    def __getitem__(self, at: int | slice) -> IndexUpdate | list[IndexUpdate]:
        """Goes through those before it."""
        if isinstance(at, slice):
            return list(self)[at]
        if not 0 <= at < len(self):
            raise IndexError(f"publication {at} of {len(self)}")
        return next(islice(self, at, None))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, IndexUpdates | list) else NotImplemented


def topics_of(updates: Sequence[IndexUpdate]) -> list[str]:
    """Return the topics that get messages, each once."""
    places = updates.update_runs if isinstance(updates, IndexUpdates) else updates
    return list(dict.fromkeys(place.name.topic for place in places))


def chunks(updates: Sequence[IndexUpdate], extents_max: int) -> Iterator[Sequence[IndexUpdate]]:
    """Split updates into sequences of at most *extents_max*, in order."""
    if not isinstance(updates, IndexUpdates):
        yield from (updates[at : at + extents_max] for at in range(0, len(updates), extents_max))
        return
    update_runs, room = list[IndexUpdateRun](), extents_max
    for name, base, extents in updates.update_runs:
        first = 0
        while first < len(extents):
            part = extents.slice_of(first, first + room)
            update_runs.append(IndexUpdateRun(name, base, part))
            base = Offset(base + part.bytes)
            first += len(part)
            room -= len(part)
            if not room:
                yield IndexUpdates(update_runs)
                update_runs, room = [], extents_max
    if update_runs:
        yield IndexUpdates(update_runs)
