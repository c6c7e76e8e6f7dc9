"""What a record says: one frozen struct a kind. Pure. Their bytes: record_codec.py.

The body of PUT, TX_PUT and CARRY is message frames, copied verbatim and never looked into; every other kind has none.
PUT and COMMIT name the base offset they take in each partition: redo is physical, and a lost or doubled record shows.
A transaction's records carry the LSN of its first record, *branch_lsn*: one identifier may serve several
branches in the life of a broker, a branch's first LSN never.

They are msgspec's structs, not frozen dataclasses, which take seven times as long to make.
"""

from enum import IntEnum
from typing import NamedTuple

import msgspec

from journal.batches import BatchSequence
from journal.frame import Lsn, Offset
from journal.heuristics import HeuristicDecision
from journal.refusals import Refused
from journal.topic_changes import TopicChange
from journal.xid import BranchKey

NO_BRANCH = Lsn(0)  # a segment header stands there, never a record
TOPIC_BYTES_MAX = 255
PRODUCER_BYTES_MAX = 64


class PartitionName(NamedTuple):
    """A partition of a topic on this broker. A tuple, because it is hashed with every put."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Put(msgspec.Struct, frozen=True):
    """*count* messages, visible once acknowledged, at *base* of a partition. Body: their frames."""

    name: PartitionName
    base: Offset
    count: int


class PutBatch(msgspec.Struct, frozen=True):
    """A Put that its producer numbered, so that a retry is known. Ids rise by one from *first_id* on."""

    name: PartitionName
    base: Offset
    count: int
    first_id: int
    sequence: BatchSequence


class TxPut(msgspec.Struct, frozen=True):
    """*count* messages inside a branch: stored, visible to nobody. branch_lsn 0: this is the first record."""

    key: BranchKey
    branch_lsn: Lsn
    name: PartitionName
    count: int


class Prepare(msgspec.Struct, frozen=True):
    """The branch has promised: it can commit or roll back after any crash."""

    key: BranchKey
    branch_lsn: Lsn
    messages: int
    bytes: int


class Take(msgspec.Struct, frozen=True):
    """The offsets a commit takes in one partition: the branch's runs there, in put order, from *base* on."""

    name: PartitionName
    base: Offset
    bytes: int
    count: int


class Commit(msgspec.Struct, frozen=True):
    """The commit point of a branch, once durable."""

    key: BranchKey
    branch_lsn: Lsn
    one_phase: bool
    takes: tuple[Take, ...]


class RollbackReason(IntEnum):
    """Why a branch was rolled back."""

    ASKED = 1
    DISCONNECTED = 2
    TIMED_OUT = 3
    PRESUMED = 4  # it was active when the broker stopped


class Rollback(msgspec.Struct, frozen=True):
    """The branch is undone; its runs are never published."""

    key: BranchKey
    branch_lsn: Lsn
    reason: RollbackReason


class CarriedRun(NamedTuple):
    """A run as it was before it was carried: its frames stood at *lsn*, and were put at *time_ms*."""

    lsn: Lsn
    bytes: int
    messages: int
    time_ms: int


class Carry(msgspec.Struct, frozen=True):
    """Some of a live branch's runs in one partition, copied forward. Body: their frames, one behind the other.

    *first*: how many runs of the branch there come before, in put order; *position*: how many bytes.
    """

    key: BranchKey
    branch_lsn: Lsn
    name: PartitionName
    first: int
    position: int
    runs: tuple[CarriedRun, ...]


class Heuristic(msgspec.Struct, frozen=True):
    """An operator decided about a branch in doubt, and what was seen of it then. A COMMIT or ROLLBACK follows, unless
    the decision is to COMPLETE: that ends the branch by itself."""

    key: BranchKey
    branch_lsn: Lsn
    decision: HeuristicDecision
    prepared_ms: int
    messages: int
    bytes: int
    who: str
    why: str


class Epoch(msgspec.Struct, frozen=True):
    """The first record of an open: from here on records carry this epoch and incarnation."""

    epoch: int
    incarnation: int
    version: str


class CheckpointMark(msgspec.Struct, frozen=True):
    """File checkpoint.<number> holds the fold of every record below *lsn*."""

    number: int
    lsn: Lsn


class Pad(msgspec.Struct, frozen=True):
    """The rest of a segment, holding nothing: the next record stands in the next segment."""


class Decision(msgspec.Struct, frozen=True):
    """A coordinator's decision to commit (no record: presumed abort). Only in a coordinator's own journal."""

    key: BranchKey
    participants: str


class Forget(msgspec.Struct, frozen=True):
    """It needs no remembering. A coordinator's decision: every participant has heard it; an operator's: somebody has
    looked at it."""

    key: BranchKey


class PartitionEnd(msgspec.Struct, frozen=True):
    """The offset that a partition goes on at."""

    name: PartitionName
    end: Offset


class Lost(msgspec.Struct, frozen=True):
    """Records were lost to rot and dropped by a repair. Without *ends*: they stood here; body: zeros in their place.

    With *ends*: the first start after the repair says where the partitions go on of which no later record told.
    """

    ends: tuple[PartitionEnd, ...] = ()


Record = (
    Put
    | PutBatch
    | TxPut
    | Prepare
    | Commit
    | Rollback
    | Heuristic
    | Epoch
    | CheckpointMark
    | Pad
    | Decision
    | Forget
    | TopicChange
    | Carry
    | Lost
    | Refused
)
