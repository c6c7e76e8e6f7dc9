"""The runs of a live branch as a checkpoint names them. Pure.

A branch may have a million. Then only their numbers are kept until the file is written, and the marks are made by who
writes it: made all at once they would hold up everybody, and take four times the memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Annotated, Final, cast, overload

import msgspec

from journal.records import PartitionName
from journal.runs import Runs

AT_ONCE: Final = 1_000  # marks: a fraction of a millisecond
Natural = Annotated[int, msgspec.Meta(ge=0)]


class RunMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Message frames of a branch: topic, partition, LSN, bytes, messages, milliseconds."""

    topic: str
    partition: Natural
    lsn: Natural
    bytes: Natural
    messages: Natural
    time_ms: Natural


class RunMarks(Sequence[RunMark]):
    """Of *runs* as they are now: like a tuple, whose marks are made whenever somebody goes through them. Any thread."""

    __slots__ = ("_parts",)

    def __init__(self, runs: Mapping[PartitionName, Runs]) -> None:
        self._parts = [(name, each.part(0, len(each))) for name, each in runs.items()]

    def __len__(self) -> int:
        return sum(len(runs) for _, runs in self._parts)

    def __iter__(self) -> Iterator[RunMark]:
        return chain.from_iterable(_marks(name, runs) for name, runs in self._parts)

    @overload
    def __getitem__(self, at: int) -> RunMark: ...
    @overload
    def __getitem__(self, at: slice) -> list[RunMark]: ...
    def __getitem__(self, at: int | slice) -> RunMark | list[RunMark]:
        """Goes through those before it."""
        if isinstance(at, slice):
            return list(self)[at]
        if not 0 <= at < len(self):
            raise IndexError(f"run {at} of {len(self)}")
        return next(islice(self, at, None))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, RunMarks | tuple) else NotImplemented


def run_marks(runs: Mapping[PartitionName, Runs], messages: int) -> tuple[RunMark, ...]:
    """The marks of *runs*, which hold so many *messages*; of very many RunMarks, which are like a tuple of them."""
    if messages > AT_ONCE:
        return cast(tuple[RunMark, ...], RunMarks(runs))
    return tuple([mark for name, each in runs.items() for mark in _marks(name, each)])


def _marks(name: PartitionName, runs: Runs) -> Iterator[RunMark]:
    topic, partition = name
    return (RunMark(topic, partition, *numbers) for numbers in runs.numbers())
