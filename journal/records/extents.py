"""Extents of a branch in a partition: the places of its frames in the journal, four numbers each. Pure.

A transaction may have millions of extents and a broker a hundred thousand transactions, so they are kept as arrays of
numbers: 32 bytes an extent, where an object with its integers takes two hundred.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import NamedTuple, overload

from journal.records.header import Lsn


class Extent(NamedTuple):
    """Contiguous message frames in the journal: *messages* messages in [lsn, lsn + bytes), put at *time_ms*."""

    lsn: Lsn
    bytes: int
    messages: int
    time_ms: int


_NUMBERS = len(Extent._fields)


class ExtentList(Sequence[Extent]):
    """Extents of one partition, in put order; a sequence."""

    __slots__ = ("_numbers", "bytes", "messages")

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._numbers = array("q")
        self.bytes = 0  # of all extents together
        self.messages = 0
        for extent in extents:
            self.append(extent)

    def append(self, extent: Extent) -> None:
        """Append an extent. Raises ValueError for a number beyond 64 bits."""
        try:
            self._numbers.extend(extent)
        except OverflowError as error:
            raise ValueError(f"{extent}: a number of more than 64 bits") from error
        self.bytes += extent.bytes
        self.messages += extent.messages

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    def __iter__(self) -> Iterator[Extent]:
        return starmap(Extent, self.numbers())

    def slice_of(self, first: int, after: int) -> "ExtentList":
        """Return a copy of extents [first, after), without making Extent objects."""
        found = ExtentList()
        found._numbers = self._numbers[first * _NUMBERS : after * _NUMBERS]
        if len(found) == len(self):
            found.bytes, found.messages = self.bytes, self.messages
        else:
            found.bytes, found.messages = sum(found._numbers[1::_NUMBERS]), sum(found._numbers[2::_NUMBERS])
        return found

    def numbers(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the extents as plain tuples, twice as fast as making Extent objects."""
        numbers = iter(self._numbers)
        return zip(numbers, numbers, numbers, numbers, strict=True)

    @overload
    def __getitem__(self, at: int) -> Extent: ...
    @overload
    def __getitem__(self, at: slice) -> list[Extent]: ...
    def __getitem__(self, at: int | slice) -> Extent | list[Extent]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        position = _position(at, len(self))
        lsn, size, messages, time_ms = self._numbers[position : position + _NUMBERS]
        return Extent(Lsn(lsn), size, messages, time_ms)

    def __setitem__(self, at: int, extent: Extent) -> None:
        position = _position(at, len(self))
        before = self[at]
        self._numbers[position : position + _NUMBERS] = array("q", extent)
        self.bytes += extent.bytes - before.bytes
        self.messages += extent.messages - before.messages

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, ExtentList | list) else NotImplemented

    def __repr__(self) -> str:
        return f"Runs({list(self)})"


def _position(at: int, length: int) -> int:
    at += length if at < 0 else 0
    if not 0 <= at < length:
        raise IndexError(f"run {at} of {length}")
    return at * _NUMBERS
