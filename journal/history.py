"""Every publication below an LSN, read back from the journal: how a lost partition index is rebuilt."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from journal.errors import InvalidRecord, RottenJournal
from journal.fold import JournalState, apply
from journal.frame import Header, Lsn, Offset
from journal.heuristics import HeuristicDecision
from journal.publications import Publication
from journal.record_codec import decode
from journal.records import (
    Carry,
    Commit,
    Heuristic,
    Lost,
    PartitionName,
    Put,
    PutBatch,
    Record,
    Rollback,
    Take,
    TxPut,
)
from journal.runs import Run
from journal.scan import Scanner
from journal.segments import SEGMENT_HEADER_BYTES, Segments


def history(
    segments: Segments, until: Lsn, names: set[PartitionName], is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[Publication]:
    """What records below *until* publish in the partitions *names*, in offset order per partition.

    From the journal's birth, or from the first record that retention has left. It ends early once *is_stopped* says so.
    Raises RottenJournal when they do not read back that far, InvalidRecord when they contradict one another.
    """
    if not names:
        return
    publications = publications_from(segments.start, names)
    scanner = Scanner(segments, segments.start)
    for entry in scanner:
        if entry.header.lsn >= until or is_stopped():
            return
        for publication in publications.of(entry.header, decode(entry.header, entry.meta)):
            if publication.name in names:
                yield publication
    if scanner.end < until:
        end = scanner.finish()
        raise RottenJournal(end.end, end.resumes or until, end.reason, segments.storage.path)


def published_in(
    segments: Segments,
    until: Lsn,
    spans: Mapping[PartitionName, tuple[int, int]],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Publication]:
    """Yield what fills the offsets [start, end) of each partition in *spans*, gaps closed; end once all of it is there.

    Raises as `history`, which reads the records below *until* for it.
    """
    missing = {name for name, (start, end) in spans.items() if start < end}
    found = history(segments, until, set(missing), is_stopped)
    for publication in without_gaps(found, {name: spans[name] for name in missing}):
        name, base, run = publication
        start, end = spans[name]
        if name in missing and (start <= base < end or not run.bytes):
            yield publication
            if base + run.bytes >= end:
                missing.discard(name)
                if not missing:
                    return


def publications_from(start: Lsn, names: set[PartitionName]) -> "_Birth | _Rest":
    """Tells the publications of records, given one after the other, of a journal whose first one is at *start*."""
    return _Birth(start) if start == SEGMENT_HEADER_BYTES else _Rest(names)


def without_gaps(
    publications: Iterable[Publication], spans: Mapping[PartitionName, tuple[int, int]]
) -> Iterator[Publication]:
    """*publications*, and a run of nothing behind every gap that they leave in *spans*: a repair dropped that."""
    gaps = Gaps(spans)
    for publication in publications:
        yield from gaps.closed(publication)
    yield from gaps.rest()


class Gaps:
    """What `without_gaps` adds, for who is given publications one by one."""

    def __init__(self, spans: Mapping[PartitionName, tuple[int, int]]) -> None:
        self._spans = spans
        self.reached = {name: start for name, (start, _) in spans.items()}

    def closed(self, publication: Publication) -> list[Publication]:
        """*publication*, behind the end of a gap if it leaves one."""
        name, base, run = publication
        if not run.bytes:
            return []
        reached = self.reached[name]
        self.reached[name] = max(reached, base + run.bytes)
        if base > reached:
            return [publication._replace(run=Run(run.lsn, 0, 0, run.time_ms)), publication]
        return [publication]

    def rest(self) -> Iterator[Publication]:
        """Once all are there: the ends of the gaps behind them."""
        for name, (_, end) in self._spans.items():
            if end > self.reached[name]:
                yield Publication(name, Offset(end), Run(Lsn(0), 0, 0, 0))


class _Birth:
    """The fold itself, from the first record on."""

    def __init__(self, start: Lsn) -> None:
        self._state = JournalState(start)

    def of(self, header: Header, record: Record) -> Sequence[Publication]:
        return apply(self._state, header, record)


class _Rest:
    """Without what came before: branches may have begun there, and partitions had an end that is not known."""

    def __init__(self, names: set[PartitionName]) -> None:
        self._names = names
        self._left: dict[Lsn, dict[PartitionName, _Left]] = {}  # by first LSN, of the branches seen
        self._lost = Lsn(0)  # where records were last dropped by a repair

    def of(self, header: Header, record: Record) -> Sequence[Publication]:
        match record:
            case Put(name, base, count) | PutBatch(name, base, count):
                return [Publication(name, base, Run(header.body_lsn, header.body_bytes, count, header.time_ms))]
            case TxPut(_, branch_lsn, name, count) if name in self._names:
                run = Run(header.body_lsn, header.body_bytes, count, header.time_ms)
                self._left_in(branch_lsn or header.lsn, name).put[run.lsn] = run
            case Carry(_, branch_lsn, name) as carry if name in self._names:
                self._left_in(branch_lsn, name).carry(carry, header.body_lsn)
            case Lost():
                self._lost = header.lsn
            case Rollback(_, branch_lsn, _) | Heuristic(_, branch_lsn, HeuristicDecision.COMPLETE):
                self._left.pop(branch_lsn, None)
            case Commit(_, branch_lsn, _, takes):
                left = self._left.pop(branch_lsn, {})
                if branch_lsn < self._lost and any(
                    take.name in self._names and (take.name not in left or left[take.name].bytes != take.bytes)
                    for take in takes
                ):
                    return []  # messages of it were dropped: never half of a branch
                return [each for take in takes if take.name in left for each in left[take.name].taken(header.lsn, take)]
        return []

    def _left_in(self, branch_lsn: Lsn, name: PartitionName) -> "_Left":
        return self._left.setdefault(branch_lsn, {}).setdefault(name, _Left())


class _Left:
    """What is left of a branch's runs in one partition, each where its newest copy stands."""

    def __init__(self) -> None:
        self.put: dict[Lsn, Run] = {}  # never carried, by LSN: the last ones, for runs are carried in put order
        self._carried: dict[int, Run] = {}  # by the bytes that the branch put before them

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in [*self.put.values(), *self._carried.values()])

    def carry(self, record: Carry, lsn: Lsn) -> None:
        position = record.position
        for run in record.runs:
            self.put.pop(run.lsn, None)
            self._carried[position] = Run(lsn, run.bytes, run.messages, run.time_ms)
            position, lsn = position + run.bytes, Lsn(lsn + run.bytes)

    def taken(self, lsn: Lsn, take: Take) -> Iterator[Publication]:
        """The publications of the COMMIT at *lsn*, as far as their bytes are left. Raises InvalidRecord."""
        position = take.bytes - sum(run.bytes for run in self.put.values())
        runs = dict(sorted(self._carried.items()))
        for run in self.put.values():
            runs[position] = run
            position += run.bytes
        end = 0
        for position, run in runs.items():
            if position < end or position + run.bytes > take.bytes:
                raise InvalidRecord(f"LSN {lsn}: COMMIT takes less in {take.name} than the branch put there")
            yield Publication(take.name, Offset(take.base + position), run)
            end = position + run.bytes
