"""The manifest of an archive: its segments with size, SHA-256 and a chain, so that a missing or exchanged one shows.

`manifest.jsonl`, one JSON object a line. The first names the journal; each other one a segment, in LSN order. The chain
of a segment is the SHA-256 of the chain before it (of the first line, for the first) and its own values: an entry that
is taken out, put in or changed breaks the chain of the next. It is no signature: who may write all of it can forge it.
"""

import hashlib
from typing import Annotated, Final

import msgspec

from journal.errors import InvalidContent
from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity

NAME: Final = "manifest.jsonl"
FORMAT: Final = 1
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: _Natural
    cluster: str
    broker: int


class ArchivedSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment: LSNs [base, base + size)."""

    base: _Natural
    size: _Natural
    sha256: _Digest
    chain: _Digest

    @property
    def end(self) -> Lsn:
        return Lsn(self.base + self.size)


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The segments of one journal in an archive, in LSN order. Gaps are allowed: retention may have deleted some."""

    identity: JournalIdentity
    entries: tuple[ArchivedSegment, ...] = ()

    @property
    def end(self) -> Lsn:
        """LSN behind the last segment; 0 without one."""
        return self.entries[-1].end if self.entries else Lsn(0)

    def find(self, base: int) -> ArchivedSegment | None:
        """Return the entry of the segment at *base*."""
        for entry in reversed(self.entries):  # mostly the last one
            if entry.base <= base:
                return entry if entry.base == base else None
        return None

    def with_segment(self, base: int, size: int, sha256: str) -> "ArchiveManifest":
        """Return the manifest with one more segment. Raises ValueError if it does not come behind the last one."""
        if base < self.end:
            raise ValueError(f"segment {base} comes before LSN {self.end}, where the manifest ends")
        before = self.entries[-1].chain if self.entries else _first_chain(self.identity)
        entry = ArchivedSegment(base, size, sha256, _chain(before, base, size, sha256))
        return ArchiveManifest(self.identity, (*self.entries, entry))

    def encode(self) -> bytes:
        return b"\n".join([_head(self.identity), *map(msgspec.json.encode, self.entries), b""])


def decode_archive_manifest(data: bytes) -> ArchiveManifest:
    """Return the manifest in *data*. Raises InvalidContent with the line, and where the chain breaks."""
    lines = data.split(b"\n")
    if lines.pop() != b"":
        raise InvalidContent(f"{NAME}, line {len(lines) + 1}: cut off")
    try:
        head = msgspec.json.decode(lines[0] if lines else b"", type=_Head)
        identity = JournalIdentity(head.cluster, head.broker)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidContent(f"{NAME}, line 1: {error}") from error
    if head.format != FORMAT:
        raise InvalidContent(f"{NAME}: format {head.format}, this version reads {FORMAT}")
    chain, end = _first_chain(identity), Lsn(0)
    entries: list[ArchivedSegment] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            entry = msgspec.json.decode(line, type=ArchivedSegment)
        except msgspec.DecodeError as error:
            raise InvalidContent(f"{NAME}, line {number}: {error}") from error
        chain = _chain(chain, entry.base, entry.size, entry.sha256)
        if entry.chain != chain:
            raise InvalidContent(
                f"{NAME}, line {number}: the chain breaks at segment {entry.base}: it, or an entry before it, "
                f"was changed, put in or taken out"
            )
        if entry.base < end:
            raise InvalidContent(f"{NAME}, line {number}: segment {entry.base} comes before LSN {end}")
        end = entry.end
        entries.append(entry)
    return ArchiveManifest(identity, tuple(entries))


def _head(identity: JournalIdentity) -> bytes:
    return msgspec.json.encode(_Head(FORMAT, identity.cluster, identity.broker_id))


def _first_chain(identity: JournalIdentity) -> str:
    return hashlib.sha256(_head(identity)).hexdigest()


def _chain(before: str, base: int, size: int, sha256: str) -> str:
    return hashlib.sha256(f"{before} {base} {size} {sha256}".encode()).hexdigest()
