"""Relocates live branches: chooses the extents to copy forward, and verifies their bytes.

The messages of a live branch must stay, and with them the whole journal after them. So its extents are copied to the
end before they lie too far behind it (record CARRY), and retention may drop the originals.

A branch is relocated as a whole, one partition after the other, in put order, without skipping an extent: those never
relocated are then always the last ones, from which `history` knows their offsets. An interrupted relocation restarts at
the first extent, and copies the copies again.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from journal.errors import CorruptJournal, UnreadableRange
from journal.records.codec import relocate_bytes
from journal.records.extents import Extent
from journal.records.header import META_BYTES_MAX, Lsn, RecordType
from journal.records.record import PartitionName
from journal.state.journal_state import Branch, JournalState
from journal.wal.open_journal import MIB, OpenJournal
from journal.wal.scan import record_around

CHUNK_BYTES_MAX = 1 * MIB  # of one record, unless a single extent is longer: puts may have to wait for it
SCAN_BRANCHES_MAX = 1024  # of those found at the start, examined in one call: some milliseconds
ROUND_CHUNKS_MAX = 256  # per fsync, since most branches in doubt are small


class RelocationChunk(NamedTuple):
    """Extents of one CARRY record: those of *branch* in *name* from number *first*, byte *position*, on."""

    branch: Branch
    name: PartitionName
    first: int
    position: int
    extents: list[Extent]
    is_last: bool  # the branch's last chunk

    @property
    def bytes(self) -> int:
        return sum(extent.bytes for extent in self.extents)


def relocation_chunks(branch: Branch, record_bytes_max: int) -> Iterator[RelocationChunk]:
    """Yield everything that *branch* has put so far, in records of at most so many bytes, including the meta part.

    Never splits an extent: a longer one makes a chunk alone. Only these chunks may replace extents meanwhile.
    """
    whole = [(name, extents, len(extents)) for name, extents in branch.extents.items()]
    for name, extents, end in whole:
        head = relocate_bytes(branch.key, name, 0)
        each = relocate_bytes(branch.key, name, 1) - head
        room = min(CHUNK_BYTES_MAX, META_BYTES_MAX, record_bytes_max) - head
        first = position = 0
        while first < end:
            last, size = first + 1, extents[first].bytes + each
            while last < end and size + extents[last].bytes + each <= room:
                size += extents[last].bytes + each
                last += 1
            chunk = RelocationChunk(
                branch, name, first, position, extents[first:last], last == end and name == whole[-1][0]
            )
            yield chunk
            position += chunk.bytes
            first = last


def read_chunk(journal: OpenJournal, chunk: RelocationChunk) -> list[memoryview]:
    """Return the verified frames of *chunk*. Blocks on the disk: call it from a worker thread.

    Raises CorruptJournal if they do not read back, since a copy would get a matching checksum; StorageFailed.
    """
    journal.wait_flushed(max(extent.lsn + extent.bytes for extent in chunk.extents))
    frames = []
    body, at = memoryview(b""), Lsn(0)  # the last body read, and its LSN
    for extent in chunk.extents:
        if not at <= extent.lsn <= extent.lsn + extent.bytes <= at + len(body):
            why = ""
            try:
                entry = record_around(journal.segments, extent.lsn)
            except KeyError:  # no segment holds it
                entry = None
            except UnreadableRange as error:
                entry, why = None, f": {error}"
            if entry is None or entry.header.record_type not in (RecordType.TX_PUT, RecordType.CARRY):
                reason = f"messages of {chunk.branch.key} in {chunk.name} do not read back{why}"
                raise CorruptJournal(extent.lsn, None, reason, journal.storage.path)
            body, at = entry.body, entry.header.body_lsn
        frames.append(body[extent.lsn - at : extent.lsn - at + extent.bytes])
    return frames


class Relocator:
    """Chooses the extents to relocate. Owner thread only.

    *after_segments*: how far a branch may lie behind the journal's end. Twice the bytes of live branches is added, so
    that at most half of what is written is copies.
    """

    def __init__(self, journal: OpenJournal, state: JournalState, after_segments: int) -> None:
        self._journal = journal
        self._state = state
        self._behind_max = after_segments * journal.segments.segment_bytes
        self._given_up: set[Lsn] = set()  # by first LSN
        self._branch: Branch | None = None
        self._left: Iterator[RelocationChunk] = iter(())  # of that one
        self._due: deque[Branch] = deque()
        # Those live at the start: an interrupted relocation goes first.
        self._unseen = list(state.branches.values())

    @property
    def is_due(self) -> bool:
        """Return True if there is something to relocate."""
        if self._branch is not None or self._due or self._unseen:
            return True
        return next(self._overdue(), None) is not None

    def next_chunks(self) -> list[RelocationChunk]:
        """Return the chunks to relocate now; none if there is nothing. Relocate all of them, or give up, before the
        next call."""
        if self._unseen:
            self._due.extend(filter(_is_partly_relocated, self._unseen[-SCAN_BRANCHES_MAX:]))
            del self._unseen[-SCAN_BRANCHES_MAX:]
        if not self._due:
            self._given_up &= self._state.branches.keys()
            self._due.extend(islice(self._overdue(), ROUND_CHUNKS_MAX))
        found: list[RelocationChunk] = []
        size = 0
        while len(found) < ROUND_CHUNKS_MAX and size < CHUNK_BYTES_MAX:
            chunk = next(self._left, None) if self._branch is not None and self._is_wanted(self._branch) else None
            if chunk is not None:
                found.append(chunk)
                size += chunk.bytes
            elif self._due:
                self._branch = self._due.popleft()
                self._left = relocation_chunks(self._branch, self._journal.body_bytes_max)
            else:
                self._branch = None
                break
        return found

    def give_up(self, branch: Branch) -> None:
        """Leave *branch* where it is until the next start: it cannot be relocated."""
        self._given_up.add(branch.first_lsn)

    def _overdue(self) -> Iterator[Branch]:
        """Yield live branches that lie too far behind, the furthest first."""
        limit = self._journal.end - self._behind_max - 2 * self._state.branches_accounted_bytes
        branches = takewhile(lambda one: one.oldest_lsn < limit, self._state.branches.values())
        return filter(self._is_wanted, branches)

    def _is_wanted(self, branch: Branch) -> bool:
        return branch.first_lsn in self._state.branches and branch.first_lsn not in self._given_up


def _is_partly_relocated(branch: Branch) -> bool:
    """Return True if some of its extents lie further back than the first one, with which a relocation begins."""
    oldest = branch.oldest_lsn
    return any(extent.lsn < oldest for extents in branch.extents.values() for extent in extents)
