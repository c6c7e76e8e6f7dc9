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


def topics_of(publications: Sequence[Publication]) -> list[str]:
    """The topics that get messages, each once."""
    places = publications.blocks if isinstance(publications, Publications) else publications
    return list(dict.fromkeys(place.name.topic for place in places))


def pieces(publications: Sequence[Publication], runs_max: int) -> Iterator[Sequence[Publication]]:
    """The same in their order, at most *runs_max* at a time."""
    if not isinstance(publications, Publications):
        yield from (publications[at : at + runs_max] for at in range(0, len(publications), runs_max))
        return
    blocks, room = list[Block](), runs_max
    for name, base, runs in publications.blocks:
        first = 0
        while first < len(runs):
            part = runs.part(first, first + room)
            blocks.append(Block(name, base, part))
            base = Offset(base + part.bytes)
            first += len(part)
            room -= len(part)
            if not room:
                yield Publications(blocks)
                blocks, room = [], runs_max
    if blocks:
        yield Publications(blocks)
