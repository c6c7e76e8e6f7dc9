"""Every publication below an LSN, read back from the journal: how a lost partition index is rebuilt."""

from collections.abc import Iterator

from journal.errors import InvalidRecord, RottenJournal
from journal.fold import JournalState, Publication, Run, apply
from journal.frame import Lsn, Offset
from journal.records import Commit, PartitionName, Put, PutBatch, Rollback, TxPut, decode
from journal.scan import Entry, Scanner
from journal.segments import SEGMENT_HEADER_BYTES, Segments


def history(segments: Segments, until: Lsn, names: set[PartitionName]) -> Iterator[Publication]:
    """What records below *until* publish in the partitions *names*, in offset order per partition.

    From the journal's birth, or from the first record that retention has left. Raises RottenJournal when they do
    not read back that far, InvalidRecord when they contradict one another.
    """
    if not names:
        return
    publications = _Birth(segments.start) if segments.start == SEGMENT_HEADER_BYTES else _Rest(names)
    scanner = Scanner(segments, segments.start)
    for entry in scanner:
        if entry.header.lsn >= until:
            return
        for publication in publications.of(entry):
            if publication.name in names:
                yield publication
    if scanner.end < until:
        end = scanner.finish()
        raise RottenJournal(end.end, end.resumes or until, end.reason, segments.storage.path)


class _Birth:
    """The fold itself, from the first record on."""

    def __init__(self, start: Lsn) -> None:
        self._state = JournalState(start)

    def of(self, entry: Entry) -> list[Publication]:
        return apply(self._state, entry.header, decode(entry.header, entry.meta))


class _Rest:
    """Without what came before: branches may have begun there, and partitions had an end that is not known."""

    def __init__(self, names: set[PartitionName]) -> None:
        self._names = names
        self._runs: dict[Lsn, dict[PartitionName, list[Run]]] = {}  # by first LSN, of the branches seen

    def of(self, entry: Entry) -> list[Publication]:
        header = entry.header
        match decode(header, entry.meta):
            case Put(name, base, count) | PutBatch(name, base, count):
                return [Publication(name, base, Run(header.body_lsn, header.body_bytes, count, header.time_ms))]
            case TxPut(_, branch_lsn, name, count) if name in self._names:
                run = Run(header.body_lsn, header.body_bytes, count, header.time_ms)
                self._runs.setdefault(branch_lsn or header.lsn, {}).setdefault(name, []).append(run)
            case Rollback(_, branch_lsn, _):
                self._runs.pop(branch_lsn, None)
            case Commit(_, branch_lsn, _, _) as commit:
                return list(self._published(header.lsn, commit, self._runs.pop(branch_lsn, {})))
        return []

    def _published(self, lsn: Lsn, commit: Commit, runs: dict[PartitionName, list[Run]]) -> Iterator[Publication]:
        """The runs that are left: the last ones of each take, for what was put first was deleted first."""
        for take in commit.takes:
            left = runs.get(take.name, [])
            base = take.base + take.bytes - sum(run.bytes for run in left)
            if base < take.base:
                raise InvalidRecord(f"LSN {lsn}: COMMIT takes less in {take.name} than the branch put there")
            for run in left:
                yield Publication(take.name, Offset(base), run)
                base += run.bytes
