"""Ledger of transactions whose sides differ, or may differ, kept until each entry is forgotten. Pure.

A decision by hand is a HEURISTIC record (heuristics.py). The ledger is for findings beyond prepared branches: a branch
that was decided and is missing, or that ended otherwise than its transaction (X/Open XA, XA_HEURMIX and XA_HEURHAZ).
LEDGER records hold author, time, reason and evidence; FORGET ends one.
"""

import struct
from enum import IntEnum
from typing import Final

import msgspec

from journal.records.heuristics import WHO_BYTES_MAX, WHY_BYTES_MAX
from journal.records.newest import NewestByKey
from journal.records.xid import BranchKey

LEDGER_BYTES_MAX: Final = 4 * 1024 * 1024  # all of it is in memory, and in every checkpoint
EVIDENCE_BYTES_MAX: Final = 1024
HEAD: Final = struct.Struct("<BHH")  # disagreement, who bytes, why bytes; who, why and evidence follow
RESTORED_BY: Final = "metaq restore"  # author of findings about branches that were in doubt in a back-up
_ENTRY_BYTES: Final = 128  # what an entry takes besides its texts


class Disagreement(IntEnum):
    """Relation of a transaction's sides to each other."""

    MIXED = 1  # one committed, and another rolled back
    HAZARD = 2  # one is decided, and the end of another is unknown


class LedgerEntry(msgspec.Struct, frozen=True):
    """A record of a finding that the sides of a branch's transaction differ, or may: author, reason, evidence."""

    key: BranchKey
    disagreement: Disagreement
    who: str
    why: str
    evidence: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One entry: the branch by its key, the disagreement, its author, time and reason, and the statement of each
    side."""

    key: str
    disagreement: Disagreement
    who: str
    why: str
    evidence: str
    time_ms: int

    @property
    def bytes(self) -> int:
        """Size that counts against LEDGER_BYTES_MAX."""
        return sum(len(text.encode()) for text in (self.key, self.who, self.why, self.evidence)) + _ENTRY_BYTES


class Ledger(NewestByKey[str, Finding]):
    """The newest finding about each branch, by the branch's key. Folded from the journal."""

    def __init__(self) -> None:
        super().__init__(lambda finding: finding.bytes)

    def add(self, finding: Finding) -> None:
        """Keep *finding* as the newest, replacing an older one about its branch."""
        self.remove(finding.key)
        self.put(finding.key, finding)


def encode_entry(entry: LedgerEntry) -> bytes:
    """Return the meta part after the branch. Raises ValueError for a text that is empty or too long."""
    texts = [entry.who.encode(), entry.why.encode(), entry.evidence.encode()]
    for text, bytes_max in zip(texts, (WHO_BYTES_MAX, WHY_BYTES_MAX, EVIDENCE_BYTES_MAX), strict=True):
        if not 0 < len(text) <= bytes_max:
            raise ValueError(f"{text[:80].decode(errors='replace')!r} is not 1 to {bytes_max} bytes long")
    return HEAD.pack(entry.disagreement, len(texts[0]), len(texts[1])) + b"".join(texts)


def decode_entry(key: BranchKey, meta: bytes) -> LedgerEntry:
    """Decode a meta part. Raises ValueError, struct.error if it is invalid."""
    disagreement, who_bytes, why_bytes = HEAD.unpack_from(meta)
    said = meta[HEAD.size :]
    who, why, evidence = said[:who_bytes], said[who_bytes : who_bytes + why_bytes], said[who_bytes + why_bytes :]
    if len(why) != why_bytes or not (who and why and evidence):
        raise ValueError(f"{len(said)} bytes where who and why take {who_bytes} and {why_bytes}, and evidence some")
    return LedgerEntry(key, Disagreement(disagreement), who.decode(), why.decode(), evidence.decode())
