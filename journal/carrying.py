"""Carrying live branches forward: which runs go next, and whether their bytes still read back.

What a live branch has put must stay, and with it all of the journal behind that. So its runs are copied to the end
before they lie too far behind it (record CARRY), and retention may drop what they came from.

A branch is carried as a whole, in its partitions one after the other, in put order, and none of its runs is passed
over: those that were never carried are then always the last ones, by which `history` knows their offsets. What a
crash cuts short begins again at the first run; what was copied already is copied once more.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from journal.errors import RottenJournal, UnreadableRange
from journal.fold import Branch, JournalState
from journal.frame import META_BYTES_MAX, Kind, Lsn
from journal.open_journal import MIB, OpenJournal
from journal.record_codec import carry_bytes
from journal.records import PartitionName
from journal.runs import Run
from journal.scan import record_around

PIECE_BYTES_MAX = 1 * MIB  # of one record, unless a single run is longer: what puts may have to wait for
LOOK_BRANCHES = 1024  # of those that a start found, looked at in one call: some milliseconds
ROUND_PIECES_MAX = 256  # most branches in doubt are small: so many are carried with one fsync


class Piece(NamedTuple):
    """Runs that one CARRY takes: those of *branch* in *name* from number *first*, byte *position*, on."""

    branch: Branch
    name: PartitionName
    first: int
    position: int
    runs: list[Run]
    is_last: bool  # the branch is carried, once this is

    @property
    def bytes(self) -> int:
        return sum(run.bytes for run in self.runs)


def pieces(branch: Branch, record_bytes_max: int) -> Iterator[Piece]:
    """Everything that *branch* has put by now, cut into records of at most so many bytes, meta part included.

    A run is never cut: one that is longer makes a piece of its own. Runs must not be swapped but by these pieces.
    """
    whole = [(name, runs, len(runs)) for name, runs in branch.runs.items()]
    for name, runs, end in whole:
        head = carry_bytes(branch.key, name, 0)
        each = carry_bytes(branch.key, name, 1) - head
        room = min(PIECE_BYTES_MAX, META_BYTES_MAX, record_bytes_max) - head
        first = position = 0
        while first < end:
            last, size = first + 1, runs[first].bytes + each
            while last < end and size + runs[last].bytes + each <= room:
                size += runs[last].bytes + each
                last += 1
            piece = Piece(branch, name, first, position, runs[first:last], last == end and name == whole[-1][0])
            yield piece
            position += piece.bytes
            first = last


def copies(journal: OpenJournal, piece: Piece) -> list[memoryview]:
    """The frames of *piece*, sure to be what was put. Blocks on the disk: a worker thread's job.

    Raises RottenJournal when they do not read back: a copy would get a checksum that fits. StorageFailed.
    """
    journal.wait_flushed(max(run.lsn + run.bytes for run in piece.runs))
    frames = []
    body, at = memoryview(b""), Lsn(0)  # the body that was looked at last, and its LSN
    for run in piece.runs:
        if not at <= run.lsn <= run.lsn + run.bytes <= at + len(body):
            why = ""
            try:
                entry = record_around(journal.segments, run.lsn)
            except KeyError:  # no segment holds it
                entry = None
            except UnreadableRange as error:
                entry, why = None, f": {error}"
            if entry is None or entry.header.kind not in (Kind.TX_PUT, Kind.CARRY):
                reason = f"messages of {piece.branch.key} in {piece.name} do not read back{why}"
                raise RottenJournal(run.lsn, None, reason, journal.storage.path)
            body, at = entry.body, entry.header.body_lsn
        frames.append(body[run.lsn - at : run.lsn - at + run.bytes])
    return frames


class Carrying:
    """Chooses what to carry. Owner thread only.

    *after_segments*: how far a branch may lie behind the journal's end. Twice what live branches hold comes on top, so
    that, however much that is, at most half of what is written is copies.
    """

    def __init__(self, journal: OpenJournal, state: JournalState, after_segments: int) -> None:
        self._journal = journal
        self._state = state
        self._behind_max = after_segments * journal.segments.segment_bytes
        self._given_up: set[Lsn] = set()  # by first LSN
        self._branch: Branch | None = None
        self._left: Iterator[Piece] = iter(())  # of that one
        self._due: deque[Branch] = deque()
        # Those that were live at the start: one that was being carried when the broker stopped goes first.
        self._unseen = list(state.branches.values())

    @property
    def is_due(self) -> bool:
        """Whether there is something to carry."""
        if self._branch is not None or self._due or self._unseen:
            return True
        return next(self._overdue(), None) is not None

    def next_pieces(self) -> list[Piece]:
        """What to carry now; none: nothing was found. All of them must be carried before the next call, or given up."""
        if self._unseen:
            self._due.extend(filter(_is_carried_in_part, self._unseen[-LOOK_BRANCHES:]))
            del self._unseen[-LOOK_BRANCHES:]
        if not self._due:
            self._given_up &= self._state.branches.keys()
            self._due.extend(islice(self._overdue(), ROUND_PIECES_MAX))
        found: list[Piece] = []
        size = 0
        while len(found) < ROUND_PIECES_MAX and size < PIECE_BYTES_MAX:
            piece = next(self._left, None) if self._branch is not None and self._is_wanted(self._branch) else None
            if piece is not None:
                found.append(piece)
                size += piece.bytes
            elif self._due:
                self._branch = self._due.popleft()
                self._left = pieces(self._branch, self._journal.body_bytes_max)
            else:
                self._branch = None
                break
        return found

    def give_up(self, branch: Branch) -> None:
        """Leave *branch* where it is until the next start: it cannot be carried."""
        self._given_up.add(branch.first_lsn)

    def _overdue(self) -> Iterator[Branch]:
        """Live branches that lie too far behind, the one that does furthest first."""
        limit = self._journal.end - self._behind_max - 2 * self._state.branches_weight
        branches = takewhile(lambda one: one.oldest_lsn < limit, self._state.branches.values())
        return filter(self._is_wanted, branches)

    def _is_wanted(self, branch: Branch) -> bool:
        return branch.first_lsn in self._state.branches and branch.first_lsn not in self._given_up


def _is_carried_in_part(branch: Branch) -> bool:
    """Do some of its runs lie further back than the first one, with which a carry begins?"""
    oldest = branch.oldest_lsn
    return any(run.lsn < oldest for runs in branch.runs.values() for run in runs)
