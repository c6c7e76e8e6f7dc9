"""Searches runs of message frames for a message, a bounded piece at a time. A worker thread's job.

An attribute is a short byte string, its length and its text: large parts of the journal are searched for it in C,
including the bytes between the runs; only a run that contains it is parsed, frame by frame. The ids of a run are
consecutive: its first header tells whether it can contain one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from journal.wal.open_journal import OpenJournal
from meta_broker.store.partition_index import StoredExtent
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER, HEADER_BYTES

# Limits of one piece. The thread holds the interpreter lock while it searches: longer than a millisecond or two would
# delay other requests. FRAMES_MAX counts parsed frames; a run is parsed to its end.
FRAMES_MAX: Final = 2048
BYTES_MAX: Final = 1024 * 1024  # pages of which may have to come from the disk
GROUP_BYTES: Final = 256 * 1024  # searched in one call, for some 50 us
GAP_BYTES: Final = 16 * 1024  # between two runs: cheaper to read than to skip
AHEAD_BYTES: Final = 64 * 1024  # least bytes of one read: most callers read a few bytes at short distances
_LENGTH: Final = Struct(">i")
_ID: Final = Struct(">q")
_ID_AT: Final = 8

ReadJournal = Callable[[int, int], memoryview]  # as `ReadAhead.read`


class ReadAhead:
    """Buffer of the last part read. One thread, for one job."""

    def __init__(self, journal: OpenJournal) -> None:
        self._journal = journal
        self._start = 0
        self._data = memoryview(b"")

    def read(self, lsn: int, size: int) -> memoryview:
        """Return bytes [lsn, lsn + size), cut at the end of the segment. Blocks on the disk.

        Raises KeyError if they are no longer stored, StorageFailed.
        """
        at = lsn - self._start
        if at < 0 or at + size > len(self._data):
            base, file = self._journal.reader(lsn)
            wanted = min(max(size, AHEAD_BYTES), base + file.size - lsn)
            self._start, self._data = lsn, memoryview(file.read(lsn - base, wanted))
            at = 0
        return self._data[at : at + size]


class NotAMessageStart(Exception):
    """Raised if no message begins at the requested offset."""

    def __str__(self) -> str:
        return "no message begins there"


class SearchStep(NamedTuple):
    """Result of one piece: everything below *next_offset* has been searched."""

    next_offset: int
    matches: list[FoundAt]


def search_step(
    wanted: bytes | int, read: ReadJournal, extents: Sequence[StoredExtent], offset: int, matches_max: int
) -> SearchStep:
    """Search *extents*, the first of which contains *offset*, for an attribute or a message id; stop after a piece.

    Raises NotAMessageStart, KeyError.
    """
    matches: list[FoundAt] = []
    frames_left, bytes_left = FRAMES_MAX, BYTES_MAX
    next_offset = offset
    for group in _adjacent(extents):
        for run in _may_hold(wanted, read, group, offset):
            skip = max(offset - run.offset, 0)
            for place in _walk(bytes(read(run.lsn + skip, run.bytes - skip)), run.offset + skip, wanted):
                matches.append(place)
                if len(matches) == matches_max:
                    return SearchStep(place.offset + place.bytes, matches)
            frames_left -= run.messages
            if frames_left <= 0:
                return SearchStep(run.offset + run.bytes, matches)
        next_offset = group[-1].offset + group[-1].bytes
        bytes_left -= group[-1].lsn + group[-1].bytes - group[0].lsn
        if bytes_left <= 0:
            break
    return SearchStep(next_offset, matches)


def _adjacent(extents: Sequence[StoredExtent]) -> Iterator[Sequence[StoredExtent]]:
    """Group runs that follow each other closely in the journal."""
    first = 0
    while first < len(extents):
        start, end, after = extents[first].lsn, extents[first].lsn + extents[first].bytes, first + 1
        while after < len(extents):
            _, lsn, size, _ = extents[after]
            # A transaction's messages may have a lower LSN than those before them.
            if not 0 <= lsn - end <= GAP_BYTES or lsn + size - start > GROUP_BYTES:
                break
            end = lsn + size
            after += 1
        yield extents[first:after]
        first = after


def _may_hold(
    wanted: bytes | int, read: ReadJournal, group: Sequence[StoredExtent], offset: int
) -> Iterator[StoredExtent]:
    """Yield the runs of *group* that may contain *wanted*, and the one that *offset* lies inside of."""
    if group[0].offset < offset:
        yield group[0]  # raises NotAMessageStart if no message begins there
        group = group[1:]
    if isinstance(wanted, int):
        for run in group:
            (first,) = _ID.unpack_from(read(run.lsn, HEADER_BYTES), _ID_AT)
            if first <= wanted < first + run.messages:
                yield run
    elif group:
        yield from _holding(_pattern(wanted), read, group)


def _holding(pattern: bytes, read: ReadJournal, group: Sequence[StoredExtent]) -> Iterator[StoredExtent]:
    """Yield the runs of *group* that contain the bytes *pattern*."""
    lsns = [run.lsn for run in group]
    at, end = lsns[0], lsns[-1] + group[-1].bytes
    number = 0  # of the first run not decided yet
    while at < end:
        size = min(end - at, GROUP_BYTES + len(pattern))  # less than the whole if it is one long run
        data = bytes(read(at, size))
        position = 0
        while (position := data.find(pattern, position)) >= 0:
            found = bisect_right(lsns, at + position) - 1
            if found >= number and at + position < lsns[found] + group[found].bytes:
                yield group[found]
            number = max(number, found + 1)
            if number == len(group):
                return
            position = lsns[number] - at
        read_to = at + len(data)
        if len(data) == size:
            at = end if read_to == end else read_to - len(pattern) + 1
        else:  # the segment ends there
            following = bisect_left(lsns, read_to)
            if following == len(lsns) or not data:
                return
            at = lsns[following]


def _walk(data: bytes, offset: int, wanted: bytes | int) -> Iterator[FoundAt]:
    """Yield the wanted messages of *data*, whole frames from *offset* of the partition on. Raises NotAMessageStart."""
    pattern, place = (_ID.pack(wanted), _ID_AT) if isinstance(wanted, int) else (_pattern(wanted), HEADER_BYTES)
    at, end, candidate = 0, len(data), -1
    while at < end:
        if end - at < HEADER_BYTES:
            raise NotAMessageStart
        length: int = _LENGTH.unpack_from(data, at)[0]
        after = at + HEADER_BYTES + length
        if length < 0 or after > end:
            raise NotAMessageStart
        if candidate < at + place and (candidate := data.find(pattern, at + place)) < 0:
            return
        if candidate == at + place and (isinstance(wanted, int) or _has_attribute(data, at, len(pattern))):
            yield FoundAt(offset + at, after - at)
        at = after


def _pattern(wanted: bytes) -> bytes:
    return _LENGTH.pack(len(wanted)) + wanted


def _has_attribute(data: bytes, at: int, block_bytes: int) -> bool:
    """Return whether the frame at *at* has an attribute block, and one of *block_bytes* fits into it.

    Attribute blocks are not checked when they are put: one that does not fit into its message counts as none.
    """
    length, _, _, flag = HEADER.unpack_from(data, at)
    return bool(flag & FLAG_ATTRIBUTE) and block_bytes <= length
