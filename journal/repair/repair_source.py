"""A copy from which a journal is repaired: a slave's directory, or a backup. Read and checked, never written."""

from journal.errors import NotRepairable
from journal.records.header import HEADER_BYTES, Lsn, RecordHeader
from journal.repair.damage import Gap
from journal.wal.scan import Scanner, record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments

COMPARED_BYTES = 4096  # before a gap: a divergent journal differs at least in its epochs


class RepairSource:
    """The journal of the same broker in another directory. Only records that read back there are used."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def read(self, lsn: int, size: int) -> bytes:
        return self._segments.read(lsn, size)

    def reach(self, damaged: Segments, gap: Gap, end: Lsn, since: Lsn) -> Lsn:
        """Return the LSN up to which the copy has the records of *gap*, which ends at *end* in *damaged*; its start:
        none.

        *damaged* reads back from *since* to the gap. Raises NotRepairable if the source is no copy: another broker's
        journal, or a divergent one.
        """
        mine, path = self._segments, self._segments.storage.path
        if mine.identity != damaged.identity:
            raise NotRepairable(
                f"{path} is the journal of {mine.identity}, not of {damaged.identity}: name its own copy"
            )
        try:
            base, file = mine.locate(gap.start)
        except KeyError:
            return gap.start
        ours_base, ours = damaged.locate(gap.start)
        if (base, file.size) != (ours_base, ours.size):
            raise NotRepairable(f"{path}: its segments begin at other LSNs: it is no copy of this journal")
        low = max(base + SEGMENT_HEADER_BYTES, gap.start - COMPARED_BYTES, since)
        at, size = low - base, gap.start - low
        if file.reader().read(at, size) != ours.reader().read(at, size):
            raise NotRepairable(f"{path}: its records before LSN {gap.start} are others: it is no copy of this journal")
        scanner = Scanner(mine, gap.start)
        reached, writer_epoch = gap.start, gap.writer_epoch
        for entry in scanner:
            header = entry.header
            if header.writer_epoch < writer_epoch:
                raise NotRepairable(
                    f"{path}: at LSN {header.lsn} epoch and incarnation {header.epoch}, {header.incarnation} after "
                    f"{writer_epoch}: it is no copy of this journal"
                )
            writer_epoch = header.writer_epoch
            if header.lsn >= end:
                break
            reached = header.end
        reached = min(max(scanner.end, reached), end)
        if gap.end is not None and reached == end:
            self._compare_behind(damaged, end, writer_epoch)
        return Lsn(reached)

    def _compare_behind(self, damaged: Segments, lsn: Lsn, writer_epoch: tuple[int, int]) -> None:
        """Check that the first record after the gap is the same on both sides."""
        header = record_at(damaged, lsn)
        is_same = damaged.read(lsn, HEADER_BYTES) == self._segments.read(lsn, HEADER_BYTES)
        if not is_same or not isinstance(header, RecordHeader) or header.writer_epoch < writer_epoch:
            raise NotRepairable(
                f"{self._segments.storage.path}: its record at LSN {lsn} is another: it is no copy of this journal"
            )
