"""The manifest of an archive: its segments with size, SHA-256 and a chain, so that a missing or exchanged one shows.

`manifest.jsonl`, one JSON object a line. The first names the journal; each other one a segment, in LSN order. The chain
of a segment is the SHA-256 of the chain before it (of the first line, for the first) and its own values: an entry that
is taken out, put in or changed breaks the chain of the next. It is no signature: who may write all of it can forge it.

Between the segments stand the archived indexes, if the archive is read through its broker: where to find the messages
that retention took out of the partition indexes, so that their segments could go.
"""

import hashlib
from typing import Annotated, Final

import msgspec

from journal.errors import InvalidContent
from journal.records.header import Lsn, Natural
from journal.wal.segments import JournalIdentity, segment_name

NAME: Final = "manifest.jsonl"
FORMAT: Final = 1
INDEX_SUFFIX: Final = ".index"
_BASE: Final = b'"base"'  # only a segment's line has it
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Natural
    cluster: str
    broker: int


class ArchivedSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment: LSNs [base, base + size)."""

    base: Natural
    size: Natural
    sha256: _Digest
    chain: _Digest

    @property
    def end(self) -> Lsn:
        return Lsn(self.base + self.size)

    @property
    def name(self) -> str:
        return segment_name(self.base)

    @property
    def values(self) -> str:
        """The text that the chain covers."""
        return f"{self.base} {self.size} {self.sha256}"

    def __str__(self) -> str:
        return f"segment {self.base}"


class ArchivedIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The index of what a retention run took away: everything that points below the LSN *cut*, and has no index before.

    Its file has the digest in its name: brokers that archive the same journal one after the other may cut it alike.
    """

    cut: Natural
    size: Natural
    sha256: _Digest
    chain: _Digest

    @property
    def name(self) -> str:
        return archived_index_name(self.cut, self.sha256)

    @property
    def values(self) -> str:
        """The text that the chain covers."""
        return f"index {self.cut} {self.size} {self.sha256}"

    def __str__(self) -> str:
        return f"index {self.cut}"


_SEGMENT: Final = msgspec.json.Decoder(ArchivedSegment)
_INDEX: Final = msgspec.json.Decoder(ArchivedIndex)


class ArchiveManifest(msgspec.Struct, frozen=True):
    """The segments of one journal in an archive, in LSN order. Gaps are allowed: retention may have deleted some."""

    identity: JournalIdentity
    lines: tuple[ArchivedSegment | ArchivedIndex, ...] = ()

    @property
    def entries(self) -> tuple[ArchivedSegment, ...]:
        """The segments."""
        return tuple(line for line in self.lines if isinstance(line, ArchivedSegment))

    @property
    def indexes(self) -> tuple[ArchivedIndex, ...]:
        return tuple(line for line in self.lines if isinstance(line, ArchivedIndex))

    @property
    def end(self) -> Lsn:
        """LSN behind the last segment; 0 without one."""
        return next((line.end for line in reversed(self.lines) if isinstance(line, ArchivedSegment)), Lsn(0))

    def find(self, base: int) -> ArchivedSegment | None:
        """Return the entry of the segment at *base*."""
        for entry in reversed(self.lines):  # mostly the last one
            if isinstance(entry, ArchivedSegment) and entry.base <= base:
                return entry if entry.base == base else None
        return None

    def with_segment(self, base: int, size: int, sha256: str) -> "ArchiveManifest":
        """Return the manifest with one more segment. Raises ValueError if it does not come behind the last one."""
        if base < self.end:
            raise ValueError(f"segment {base} comes before LSN {self.end}, where the manifest ends")
        return self._with(ArchivedSegment(base, size, sha256, ""))

    def with_index(self, cut: int, size: int, sha256: str) -> "ArchiveManifest":
        """Return the manifest with one more archived index; the same if it is listed."""
        if any((line.cut, line.sha256) == (cut, sha256) for line in self.indexes):
            return self
        return self._with(ArchivedIndex(cut, size, sha256, ""))

    def _with(self, line: ArchivedSegment | ArchivedIndex) -> "ArchiveManifest":
        before = self.lines[-1].chain if self.lines else _first_chain(self.identity)
        chained = msgspec.structs.replace(line, chain=_chain(before, line.values))
        return ArchiveManifest(self.identity, (*self.lines, chained))

    def encode(self) -> bytes:
        return b"\n".join([_head(self.identity), *map(msgspec.json.encode, self.lines), b""])


def archived_index_name(cut: int, sha256: str) -> str:
    return f"{cut:020d}.{sha256}{INDEX_SUFFIX}"


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
    entries: list[ArchivedSegment | ArchivedIndex] = []
    entry: ArchivedSegment | ArchivedIndex
    for number, line in enumerate(lines[1:], 2):
        try:
            entry = _SEGMENT.decode(line) if _BASE in line else _INDEX.decode(line)
        except msgspec.DecodeError as error:
            raise InvalidContent(f"{NAME}, line {number}: {error}") from error
        chain = _chain(chain, entry.values)
        if entry.chain != chain:
            raise InvalidContent(
                f"{NAME}, line {number}: the chain breaks at {entry}: it, or an entry before it, "
                f"was changed, put in or taken out"
            )
        if isinstance(entry, ArchivedSegment):
            if entry.base < end:
                raise InvalidContent(f"{NAME}, line {number}: segment {entry.base} comes before LSN {end}")
            end = entry.end
        entries.append(entry)
    return ArchiveManifest(identity, tuple(entries))


def _head(identity: JournalIdentity) -> bytes:
    return msgspec.json.encode(_Head(FORMAT, identity.cluster, identity.broker_id))


def _first_chain(identity: JournalIdentity) -> str:
    return hashlib.sha256(_head(identity)).hexdigest()


def _chain(before: str, values: str) -> str:
    return hashlib.sha256(f"{before} {values}".encode()).hexdigest()
