"""Stored batches of each producer, so that a retried batch is stored once. Pure.

A producer numbers its batches to a partition, rising. The last few are remembered with their offsets: as many as a
producer has in flight, so that every retry is found. The least recently used producers are dropped beyond a limit, and
count as new when they return.
"""

from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from journal.records.header import Offset

REMEMBERED_PER_PARTITION: Final = 8  # more than a producer has in flight to one partition
_NATURAL: Final = msgspec.Meta(ge=0)
PRODUCERS_MAX: Final = 20_000  # producer and partition pairs; some 600 bytes each


class BatchSequence(NamedTuple):
    """Number of a batch among those of its producer to a partition."""

    producer: str
    number: int


class StoredBatch(NamedTuple):
    """Place of a stored batch: *messages* messages from offset *base*, with ids from *first_id*."""

    number: Annotated[int, _NATURAL]
    base: Annotated[Offset, _NATURAL]
    messages: Annotated[int, _NATURAL]
    first_id: int


class SequenceTooOld(ValueError):
    """A batch number that is neither new nor remembered: the batch may or may not be stored."""


ProducerKey = tuple[str, str, int]  # producer, topic, partition


class ProducerState:
    """The remembered batches. One owner thread; folded from the journal like the rest of the state."""

    def __init__(self) -> None:
        # The least recently used first. Windows are replaced, never changed: a copy of the dictionary is a snapshot.
        self._producers: dict[ProducerKey, tuple[StoredBatch, ...]] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[ProducerKey, tuple[StoredBatch, ...]]]:
        """Iterate over the windows as of now, least recently used first; later changes do not show."""
        return iter(self._producers.copy().items())

    def find(self, sequence: BatchSequence, topic: str, partition: int) -> StoredBatch | None:
        """Return the place of the batch, or None if it is new. Raises SequenceTooOld."""
        window = self._producers.get((sequence.producer, topic, partition))
        if window is None or sequence.number > window[-1].number:
            return None
        for stored in window:
            if stored.number == sequence.number:
                return stored
        raise SequenceTooOld(
            f"batch {sequence.number} of producer {sequence.producer} is older than the {len(window)} remembered, "
            f"the last is {window[-1].number}: look whether its messages are there before sending them again"
        )

    def add(self, producer: str, topic: str, partition: int, stored: StoredBatch) -> None:
        """Add a batch. Raises ValueError for a number that does not rise."""
        key = (producer, topic, partition)
        window = self._producers.get(key, ())
        if window and stored.number <= window[-1].number:
            raise ValueError(f"batch {stored.number} of producer {producer} after batch {window[-1].number}")
        self._producers.pop(key, None)
        self._producers[key] = (*window[1 - REMEMBERED_PER_PARTITION :], stored)
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]
