"""Records, one frozen struct a type. Pure. Their bytes: codec.py.

The body of PUT, PUT_BATCH, TX_PUT and CARRY is message frames, copied verbatim and never parsed; other types have none.
PUT and COMMIT name their base offset in each partition: redo is physical, and a lost or doubled record is noticed.

A transaction's records carry the LSN of its first record, *branch_lsn*: an identifier may be reused by later branches,
an LSN never.

They are msgspec structs, since frozen dataclasses take seven times as long to make.
"""

from enum import IntEnum
from typing import NamedTuple

import msgspec

from journal.records.dead_letters import DeadLetter
from journal.records.header import Lsn, Offset
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import LedgerEntry
from journal.records.producer_state import BatchSequence
from journal.records.topic_changes import TopicChange
from journal.records.xid import BranchKey

NO_BRANCH = Lsn(0)  # a segment header stands there, never a record
TOPIC_BYTES_MAX = 255
PRODUCER_BYTES_MAX = 64


class PartitionName(NamedTuple):
    """A partition of a topic on this broker. A tuple, because it is hashed with every put."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PutRecord(msgspec.Struct, frozen=True):
    """*count* messages, visible once acknowledged, at *base* of a partition. Body: their frames."""

    name: PartitionName
    base: Offset
    count: int


class PutBatch(msgspec.Struct, frozen=True):
    """A put that its producer numbered, so that a retry is known. Ids rise by one from *first_id* on."""

    name: PartitionName
    base: Offset
    count: int
    first_id: int
    sequence: BatchSequence


class BranchRecord(msgspec.Struct, frozen=True):
    """Fields that every record of a branch begins with."""

    key: BranchKey
    branch_lsn: Lsn


class TxPut(BranchRecord, frozen=True):
    """*count* messages inside a branch: stored, not visible. branch_lsn 0: this is the first record."""

    name: PartitionName
    count: int


class Prepare(BranchRecord, frozen=True):
    """The branch is prepared: it can commit or roll back after any crash."""

    messages: int
    bytes: int


class OffsetAssignment(msgspec.Struct, frozen=True):
    """Offsets that a commit assigns in one partition: the branch's extents there, in put order, from *base* on."""

    name: PartitionName
    base: Offset
    bytes: int
    count: int


class Commit(BranchRecord, frozen=True):
    """The commit point of a branch, once durable."""

    one_phase: bool
    assignments: tuple[OffsetAssignment, ...]


class RollbackReason(IntEnum):
    """Reason of a rollback."""

    ASKED = 1
    DISCONNECTED = 2
    TIMED_OUT = 3
    PRESUMED = 4  # it was active when the broker stopped


class Rollback(BranchRecord, frozen=True):
    """The end of a branch whose messages are never published."""

    reason: RollbackReason


class RelocatedExtent(NamedTuple):
    """An extent before its relocation: its frames stood at *lsn*, and were put at *time_ms*."""

    lsn: Lsn
    bytes: int
    messages: int
    time_ms: int


class Relocate(BranchRecord, frozen=True):
    """Copies of some extents of a live branch in one partition. Body: their frames, in order.

    *first*: number of the branch's extents there before them, in put order; *position*: number of their bytes.
    """

    name: PartitionName
    first: int
    position: int
    extents: tuple[RelocatedExtent, ...]


class Heuristic(BranchRecord, frozen=True):
    """A decision of an operator about a branch in doubt, and the branch's content then. A COMMIT or ROLLBACK follows,
    except after COMPLETE, which ends the branch by itself."""

    decision: HeuristicDecision
    prepared_ms: int
    messages: int
    bytes: int
    who: str
    why: str


class Epoch(msgspec.Struct, frozen=True):
    """The first record of an open: the next records carry this epoch and incarnation."""

    epoch: int
    incarnation: int
    version: str


class CheckpointWritten(msgspec.Struct, frozen=True):
    """File checkpoint.<number> holds the fold of every record below *lsn*."""

    number: int
    lsn: Lsn


class Pad(msgspec.Struct, frozen=True):
    """The unused rest of a segment: the next record begins the next segment."""


class Decision(msgspec.Struct, frozen=True):
    """A coordinator's decision to commit (no record: presumed abort). Only in a coordinator's own journal."""

    key: BranchKey
    participants: str


class Forget(msgspec.Struct, frozen=True):
    """Removes a coordinator's decision, once every participant has it; an operator's decision or a finding, once
    acknowledged."""

    key: BranchKey


class PartitionEnd(msgspec.Struct, frozen=True):
    """The end offset of a partition, where it continues."""

    name: PartitionName
    end: Offset


class DroppedRecords(msgspec.Struct, frozen=True):
    """Records that a repair dropped because they were corrupt. Without *ends*: they stood here; body: zeros in their
    place. With *ends*: written by the first start after the repair, the ends of partitions that no later record names;
    or by a restoration, the ends beyond all that was given out."""

    ends: tuple[PartitionEnd, ...] = ()


Record = (
    PutRecord
    | PutBatch
    | TxPut
    | Prepare
    | Commit
    | Rollback
    | Heuristic
    | Epoch
    | CheckpointWritten
    | Pad
    | Decision
    | Forget
    | TopicChange
    | Relocate
    | DroppedRecords
    | DeadLetter
    | LedgerEntry
)
