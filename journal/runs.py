"""What a branch has put into a partition: where its frames stand in the journal, four numbers a run. Pure.

A transaction may have millions of runs and a broker a hundred thousand transactions, so they are kept as numbers side
by side: 32 bytes a run where an object with its integers takes two hundred.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import NamedTuple, overload

from journal.frame import Lsn


class Run(NamedTuple):
    """Contiguous message frames in the journal: *messages* messages in [lsn, lsn + bytes), put at *time_ms*."""

    lsn: Lsn
    bytes: int
    messages: int
    time_ms: int


_NUMBERS = len(Run._fields)


class Runs(Sequence[Run]):
    """Runs of one partition, in put order; like a list of them."""

    __slots__ = ("_numbers", "bytes", "messages")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._numbers = array("q")
        self.bytes = 0  # of all runs together
        self.messages = 0
        for run in runs:
            self.append(run)

    def append(self, run: Run) -> None:
        """Raises ValueError for a number that no journal can hold."""
        try:
            self._numbers.extend(run)
        except OverflowError as error:
            raise ValueError(f"{run}: a number of more than 64 bits") from error
        self.bytes += run.bytes
        self.messages += run.messages

    def __len__(self) -> int:
        return len(self._numbers) // _NUMBERS

    def __iter__(self) -> Iterator[Run]:
        return starmap(Run, self.numbers())

    def part(self, first: int, after: int) -> "Runs":
        """Runs [first, after), as they are now: the numbers are copied, and no run is made."""
        found = Runs()
        found._numbers = self._numbers[first * _NUMBERS : after * _NUMBERS]
        if len(found) == len(self):
            found.bytes, found.messages = self.bytes, self.messages
        else:
            found.bytes, found.messages = sum(found._numbers[1::_NUMBERS]), sum(found._numbers[2::_NUMBERS])
        return found

    def numbers(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each run what it consists of: of a million runs in less than half the time."""
        numbers = iter(self._numbers)
        return zip(numbers, numbers, numbers, numbers, strict=True)

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> list[Run]: ...
    def __getitem__(self, at: int | slice) -> Run | list[Run]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        position = _position(at, len(self))
        lsn, size, messages, time_ms = self._numbers[position : position + _NUMBERS]
        return Run(Lsn(lsn), size, messages, time_ms)

    def __setitem__(self, at: int, run: Run) -> None:
        position = _position(at, len(self))
        before = self[at]
        self._numbers[position : position + _NUMBERS] = array("q", run)
        self.bytes += run.bytes - before.bytes
        self.messages += run.messages - before.messages

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Runs | list) else NotImplemented

    def __repr__(self) -> str:
        return f"Runs({list(self)})"


def _position(at: int, length: int) -> int:
    at += length if at < 0 else 0
    if not 0 <= at < length:
        raise IndexError(f"run {at} of {length}")
    return at * _NUMBERS
