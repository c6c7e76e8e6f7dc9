"""The runs of a live branch as a checkpoint names them. Pure.

A branch may have a million. Then only their numbers are kept until the file is written, and the marks are made by who
writes it: made all at once they would hold up everybody, and take four times the memory.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Annotated, Final, cast

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


class RunMarks:
    """Of *runs* as they are now: counted and gone through like a tuple, whose marks are made only then. Any thread."""

    __slots__ = ("_parts",)

    def __init__(self, runs: Mapping[PartitionName, Runs]) -> None:
        self._parts = [(name, each.part(0, len(each))) for name, each in runs.items()]

    def __len__(self) -> int:
        return sum(len(runs) for _, runs in self._parts)

    def __iter__(self) -> Iterator[RunMark]:
        return chain.from_iterable(_marks(name, runs) for name, runs in self._parts)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, RunMarks | tuple) else NotImplemented


def run_marks(runs: Mapping[PartitionName, Runs], messages: int) -> tuple[RunMark, ...]:
    """The marks of *runs*, which hold so many *messages*; of very many RunMarks, which stand for a tuple of them."""
    if messages > AT_ONCE:
        return cast(tuple[RunMark, ...], RunMarks(runs))
    return tuple([mark for name, each in runs.items() for mark in _marks(name, each)])


def _marks(name: PartitionName, runs: Runs) -> Iterator[RunMark]:
    topic, partition = name
    return (RunMark(topic, partition, *numbers) for numbers in runs.numbers())
