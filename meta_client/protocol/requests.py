"""Requests from a client, or from a master to its slave, to a broker (spec 1.3 and 2.2).

Every request except Quit carries an opaque, an int32 that the response repeats (spec 1.2). Java clients count it up
from -2147483648, so negative ones are the norm. Line forms: PROTOCOL.md.
"""

from enum import StrEnum
from typing import Final

import msgspec

from journal.records.producer_state import BatchSequence
from journal.records.xid import BranchKey, XaKey
from meta_client.protocol.integers import INT32_MAX
from meta_client.protocol.status import Status

OPAQUE_ABSENT = INT32_MAX  # used for a stats or version without one, also in the response
PARTITION_ANY = -1  # in a plain put: the broker chooses
Body = bytes | memoryview  # a view: of a buffer that is used again once there is none (body_buffers.py)
OFFSET_END = 2**63 - 1  # in a get: answered by 301 with the end offset


# Structs, because a broker makes one per request: a frozen dataclass takes seven times as long. The decoder alone adds
# a body after the line (decoder.py).
class Put(msgspec.Struct, frozen=True):
    """Store *body* in a partition, at once or (with a key) when that branch commits."""

    topic: str
    partition: int
    flag: int  # bit 0: the body begins with an attribute block (messages.py)
    checksum: int | None  # crc31 of the body; None (-1 on the wire): the receiver can't verify it
    key: BranchKey | None
    opaque: int
    body: Body


class MultiPut(msgspec.Struct, frozen=True):
    """Store *count* messages in a partition, all or none. Extension `mput`.

    Body: their frames (messages.py) with id 0; the broker assigns consecutive ids.
    """

    topic: str
    partition: int
    count: int
    checksum: int  # crc31 of the body
    sequence: BatchSequence | None
    key: BranchKey | None
    opaque: int
    body: Body


class Sync(msgspec.Struct, frozen=True):
    """A put for a synchronous slave, with the master's message id."""

    topic: str
    partition: int
    flag: int
    message_id: int
    checksum: int | None
    opaque: int
    body: Body


class Get(msgspec.Struct, frozen=True):
    """Read message frames of a partition from *offset* on, *bytes_max* bytes at most."""

    topic: str
    group: str
    partition: int
    offset: int
    bytes_max: int
    opaque: int


class Fetch(msgspec.Struct, frozen=True):
    """Read as Get does, but wait for *bytes_min* bytes, *wait_ms* milliseconds at most. Extension `fetch`.

    *epoch*: the consumer's ownership epoch of the partition, or None. Extension `owner`.
    """

    topic: str
    group: str
    partition: int
    offset: int
    bytes_max: int
    bytes_min: int
    wait_ms: int
    opaque: int
    epoch: int | None = None


class OffsetQuery(msgspec.Struct, frozen=True):
    """Ask for the offset nearest to *offset* at which reading can start."""

    topic: str
    group: str
    partition: int
    offset: int
    opaque: int


class Offsets(msgspec.Struct, frozen=True):
    """Ask where a partition begins and ends, and at which offset it was *time_ms* (Unix milliseconds)."""

    topic: str
    partition: int
    time_ms: int
    opaque: int


class Find(msgspec.Struct, frozen=True):
    """Find messages at or after *offset*, *matches_max* of them at most. Extension `find`.

    *wanted*: their attribute, in UTF-8, or the message id. A message must begin at *offset*, unless it is beyond an
    end.
    """

    topic: str
    partition: int
    offset: int
    matches_max: int
    wanted: bytes | int
    opaque: int


class Count(msgspec.Struct, frozen=True):
    """Ask how many messages a partition holds from *offset* on. Extension `count`."""

    topic: str
    partition: int
    offset: int
    opaque: int


class ResetGroup(msgspec.Struct, frozen=True):
    """Tell a broker, for its audit log, that an operator sets a group's stored offset to *after*. Extension `reset`.

    *before*: the offset that was stored; -1: none.
    """

    topic: str
    group: str
    partition: int
    before: int
    after: int
    opaque: int


class TakeCheckpoint(msgspec.Struct, frozen=True):
    """Write a checkpoint now. Extension `checkpoint`."""

    opaque: int


