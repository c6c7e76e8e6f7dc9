"""The messages that a segment publishes, in order of offset: those of its PUTs, and of the branches it commits.

A branch may have put them in segments before. Those are read back from the end, until everything that the COMMIT names
is there: a few at most, since brokers copy the messages of long transactions forward.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from journal.checksum import crc32
from journal.errors import InvalidRecord, StorageFailed
from journal.records.codec import BRANCH, PUT, READERS, RUN, SEQUENCE
from journal.records.header import HEADER_BYTES, RecordType, record_type_name
from journal.records.record import Commit, OffsetAssignment, PartitionName, Relocate
from spark_jobs.messages.frames import Extents
from spark_jobs.messages.names import Names
from spark_jobs.messages.segments import SegmentFiles
from spark_jobs.source.directory import LSN_MAX, MissingRange
from spark_jobs.source.record_block import RecordBlock


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


BATCH_BYTES_MAX: Final = 4 * 1024 * 1024  # of one batch, unless a single extent is longer
_PUT, _TX_PUT = int(RecordType.PUT), int(RecordType.TX_PUT)
_PUTS: Final = frozenset({RecordType.PUT, RecordType.PUT_BATCH})
_DECODED: Final = frozenset({RecordType.COMMIT, RecordType.CARRY})
_PRODUCER_AT: Final = PUT.size + SEQUENCE.size
_ENDS: Final = frozenset({RecordType.ROLLBACK})  # HEURISTIC alone ends a branch, too: it is then never read again


class PublishedBatch(NamedTuple):
    """Some of a segment's extents, and the bytes that hold them. *keys*: transactions, by number."""

    data: bytes | memoryview
    extents: Extents
    keys: Sequence[str]


class PublishedMessages:
    """Reads one segment, once. Rows come in LSN order of the record that publishes them."""

    def __init__(
        self,
        files: SegmentFiles,
        index: int,
        names: Names,
        on_missing: Callable[[str], None],
        start: int | None,
        wants_xid: Callable[[str | None], bool],
    ) -> None:
        """*index*: of the segment in *files*; *on_missing* is called with what does not read back, and may raise.
        *start*: LSN of the first record that is read for what it publishes. *wants_xid*: False for a transaction whose
        messages are left out; None stands for messages outside of one."""
        self._files = files
        self._index = index
        self._names = names
        self._on_missing = on_missing
        self._branches = UnendedBranches()
        self._start = start
        self._wants_xid = wants_xid
        self._known_from = files.slices[index].base if start is None else start  # LSN from which on branches are known
        self._batch = _Batch()

    def __iter__(self) -> Iterator[PublishedBatch]:
        """Raises StorageFailed, InvalidRecord, and what *on_missing* raises."""
        on_put = self._add_put if self._wants_xid(None) else None
        for found in self._files.blocks(self._index, self._start):
            if isinstance(found, MissingRange):
                self._on_missing(f"LSNs {found.lsn} to {found.end} of the journal do not read back: {found.reason}")
                continue
            for commit, lsn in follow(found, self._branches, on_put):
                yield from self._publish(commit, lsn, found)
            if self._batch.rows:
                yield self._pop_batch(found)

    def _add_put(self, topic: bytes, partition: int, base: int, count: int, body: memoryview, at: int) -> None:
        if (name := self._names.number(topic, partition)) >= 0 and self._is_in_span(name, base, len(body)):
            self._batch.add(name, "", base, count, body, at)

    def _publish(self, commit: Commit, lsn: int, block: RecordBlock) -> Iterator[PublishedBatch]:
        key = str(commit.key)
        try:
            if not self._wants_xid(key):
                return
            wanted = [self._names.number(each.name.topic.encode(), each.name.partition) for each in commit.assignments]
            if max(wanted, default=-1) < 0:
                return
            published = self._branches.published(commit.branch_lsn, commit.assignments)
            while published is None:
                if not self._read_back(commit.branch_lsn):
                    self._on_missing(f"messages that the COMMIT at LSN {lsn} publishes are not in the journal any more")
                    return
                published = self._branches.published(commit.branch_lsn, commit.assignments)
        finally:
            self._branches.drop(commit.branch_lsn)
        for name, assignment, extents in zip(wanted, commit.assignments, published, strict=True):
            base = int(assignment.base)
            for extent in extents if name >= 0 else ():
                if self._is_in_span(name, base, extent.size):
                    self._batch.add(name, key, base, extent.messages, *self._body(extent, block))
                    if self._batch.bytes >= BATCH_BYTES_MAX:
                        yield self._pop_batch(block)
                base += extent.size

    def _pop_batch(self, block: RecordBlock) -> PublishedBatch:
        """Return the batch gathered out of *block*, and begin another."""
        finished, self._batch = self._batch, _Batch()
        return finished.published(block)

    def _is_in_span(self, name: int, base: int, size: int) -> bool:
        span = self._names.spans[name]
        return base < span.end and base + size > span.start

    def _body(self, extent: BranchExtent, block: RecordBlock) -> tuple[memoryview | bytes, int]:
        """Return the bytes of *extent*, and where they stand in *block*: -1 if they are not there."""
        at = extent.lsn - block.lsn
        if at >= 0 and extent.lsn + extent.size <= block.end:
            return block.data[at : at + extent.size], at
        body = self._files.read(extent.lsn, extent.size)
        if extent.crc is not None and crc32(body) != extent.crc:
            raise StorageFailed(f"messages at LSN {extent.lsn} changed since they were found: read again")
        return body, -1

    def _read_back(self, branch_lsn: int) -> bool:
        """Learn of branches from one segment more, but not from before *branch_lsn*; False if there is nothing left."""
        index = self._files.index_of(self._known_from - 1)
        if index < 0 or self._known_from <= branch_lsn:
            return False
        base = self._files.slices[index].base
        start = branch_lsn if branch_lsn > base else None
        earlier = UnendedBranches()
        for found in self._files.blocks(index, start):
            if isinstance(found, MissingRange):
                continue  # what it held may be of no concern; else the COMMIT stays incomplete
            if found.lsn >= self._known_from:
                break
            for commit, _ in follow(found.until(self._known_from), earlier):
                earlier.drop(commit.branch_lsn)
        self._known_from = max(base, branch_lsn)
        earlier.prepend_to(self._branches)
        return True


