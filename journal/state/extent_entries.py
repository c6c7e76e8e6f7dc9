"""Extents of a live branch as entries of a checkpoint. Pure.

A branch may have a million. Then only their numbers are kept until the file is written, and the entries are made during
the writing: made all at once, they would block the loop and take four times the memory.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, cast

import msgspec

from journal.records.extents import ExtentList
from journal.records.header import Natural
from journal.records.record import PartitionName

ENTRIES_AT_ONCE: Final = 1_000  # entries: a fraction of a millisecond


class ExtentEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Message frames of a branch: topic, partition, LSN, bytes, messages, milliseconds."""

    topic: str
    partition: Natural
    lsn: Natural
    bytes: Natural
    messages: Natural
    time_ms: Natural


class ExtentEntries:
    """Lazy tuple of the entries of *extents* as they are now. Any thread."""

    __slots__ = ("_parts",)

    def __init__(self, extents: Mapping[PartitionName, ExtentList]) -> None:
        self._parts = [(name, each.slice_of(0, len(each))) for name, each in extents.items()]

    def __len__(self) -> int:
        return sum(len(extents) for _, extents in self._parts)

    def __iter__(self) -> Iterator[ExtentEntry]:
        return chain.from_iterable(_entries(name, extents) for name, extents in self._parts)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, ExtentEntries | tuple) else NotImplemented


def extent_entries(extents: Mapping[PartitionName, ExtentList], messages: int) -> tuple[ExtentEntry, ...]:
    """Return entries of *extents*, which hold so many *messages*; for very many, ExtentEntries in place of a tuple."""
    if messages > ENTRIES_AT_ONCE:
        return cast(tuple[ExtentEntry, ...], ExtentEntries(extents))
    return tuple([entry for name, each in extents.items() for entry in _entries(name, each)])


def _entries(name: PartitionName, extents: ExtentList) -> Iterator[ExtentEntry]:
    topic, partition = name
    return (ExtentEntry(topic, partition, *numbers) for numbers in extents.numbers())