class Stats(msgspec.Struct, frozen=True):
    """Ask for the statistics text of *item*; the empty item is the broker itself."""

    item: str
    opaque: int = OPAQUE_ABSENT


class Version(msgspec.Struct, frozen=True):
    """Ask for the version text. Also the heartbeat."""

    opaque: int = OPAQUE_ABSENT


class Quit(msgspec.Struct, frozen=True):
    """Ask the broker to close the connection. It has no response."""


class TransactionVerb(StrEnum):
    """Operation on a branch; END has no response."""

    BEGIN = "BEGIN"
    PREPARE = "PREPARE"
    COMMIT_ONE_PHASE = "COMMIT_ONE_PHASE"
    COMMIT_TWO_PHASE = "COMMIT_TWO_PHASE"
    ROLLBACK = "ROLLBACK"
    RECOVER = "RECOVER"
    FORGET = "FORGET"
    END = "END"
    STATUS = "STATUS"  # extension `status`


class TransactionCommand(msgspec.Struct, frozen=True):
    """One step of a branch's life."""

    key: BranchKey | None  # None: `null`, which RECOVER sends
    session_id: str  # informative: a local key contains the session in effect
    verb: TransactionVerb
    timeout_seconds: int | None  # BEGIN; None (absent, 0 or less on the wire): never expires
    qualifier: str | None  # the unique qualifier, by which RECOVER lists branches
    opaque: int


class TopicVerb(StrEnum):
    """Operation on a topic."""

    CREATE = "create"
    ALTER = "alter"
    CLOSE = "close"
    OPEN = "open"
    DELETE = "delete"
    SHOW = "show"  # decides nothing; part of extension `compression`


class TopicCommand(msgspec.Struct, frozen=True):
    """Change a topic while the broker runs. Extension `topic`.

    *settings* are pairs of key and value, in order; the broker validates them.
    """

    verb: TopicVerb
    topic: str
    settings: tuple[tuple[str, str], ...]
    opaque: int


class BranchVerb(StrEnum):
    """Operator's operation on a branch."""

    SHOW = "show"  # decides nothing
    COMMIT = "commit"
    ROLLBACK = "rollback"
    COMPLETE = "complete"
    MIXED = "mixed"  # puts a finding on record; extension `ledger`, as the next two are
    HAZARD = "hazard"
    LEDGER = "ledger"  # lists what is on record


TEXTS_OF_BRANCH: Final = {
    **dict.fromkeys((BranchVerb.SHOW, BranchVerb.LEDGER), 0),
    **dict.fromkeys((BranchVerb.COMMIT, BranchVerb.ROLLBACK, BranchVerb.COMPLETE), 2),  # who, why
    **dict.fromkeys((BranchVerb.MIXED, BranchVerb.HAZARD), 3),  # and evidence
}


class BranchCommand(msgspec.Struct, frozen=True):
    """Look at an XA branch, decide about one in doubt, or put on record what was found out. Extensions `branch` and
    `ledger`.

    *who* and *why* go on record, and *evidence* with a finding; they are empty in a SHOW and a LEDGER, and must not be
    in the others. A LEDGER has no key.
    """

    verb: BranchVerb
    key: XaKey | None
    who: str
    why: str
    opaque: int
    evidence: str = ""


class Replicate(msgspec.Struct, frozen=True):
    """Make this connection a replication link: after the 200, both sides send frames. Extension `replicate`."""

    opaque: int


class Authenticate(msgspec.Struct, frozen=True):
    """Say who this connection is: one message of the *mechanism*, answered by the broker's next. Extension `auth`."""

    mechanism: str
    message: bytes
    opaque: int


class Dropped(msgspec.Struct, frozen=True):
    """A put, mput or sync whose body the decoder passed over, unkept. Never sent: answer it with what it says."""

    opaque: int
    status: Status
    text: str


Request = (
    Put
    | MultiPut
    | Get
    | Fetch
    | OffsetQuery
    | Offsets
    | Find
    | Count
    | ResetGroup
    | Stats
    | Version
    | Quit
    | TransactionCommand
    | Sync
    | TopicCommand
    | TakeCheckpoint
    | BranchCommand
    | Replicate
    | Authenticate
)
