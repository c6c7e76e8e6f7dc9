"""State of a journal up to some LSN, computed by a plain walk over the bytes that journal/FORMAT.md draws.

It knows nothing of recovery, of lives, or of how a promotion compares two directories: where it and the product agree,
two have counted. For the small journals of tests, that begin at LSN 0: all of it is in memory.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from journal.records.record import PartitionName
from journal.records.xid import BranchKey, parse_key
from meta_client.protocol.messages import iter_frames
from tests.crash.ledger import Log


class Kind(IntEnum):
    """Record types that matter here; the others do not change what is compared."""

    PUT = 1
    TX_PUT = 2
    PREPARE = 3
    COMMIT = 4
    ROLLBACK = 5
    HEURISTIC = 6
    FORGET = 7
    PAD = 12
    PUT_BATCH = 14


DECISIONS = {1: "commit", 2: "rollback", 3: "complete"}

_SEGMENT = re.compile(r"(\d{20})\.journal")
_SEGMENT_HEADER_BYTES = 128
_HEADER = struct.Struct("<IBBHIIIIIIQQQ")
_BRANCH = struct.Struct("<QH")
_TAKE = struct.Struct("<QQIIB")
_HEURISTIC = struct.Struct("<BQQQHH")


class Raw(NamedTuple):
    """One record of LSNs [lsn, end)."""

    lsn: int
    end: int
    kind: int
    meta: bytes
    body: bytes

    @property
    def branch(self) -> tuple[str, int, bytes]:
        """Key, LSN of the branch's first record, and the rest of the meta."""
        first, size = _BRANCH.unpack_from(self.meta)
        at = _BRANCH.size + size
        return self.meta[_BRANCH.size : at].decode(), first or self.lsn, self.meta[at:]

    @property
    def place(self) -> tuple[PartitionName, int, int]:
        """Partition, offset and number of messages of a PUT or PUT_BATCH."""
        base, count, partition = struct.unpack_from("<QII", self.meta)
        topic = self.meta[16:] if self.kind == Kind.PUT else self.meta[33 + self.meta[32] :]
        return PartitionName(topic.decode(), partition), base, count

    @property
    def takes(self) -> Iterator[tuple[PartitionName, int, int, int]]:
        """Partition, offset, bytes and messages of each offset assignment of a COMMIT."""
        _, _, rest = self.branch
        at = 5
        for _ in range(struct.unpack_from("<I", rest, 1)[0]):
            base, size, count, partition, topic_bytes = _TAKE.unpack_from(rest, at)
            at += _TAKE.size + topic_bytes
            yield PartitionName(rest[at - topic_bytes : at].decode(), partition), base, size, count

    @property
    def decision(self) -> tuple[str, str, str]:
        """Decision of a HEURISTIC, its author and its reason."""
        _, _, rest = self.branch
        decision, _, _, _, who_bytes, _ = _HEURISTIC.unpack_from(rest)
        who, why = rest[_HEURISTIC.size :][:who_bytes], rest[_HEURISTIC.size + who_bytes :]
        return DECISIONS[decision], who.decode(), why.decode()


def segments_of(directory: Path) -> list[tuple[int, bytes]]:
    """Base LSN and bytes of each segment, in order."""
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _SEGMENT.fullmatch(path.name))]
    return [(base, path.read_bytes()) for base, path in sorted(found)]


