"""Real journals for the audit to read: honest ones by the transaction store, lying ones written record by record."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.record import (
    NO_BRANCH,
    Commit,
    Epoch,
    OffsetAssignment,
    PartitionName,
    Prepare,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    TxPut,
)
from journal.records.xid import XaKey, Xid
from journal.state.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from journal.state.live_branch import LiveBranch
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.flush_mode import SYNC
from journal.wal.journal import Journal
from journal.wal.open_journal import JournalConfig
from journal.wal.scan import ScannedRecord, Scanner
from journal.wal.segments import JournalIdentity, Segments, segment_name
from journal.wal.storage import DirectoryStorage
from meta_client.protocol.messages import encode_frame

IDENTITY = JournalIdentity("test", 3)
SEGMENT_BYTES = 16 * 1024
ORDERS = PartitionName("orders", 0)
REFUNDS = PartitionName("refunds", 1)
LATE = PartitionName("late", 2)
T0 = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def key(name: str) -> XaKey:
    return XaKey(Xid.of(name, "b"), "test")


def body(count: int, data: bytes = b"x" * 80, *, first_id: int = 0) -> bytes:
    """*count* message frames with ids from *first_id* on; 100 bytes each, unless *data* is given."""
    return b"".join(encode_frame(number, 0, data) for number in range(first_id, first_id + count))


_MILLISECONDS = itertools.count(1)


def new_ids() -> int:
    """Return the first of 4,096 ids that no other message of the process has, as a broker's are."""
    return next(_MILLISECONDS) << 22


class Pen:
    """Writes any record, true or not, into a journal of its own."""

    def __init__(self, path: Path, segment_bytes: int = SEGMENT_BYTES, incarnation: int = 1) -> None:
        self._storage = DirectoryStorage.open_for_writing(path)
        segments = Segments.open(self._storage, IDENTITY, segment_bytes, writable=True)
        self.journal = Journal.start(segments, Lsn(0), epoch=1, incarnation=incarnation, flush=SYNC)
        self.clock_ms = T0
        self.write(Epoch(1, incarnation, "test"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.journal.close()
        self._storage.close()

    def write(self, record: Record, frames: bytes = b"") -> RecordHeader:
        self.clock_ms += 1000
        header = self.journal.append(record, self.clock_ms, [frames], len(frames))
        self.journal.wait_flushed(header.end)
        return header

    def put(self, name: PartitionName, base: int, count: int) -> RecordHeader:
        return self.write(PutRecord(name, Offset(base), count), body(count, first_id=new_ids()))

    def tx_put(self, branch: str, branch_lsn: int, name: PartitionName, count: int) -> Lsn:
        """Returns the branch's LSN: its own, if *branch_lsn* says that it is the first."""
        header = self.write(TxPut(key(branch), Lsn(branch_lsn), name, count), body(count, first_id=new_ids()))
        return header.lsn if branch_lsn == NO_BRANCH else Lsn(branch_lsn)

    def relocate(self, branch: str, name: PartitionName, *puts: RecordHeader) -> RecordHeader:
        """Copy the first extents of a branch in a partition, TX_PUT records each."""
        extents = tuple(RelocatedExtent(one.body_lsn, one.body_bytes, one.body_bytes // 100, T0) for one in puts)
        frames = b"".join(self.journal.segments.read(one.body_lsn, one.body_bytes) for one in puts)
        return self.write(Relocate(key(branch), puts[0].lsn, name, 0, 0, extents), frames)

    def prepare(self, branch: str, branch_lsn: Lsn, count: int) -> RecordHeader:
        return self.write(Prepare(key(branch), branch_lsn, count, count * 100))

    def commit(self, branch: str, branch_lsn: Lsn, *takes: tuple[PartitionName, int, int]) -> RecordHeader:
        """*takes*: partition, base offset, messages."""
        taken = tuple(OffsetAssignment(name, Offset(base), count * 100, count) for name, base, count in takes)
        return self.write(Commit(key(branch), branch_lsn, False, taken))


@contextmanager
def store_in(path: Path) -> Iterator[JournalTransactionStore]:
    """An open store: a live broker's, as far as a reader of its directory can tell."""
    storage = DirectoryStorage.open_for_writing(path)
    try:
        store = JournalTransactionStore.open(
            storage, IDENTITY, JournalConfig(segment_bytes=SEGMENT_BYTES), version="test"
        )
        try:
            yield store
        finally:
            store.close()
    finally:
        storage.close()


def put(store: JournalTransactionStore, name: PartitionName, count: int) -> None:
    frames = body(count, first_id=new_ids())
    store.put(name, [frames], len(frames), count)


def transaction(store: JournalTransactionStore, name: str, *puts: tuple[PartitionName, int]) -> LiveBranch:
    begun = store.begin(key(name))
    for partition, count in puts:
        frames = body(count, first_id=new_ids())
        store.transactional_put(begun, partition, [frames], len(frames), count)
    return begun


def checkpoint(store: JournalTransactionStore) -> None:
    taken = store.snapshot()
    store.on_checkpoint(store.write_checkpoint(taken, {}), taken)


def write_honest_journal(path: Path) -> None:
    """Three segments and more, two lives, three checkpoints; every way a branch can end, and two that have not.

    Live at the checkpoint of the first life: `active` and `doubtful`; at its end: those two.
    """
    with store_in(path) as store:
        for _ in range(20):
            put(store, ORDERS, 5)
        store.commit(transaction(store, "one-phase", (ORDERS, 2)), one_phase=True)
        committed = transaction(store, "two-phase", (ORDERS, 1), (REFUNDS, 2), (ORDERS, 3))
        store.prepare(committed)
        transaction(store, "active", (REFUNDS, 1))
        store.prepare(transaction(store, "doubtful", (ORDERS, 4), (REFUNDS, 5)))
        checkpoint(store)
        store.commit(committed, one_phase=False)
        store.rollback(transaction(store, "undone", (ORDERS, 7)))
        for _ in range(20):
            put(store, REFUNDS, 5)
        checkpoint(store)
    with store_in(path) as store:  # rolls `active` back, keeps `doubtful`
        store.prepare(transaction(store, "second-doubt", (REFUNDS, 1)))
        transaction(store, "young", (ORDERS, 1))
        for _ in range(20):
            put(store, ORDERS, 5)
        checkpoint(store)
        put(store, ORDERS, 1)


def segment_bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.journal"))


def flip(path: Path, lsn: int, bits: int = 0x10) -> None:
    """Flip bits of the byte at *lsn*, as a rotting disk would."""
    base = max(base for base in segment_bases(path) if base <= lsn)
    with (path / segment_name(base)).open("r+b") as file:
        file.seek(lsn - base)
        old = file.read(1)[0]
        file.seek(lsn - base)
        file.write(bytes([old ^ bits]))


def edit_checkpoint(path: Path, source: int, target: int, edit: Callable[[Checkpoint], Checkpoint]) -> None:
    """Write file checkpoint.<target> with what *edit* makes of checkpoint.<source>, its checksum right."""
    said = decode_checkpoint((path / f"checkpoint.{source}").read_bytes())
    assert isinstance(said, Checkpoint)
    (path / f"checkpoint.{target}").write_bytes(encode_checkpoint(edit(said)))


def records_of(path: Path) -> list[ScannedRecord]:
    """Every record by the journal's own scan, PAD left out. The views stay mapped until they are dropped."""
    segments = Segments.open(DirectoryStorage.open_for_reading(path), None, SEGMENT_BYTES, writable=False)
    return list(Scanner(segments, segments.start))
