"""Looking through runs of message frames for a message, a bounded piece at a time. A worker thread's job.

An attribute is a few bytes in a row, its length and its text. So whole stretches of the journal are searched for them
in C, with whatever stands between the runs; only a run that holds them is walked, frame by frame. The ids of a run
follow one another: its first header tells whether it can hold one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from meta_broker.store.partition_index import StoredRun
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER, HEADER_BYTES

# Of one piece. The thread holds the interpreter while it looks: more than a millisecond or two, and answers to others
# would be late. Frames are those that are walked; a run that has begun is walked to its end.
FRAMES_MAX: Final = 2048
BYTES_MAX: Final = 1024 * 1024  # of which pages may have to come from the disk
STRETCH_BYTES: Final = 256 * 1024  # searched in one call, for some 50 us
GAP_BYTES: Final = 16 * 1024  # between two runs: reading it costs less than another read
_LENGTH: Final = Struct(">i")
_ID: Final = Struct(">q")
_ID_AT: Final = 8

# LSN and size; cut at the end of the segment. Raises KeyError for what is no longer stored, StorageFailed.
Read = Callable[[int, int], memoryview]


class NoMessageThere(Exception):
    """No message begins at the offset that was asked for."""


class Looked(NamedTuple):
    """What a piece gave: everything below *next_offset* was looked at."""

    next_offset: int
    matches: list[FoundAt]


def look_for(wanted: bytes | int, read: Read, runs: Sequence[StoredRun], offset: int, matches_max: int) -> Looked:
    """Look through *runs*, of which the first holds *offset*, for an attribute or a message id; stop after a piece.

    Raises NoMessageThere, KeyError.
    """
    matches: list[FoundAt] = []
    frames_left, bytes_left = FRAMES_MAX, BYTES_MAX
    next_offset = offset
    for stretch in _stretches(runs):
        for run in _may_hold(wanted, read, stretch, offset):
            skip = max(offset - run.offset, 0)
            for place in _walk(bytes(read(run.lsn + skip, run.bytes - skip)), run.offset + skip, wanted):
                matches.append(place)
                if len(matches) == matches_max:
                    return Looked(place.offset + place.bytes, matches)
            frames_left -= run.messages
            if frames_left <= 0:
                return Looked(run.offset + run.bytes, matches)
        next_offset = stretch[-1].offset + stretch[-1].bytes
        bytes_left -= stretch[-1].lsn + stretch[-1].bytes - stretch[0].lsn
        if bytes_left <= 0:
            break
    return Looked(next_offset, matches)


def _stretches(runs: Sequence[StoredRun]) -> Iterator[Sequence[StoredRun]]:
    """Runs that follow one another closely in the journal."""
    first = 0
    while first < len(runs):
        start, end, after = runs[first].lsn, runs[first].lsn + runs[first].bytes, first + 1
        while after < len(runs):
            _, lsn, size, _ = runs[after]
            # A transaction's messages may have a lower LSN than those before them.
            if not 0 <= lsn - end <= GAP_BYTES or lsn + size - start > STRETCH_BYTES:
                break
            end = lsn + size
            after += 1
        yield runs[first:after]
        first = after


def _may_hold(wanted: bytes | int, read: Read, stretch: Sequence[StoredRun], offset: int) -> Iterator[StoredRun]:
    """Those of *stretch* that may hold what is *wanted*, and the one that *offset* lies in the middle of."""
    if stretch[0].offset < offset:
        yield stretch[0]  # whoever named that offset hears it if no message begins there
        stretch = stretch[1:]
    if isinstance(wanted, int):
        for run in stretch:
            (first,) = _ID.unpack_from(read(run.lsn, HEADER_BYTES), _ID_AT)
            if first <= wanted < first + run.messages:
                yield run
    elif stretch:
        yield from _holding(_pattern(wanted), read, stretch)


def _holding(pattern: bytes, read: Read, stretch: Sequence[StoredRun]) -> Iterator[StoredRun]:
    """The runs of *stretch* in which the bytes *pattern* stand somewhere."""
    lsns = [run.lsn for run in stretch]
    at, end = lsns[0], lsns[-1] + stretch[-1].bytes
    number = 0  # of the first run that is not decided
    while at < end:
        size = min(end - at, STRETCH_BYTES + len(pattern))  # less than all of it if it is one long run
        data = bytes(read(at, size))
        position = 0
        while (position := data.find(pattern, position)) >= 0:
            found = bisect_right(lsns, at + position) - 1
            if found >= number and at + position < lsns[found] + stretch[found].bytes:
                yield stretch[found]
            number = max(number, found + 1)
            if number == len(stretch):
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
    """The wanted messages of *data*, whole frames from *offset* of the partition on. Raises NoMessageThere."""
    pattern, place = (_ID.pack(wanted), _ID_AT) if isinstance(wanted, int) else (_pattern(wanted), HEADER_BYTES)
    at, end, candidate = 0, len(data), -1
    while at < end:
        if end - at < HEADER_BYTES:
            raise NoMessageThere
        length: int = _LENGTH.unpack_from(data, at)[0]
        after = at + HEADER_BYTES + length
        if length < 0 or after > end:
            raise NoMessageThere
        if candidate < at + place and (candidate := data.find(pattern, at + place)) < 0:
            return
        if candidate == at + place and (isinstance(wanted, int) or _has_attribute(data, at, len(pattern))):
            yield FoundAt(offset + at, after - at)
        at = after


def _pattern(wanted: bytes) -> bytes:
    return _LENGTH.pack(len(wanted)) + wanted


def _has_attribute(data: bytes, at: int, block_bytes: int) -> bool:
    """Whether the frame at *at* has an attribute, and an attribute block of so many bytes fits into it.

    Nobody checks attribute blocks when they are put: one that does not fit into its message is none.
    """
    length, _, _, flag = HEADER.unpack_from(data, at)
    return bool(flag & FLAG_ATTRIBUTE) and block_bytes <= length