class _Batch:
    """Extents gathered for one batch, mostly out of one block, whose bytes are then not copied."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int, int]] = []  # as Extents
        self.bytes = 0
        self._bodies: list[memoryview | bytes] = []
        self._is_copied = False
        self._end = 0  # of the last body in the block
        self._keys: dict[str, int] = {}

    def add(self, name: int, key: str, base: int, count: int, body: memoryview | bytes, at: int) -> None:
        """*key*: of the transaction; empty outside of one. *at*: where *body* stands in its block, -1 if it is a
        copy."""
        number = self._keys.setdefault(key, len(self._keys)) if key else -1
        size = len(body)
        self.rows.append((at, name, number, base, count, size))
        self._bodies.append(body)
        if at < self._end:
            self._is_copied = True
        self._end = at + size
        self.bytes += size

    def published(self, block: RecordBlock) -> PublishedBatch:
        """Return what was added since *block* began."""
        extents = Extents(*np.array(self.rows, np.int64).reshape(-1, len(Extents._fields)).T)
        data: bytes | memoryview = block.data
        if self._is_copied:
            data = b"".join(self._bodies)
            extents = extents._replace(at=np.cumsum(extents.size) - extents.size)
        return PublishedBatch(data, extents, list(self._keys))


# Topic, partition, base offset, messages, body and its place in the block.
OnPut = Callable[[bytes, int, int, int, memoryview, int], None]


def follow(block: RecordBlock, branches: UnendedBranches, on_put: OnPut | None = None) -> Iterator[tuple[Commit, int]]:
    """Add the records of *block* to *branches*, and yield its COMMITs with their LSNs; PUTs go to *on_put*.

    Raises InvalidRecord for a meta part that no metaq of this version writes.
    """
    data, headers = block.data, block.headers
    columns = (
        headers["kind"],
        headers["lsn"],
        block.meta_at,
        block.body_at,
        headers["body_bytes"],
        headers["body_crc"],
    )
    kind = lsn = 0
    try:
        for kind, lsn, meta, body, size, crc in zip(*(each.tolist() for each in columns), strict=True):
            if kind in _PUTS:
                if on_put is not None:
                    base, count, partition = PUT.unpack_from(data, meta)
                    topic = meta + (PUT.size if kind == _PUT else _PRODUCER_AT + data[meta + _PRODUCER_AT - 1])
                    if base + size > LSN_MAX or topic >= body:
                        raise ValueError(f"offset {base}, and {body - topic} bytes of a topic")
                    on_put(bytes(data[topic:body]), partition, base, count, data[body : body + size], body)
            elif kind == _TX_PUT:
                branch_lsn, key_bytes = BRANCH.unpack_from(data, meta)
                at = meta + BRANCH.size + key_bytes
                count, partition = RUN.unpack_from(data, at)
                extent = BranchExtent(lsn + HEADER_BYTES + body - meta, size, count, crc)
                branches.put(branch_lsn or lsn, (bytes(data[at + RUN.size : body]), partition), extent)
            elif kind in _DECODED:
                record = READERS[kind](bytes(data[meta:body]))
                if isinstance(record, Commit):
                    if any(each.base + each.bytes > LSN_MAX for each in record.assignments):
                        raise ValueError("an offset beyond 2^63")
                    yield record, lsn
                elif isinstance(record, Relocate):
                    branches.relocate(record, lsn + HEADER_BYTES + body - meta)
            elif kind in _ENDS:
                branches.drop(BRANCH.unpack_from(data, meta)[0])
            elif kind not in READERS:
                raise ValueError("this version of metaq does not read it: use the version that wrote it")
    except (struct.error, ValueError, IndexError) as error:
        raise InvalidRecord(f"LSN {lsn}: a malformed {record_type_name(kind)} record: {error}") from error
