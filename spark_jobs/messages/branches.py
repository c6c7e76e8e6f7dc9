"""Keeps what the transactions in a stretch of a journal have put, until each ends. Pure.

Unlike `journal.state.fold` it begins anywhere: a branch whose first records come before may be incomplete. The COMMIT
tells, since it names messages and bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from journal.records.record import OffsetAssignment, PartitionName, Relocate


class BranchExtent(NamedTuple):
    """An extent as it stands in the journal; *crc*: of its bytes, None if a CARRY holds others, too."""

    lsn: int
    size: int
    messages: int
    crc: int | None


BranchPartition = tuple[bytes, int]  # topic as stored, and number


@dataclass(slots=True)
class _Extents:
    put: list[BranchExtent] = field(default_factory=list)  # by TX_PUT, in order
    moved: dict[int, BranchExtent] = field(default_factory=dict)  # by CARRY, by their number
    left: set[int] = field(default_factory=set)  # LSNs that a CARRY has moved from

    def in_order(self) -> list[BranchExtent]:
        """Return the extents as a COMMIT publishes them: those never moved are the last ones."""
        moved = [self.moved[number] for number in sorted(self.moved)]
        return moved + [extent for extent in self.put if extent.lsn not in self.left]


class UnendedBranches:
    """Branches that have not ended, by the LSN of their first record."""

    def __init__(self) -> None:
        self._branches: dict[int, dict[BranchPartition, _Extents]] = {}

    def put(self, branch_lsn: int, key: BranchPartition, extent: BranchExtent) -> None:
        """Add an extent of a TX_PUT."""
        self._of(branch_lsn, key).put.append(extent)

    def relocate(self, record: Relocate, body_lsn: int) -> None:
        """Note where a CARRY has copied extents to."""
        extents = self._of(record.branch_lsn, _key(record.name))
        for number, extent in enumerate(record.extents, record.first):
            extents.left.add(extent.lsn)
            extents.moved[number] = BranchExtent(body_lsn, extent.bytes, extent.messages, None)
            body_lsn += extent.bytes

    def drop(self, branch_lsn: int) -> None:
        self._branches.pop(branch_lsn, None)

    def published(self, branch_lsn: int, assignments: Sequence[OffsetAssignment]) -> list[list[BranchExtent]] | None:
        """Return the extents of each assignment; None if some of them were put before the stretch."""
        found = []
        partitions = self._branches.get(branch_lsn, {})
        for assignment in assignments:
            extents = partitions.get(_key(assignment.name), _Extents()).in_order()
            total = sum(extent.size for extent in extents), sum(extent.messages for extent in extents)
            if total != (assignment.bytes, assignment.count):
                return None
            found.append(extents)
        return found

    def prepend_to(self, later: "UnendedBranches") -> None:
        """Add what this stretch holds to that of the stretch right behind it."""
        for branch_lsn, partitions in self._branches.items():
            for key, extents in partitions.items():
                mine = later._of(branch_lsn, key)
                mine.put[:0] = extents.put
                mine.left |= extents.left
                mine.moved = extents.moved | mine.moved

    def _of(self, branch_lsn: int, key: BranchPartition) -> _Extents:
        return self._branches.setdefault(branch_lsn, {}).setdefault(key, _Extents())


def _key(name: PartitionName) -> BranchPartition:
    return name.topic.encode(), name.partition
