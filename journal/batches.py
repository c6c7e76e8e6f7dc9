"""Which batches of which producer are stored already, so that a retried one is stored once. Pure.

A producer numbers its batches to a partition, rising. The last few are remembered with where they went: as many
as a producer has under way at a time, so that whatever it retries is found. The least recently used producers
are forgotten when there are too many: memory stays bounded, and a producer that comes back later is as a new one.
"""

from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from journal.frame import Offset

REMEMBERED_PER_PARTITION: Final = 8  # more than a producer keeps under way to one partition
_NATURAL: Final = msgspec.Meta(ge=0)
WINDOWS_MAX: Final = 20_000  # producer and partition pairs; some 600 bytes each


class BatchSequence(NamedTuple):
    """Which of a producer's batches to a partition one is."""

    producer: str
    number: int


class StoredBatch(NamedTuple):
    """Where a batch went: *messages* messages from offset *base* on, with ids from *first_id* on."""

    number: Annotated[int, _NATURAL]
    base: Annotated[Offset, _NATURAL]
    messages: Annotated[int, _NATURAL]
    first_id: int


class BatchTooOld(ValueError):
    """A batch number that is neither new nor remembered: nobody can tell whether it is stored."""


Window = tuple[str, str, int]  # producer, topic, partition


class Batches:
    """The memory. One owner thread; folded from the journal like the rest of the state."""

    def __init__(self) -> None:
        # The least recently used first. Windows are replaced, never changed: a copy of the dictionary is a snapshot.
        self._windows: dict[Window, tuple[StoredBatch, ...]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def __iter__(self) -> Iterator[tuple[Window, tuple[StoredBatch, ...]]]:
        """Every window as it is now, least recently used first, whatever is noted meanwhile."""
        return iter(self._windows.copy().items())

    def find(self, sequence: BatchSequence, topic: str, partition: int) -> StoredBatch | None:
        """Where the batch is stored; None if it is new. Raises BatchTooOld."""
        window = self._windows.get((sequence.producer, topic, partition))
        if window is None or sequence.number > window[-1].number:
            return None
        for stored in window:
            if stored.number == sequence.number:
                return stored
        raise BatchTooOld(
            f"batch {sequence.number} of producer {sequence.producer} is older than the {len(window)} remembered, "
            f"the last is {window[-1].number}: look whether its messages are there before sending them again"
        )

    def note(self, producer: str, topic: str, partition: int, stored: StoredBatch) -> None:
        """Remember a batch. Raises ValueError for a number that does not rise."""
        key = (producer, topic, partition)
        window = self._windows.get(key, ())
        if window and stored.number <= window[-1].number:
            raise ValueError(f"batch {stored.number} of producer {producer} after batch {window[-1].number}")
        self._windows.pop(key, None)
        self._windows[key] = (*window[1 - REMEMBERED_PER_PARTITION :], stored)
        if len(self._windows) > WINDOWS_MAX:
            del self._windows[next(iter(self._windows))]
