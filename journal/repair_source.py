"""A copy that a journal is repaired from: a slave's directory, a backup. Read, checked, and never written."""

from journal.damage import Hole
from journal.errors import NotRepairable
from journal.frame import HEADER_BYTES, Header, Lsn
from journal.scan import Scanner, record_at
from journal.segments import SEGMENT_HEADER_BYTES, Segments

COMPARED_BYTES = 4096  # before a hole: a journal that parted ways differs in its epochs, if not in more


class Copy:
    """The journal of the same broker in another directory. Only what reads back there is taken."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def read(self, lsn: int, size: int) -> bytes:
        return self._segments.read(lsn, size)

    def reach(self, damaged: Segments, hole: Hole, end: Lsn, since: Lsn) -> Lsn:
        """Up to where the copy has the records of *hole*, which ends at *end* in *damaged*; its start: nowhere.

        From *since* up to the hole *damaged* reads back.

        Raises NotRepairable when the copy is not one: another broker's, or a journal that parted ways.
        """
        mine, path = self._segments, self._segments.storage.path
        if mine.identity != damaged.identity:
            raise NotRepairable(
                f"{path} is the journal of {mine.identity}, not of {damaged.identity}: name its own copy"
            )
        try:
            base, file = mine.locate(hole.start)
        except KeyError:
            return hole.start
        ours_base, ours = damaged.locate(hole.start)
        if (base, file.size) != (ours_base, ours.size):
            raise NotRepairable(f"{path}: its segments begin at other LSNs: it is no copy of this journal")
        low = max(base + SEGMENT_HEADER_BYTES, hole.start - COMPARED_BYTES, since)
        at, size = low - base, hole.start - low
        if file.reader().read(at, size) != ours.reader().read(at, size):
            raise NotRepairable(
                f"{path}: its records before LSN {hole.start} are others: it is no copy of this journal"
            )
        scanner = Scanner(mine, hole.start)
        reached, life = hole.start, hole.life
        for entry in scanner:
            header = entry.header
            if header.life < life:
                raise NotRepairable(
                    f"{path}: at LSN {header.lsn} epoch and incarnation {header.epoch}, {header.incarnation} after "
                    f"{life}: it is no copy of this journal"
                )
            life = header.life
            if header.lsn >= end:
                break
            reached = header.end
        reached = min(max(scanner.end, reached), end)
        if hole.end is not None and reached == end:
            self._compare_behind(damaged, end, life)
        return Lsn(reached)

    def _compare_behind(self, damaged: Segments, lsn: Lsn, life: tuple[int, int]) -> None:
        """The first record behind the hole must be the same on both sides."""
        header = record_at(damaged, lsn)
        is_same = damaged.read(lsn, HEADER_BYTES) == self._segments.read(lsn, HEADER_BYTES)
        if not is_same or not isinstance(header, Header) or header.life < life:
            raise NotRepairable(
                f"{self._segments.storage.path}: its record at LSN {lsn} is another: it is no copy of this journal"
            )