def walk(directory: Path) -> list[Raw]:
    """Every record, up to the first bytes that are none."""
    records: list[Raw] = []
    for base, data in segments_of(directory):
        at = _SEGMENT_HEADER_BYTES
        while at + _HEADER.size <= len(data):
            crc, kind, _, _, meta_bytes, body_bytes, body_crc, _, _, _, lsn, _, _ = _HEADER.unpack_from(data, at)
            meta_at = at + _HEADER.size
            body_at = meta_at + meta_bytes
            if kind == 0 or lsn != base + at or zlib.crc32(data[at + 4 : body_at]) != crc:
                return records
            body = data[body_at : body_at + body_bytes]
            if kind != Kind.PAD and zlib.crc32(body) != body_crc:
                return records
            at += -(-(body_at + body_bytes - at) // 8) * 8
            records.append(Raw(lsn, base + at, kind, data[meta_at:body_at], b"" if kind == Kind.PAD else body))
    return records


def bytes_between(directory: Path, start: int, end: int) -> bytes:
    """LSNs [start, end) as they stand there, segment headers included."""
    return b"".join(data[max(start - base, 0) : max(end - base, 0)] for base, data in segments_of(directory))


def padded(directory: Path, end: int) -> int:
    """The end of the segment, if no record fits behind *end*; else *end*."""
    ends = (base + len(data) for base, data in segments_of(directory))
    return next((each for each in ends if 0 <= each - end < _HEADER.size), end)


@dataclass
class Branch:
    """A live branch."""

    key: str
    first: int
    runs: list[tuple[PartitionName, bytes]] = field(default_factory=list)
    is_prepared: bool = False
    decision: str = ""  # an operator's, which is not carried out yet


class Listed(NamedTuple):
    """An operator's decision that nobody has forgotten."""

    decision: str
    who: str
    why: str


class Kept:
    """State that the records add up to."""

    def __init__(self, records: list[Raw]) -> None:
        self.frames: dict[PartitionName, bytearray] = {}
        self.branches: dict[int, Branch] = {}  # by first LSN
        self.committed: dict[int, bool] = {}  # of those that are over
        self.decided: dict[str, Listed] = {}  # by key
        self.firsts: dict[bytes, int] = {}  # of every payload inside a branch, the branch
        for record in records:
            self._add(record)
        self.ends = {name: len(frames) for name, frames in self.frames.items()}
        self.undone = {first for first, branch in self.branches.items() if branch.decision}

    def promote(self) -> "Kept":
        """Apply a promotion: carry out decisions, roll back what is not prepared."""
        for first, branch in sorted(self.branches.items()):
            if branch.decision == "commit":
                for name, frames in branch.runs:
                    self._partition(name).extend(frames)
            if branch.decision or not branch.is_prepared:
                self._end(first, is_commit=branch.decision == "commit")
        return self

    @property
    def log(self) -> Log:
        return {
            name: [(at, message) for at, _, message in iter_frames(bytes(frames))]
            for name, frames in self.frames.items()
        }

    @property
    def in_doubt(self) -> set[BranchKey]:
        return {parse_key(branch.key) for branch in self.branches.values() if branch.is_prepared}

    def _add(self, record: Raw) -> None:
        match record.kind:
            case Kind.PUT | Kind.PUT_BATCH:
                name, base, _ = record.place
                assert base == len(self._partition(name)), f"LSN {record.lsn}: {name} at {base}"
                self._partition(name).extend(record.body)
            case Kind.TX_PUT:
                key, first, rest = record.branch
                branch = self.branches.setdefault(first, Branch(key, first))
                branch.runs.append((PartitionName(rest[8:].decode(), *struct.unpack_from("<I", rest, 4)), record.body))
                self.firsts.update((message.payload, first) for _, _, message in iter_frames(record.body))
            case Kind.PREPARE:
                self.branches[record.branch[1]].is_prepared = True
            case Kind.COMMIT:
                _, first, _ = record.branch
                for name, base, size, _ in record.takes:
                    frames = b"".join(frames for at, frames in self.branches[first].runs if at == name)
                    assert (base, size) == (len(self._partition(name)), len(frames)), f"LSN {record.lsn}: {name}"
                    self._partition(name).extend(frames)
                self._end(first, is_commit=True)
            case Kind.ROLLBACK:
                self._end(record.branch[1], is_commit=False)
            case Kind.HEURISTIC:
                key, first, _ = record.branch
                self.decided[key] = listed = Listed(*record.decision)
                self.branches[first].decision = listed.decision
                if listed.decision == "complete":
                    self._end(first, is_commit=False)
            case Kind.FORGET:
                del self.decided[record.branch[0]]

    def _partition(self, name: PartitionName) -> bytearray:
        return self.frames.setdefault(name, bytearray())

    def _end(self, first: int, *, is_commit: bool) -> None:
        del self.branches[first]
        self.committed[first] = is_commit


@dataclass
class Told:
    """Expected report on a tail, as `metaq promote --former-dir` gives it; each list in record order."""

    ranges: dict[str, list[int]] = field(default_factory=dict)
    prepared: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    decided: list[list[str]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    redone: list[str] = field(default_factory=list)
    again: dict[str, list[str]] = field(default_factory=dict)

    def cover(self, name: PartitionName, base: int, size: int, count: int) -> None:
        start, _, before = self.ranges.get(str(name), [base, base, 0])
        self.ranges[str(name)] = [start, base + size, before + count]


def must_be_told(kept: Kept, tail: list[Raw]) -> Told:
    """Return what is lost if a copy that holds *kept*, not promoted yet, goes on without *tail*."""
    told = Told()
    prepared: dict[int, str] = {}
    again: dict[int, tuple[str, str]] = {}  # in doubt in the copy, and ended there: what became of it
    for record in tail:
        if record.kind in (Kind.PUT, Kind.PUT_BATCH):
            name, base, count = record.place
            told.cover(name, base, len(record.body), count)
        elif record.kind == Kind.FORGET:
            told.forgotten.append(record.branch[0])
        elif record.kind in (Kind.PREPARE, Kind.COMMIT, Kind.ROLLBACK, Kind.HEURISTIC):
            key, first, _ = record.branch
            prepared.pop(first, None)
            if record.kind == Kind.PREPARE:
                prepared[first] = key
                continue
            if record.kind == Kind.HEURISTIC:
                told.decided.append([key, *record.decision])
                became = "completed" if record.decision[0] == "complete" else "decided"
            elif first in kept.undone:  # the new master does it
                told.redone.append(key)
                continue
            elif record.kind == Kind.COMMIT:
                told.committed.append(key)
                became = "committed"
                for take in record.takes:
                    told.cover(*take)
            else:
                told.rolled_back.append(key)
                became = "rolled back"
            if (branch := kept.branches.get(first)) is not None and branch.is_prepared:
                again[first] = became, key
    told.prepared = list(prepared.values())
    for became, key in again.values():
        told.again.setdefault(became, []).append(key)
    return told
