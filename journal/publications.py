"""What a record makes visible: runs at offsets of partitions. Pure.

A commit says it of all runs of a branch at once, in a block a partition. Its publications are made one by one while
somebody goes through them: a branch may have millions. Who is fast takes the blocks.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, overload

from journal.frame import Offset
from journal.records import PartitionName
from journal.runs import Run, Runs


class Publication(NamedTuple):
    """A run that takes offsets [base, base + run.bytes) of a partition."""

    name: PartitionName
    base: Offset
    run: Run


class Block(NamedTuple):
    """Runs that take the offsets from *base* on, one after the other. They do not change any more."""

    name: PartitionName
    base: Offset
    runs: Runs


class Publications(Sequence[Publication]):
    """The publications of some blocks, in their order."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return sum(len(block.runs) for block in self.blocks)

    def __iter__(self) -> Iterator[Publication]:
        for name, base, runs in self.blocks:
            for run in runs:
                yield Publication(name, base, run)
                base = Offset(base + run.bytes)

    @overload
    def __getitem__(self, at: int) -> Publication: ...
    @overload
    def __getitem__(self, at: slice) -> list[Publication]: ...
    def __getitem__(self, at: int | slice) -> Publication | list[Publication]:
        """Goes through those before it."""
        if isinstance(at, slice):
            return list(self)[at]
        if not 0 <= at < len(self):
            raise IndexError(f"publication {at} of {len(self)}")
        return next(islice(self, at, None))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Publications | list) else NotImplemented
