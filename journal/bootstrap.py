"""Beginning a copy of a journal that does not begin at its birth any more: its segments, and a checkpoint of it.

What the records below the checkpoint's LSN add up to is in the checkpoint, which was told by who has all of them; of
the records themselves come the index entries only. Until the copy reaches that LSN the directory is no journal: a file
`bootstrap.<20-digit base of the first segment>` says so, and holds the checkpoint.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from journal.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint, encode_checkpoint, state_of
from journal.errors import CopySuperseded, ForeignStream, InvalidRecord, UnfinishedCopy
from journal.fold import JournalState
from journal.frame import Header, Lsn
from journal.history import Gaps, publications_from
from journal.publications import Publication
from journal.records import PartitionName, Record
from journal.segments import SEGMENT_HEADER_BYTES, segment_base
from journal.storage import Storage

_NAME = re.compile(r"bootstrap\.(\d{20})", re.ASCII)


class Bootstrap(NamedTuple):
    """What a copy began with. *first*: base of the first segment."""

    first: Lsn
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        return f"bootstrap.{self.first:020d}"


def begin_copy(storage: Storage, first: int, raw: bytes) -> None:
    """Make an empty directory the beginning of a copy; durable on return.

    *first*: base of the master's first segment; *raw*: the content of its newest checkpoint file. Raises ForeignStream
    for what is none, UnfinishedCopy unless the directory is empty (`cutting.empty`), StorageFailed.
    """
    if any(segment_base(name) is not None for name in storage.names()) or checkpoint_numbers(storage):
        raise UnfinishedCopy(f"{storage.path} holds a journal already: a copy begins in an empty directory")
    checkpoint = decode_checkpoint(raw)
    if isinstance(checkpoint, str):
        raise ForeignStream(first, f"what should be a checkpoint is none: {checkpoint}")
    if checkpoint.lsn < first + SEGMENT_HEADER_BYTES or first % 4096:
        raise ForeignStream(first, f"a checkpoint of LSN {checkpoint.lsn} for a journal that begins at {first}")
    # Its index marks are of the files that the master keeps.
    bare = [msgspec.structs.replace(mark, index=None) for mark in checkpoint.partitions]
    for name in list(bootstrap_names(storage)):  # of one that received nothing
        storage.remove(name)
    begun = Bootstrap(Lsn(first), msgspec.structs.replace(checkpoint, partitions=bare))
    storage.replace(begun.name, encode_checkpoint(begun.checkpoint))


def read_bootstrap(storage: Storage) -> Bootstrap | None:
    """What the copy in the directory began with, if it is not whole yet. Raises UnfinishedCopy if that is damaged."""
    for name in storage.names():
        if (match := _NAME.fullmatch(name)) is not None:
            checkpoint = decode_checkpoint(storage.read(name))
            if isinstance(checkpoint, str):
                raise UnfinishedCopy(f"{storage.path}/{name}: {checkpoint}: empty the directory, and start the slave")
            return Bootstrap(Lsn(int(match[1])), checkpoint)
    return None


def bootstrap_names(storage: Storage) -> Iterator[str]:
    """The files that say that a copy is not whole."""
    return (name for name in storage.names() if _NAME.fullmatch(name))


def refuse_unfinished(storage: Storage) -> None:
    """Raises UnfinishedCopy if the directory holds the beginning of a copy."""
    for name in bootstrap_names(storage):
        raise UnfinishedCopy(
            f"{storage.path} holds the beginning of a copy of its master's journal ({name}): start it as a slave until "
            f"the copy is whole, or give this broker another --data directory"
        )


def finish_copy(storage: Storage, begun: Bootstrap) -> None:
    """The copy has reached its checkpoint, durably: from here on the directory is a journal."""
    number = max(checkpoint_numbers(storage), default=0) + 1
    storage.replace(f"checkpoint.{number}", encode_checkpoint(begun.checkpoint))
    storage.remove(begun.name)


class Copying:
    """What the records below a copy's checkpoint publish. Pure."""

    def __init__(self, begun: Bootstrap) -> None:
        self.state: JournalState = state_of(begun.checkpoint)
        self.lsn = self.state.lsn  # up to here
        self._life = self.state.epoch, self.state.incarnation
        spans = {name: (span.start, span.end) for name, span in self.state.spans.items()}
        self._publications = publications_from(Lsn(begun.first + SEGMENT_HEADER_BYTES), set(spans))
        self._gaps = Gaps(spans)
        self._spans: dict[PartitionName, tuple[int, int]] = dict(spans)

    def add(self, header: Header, record: Record) -> list[Publication]:
        """Raises CopySuperseded for a record of a later master's, InvalidRecord for one that cannot be part of what the
        checkpoint says."""
        if header.life > self._life:
            raise CopySuperseded(header.lsn, f"written later than the checkpoint at LSN {self.lsn}")
        if header.end > self.lsn:
            raise InvalidRecord(f"LSN {header.lsn}: a record up to {header.end}, across the checkpoint at {self.lsn}")
        found: list[Publication] = []
        for publication in self._publications.of(header, record):
            name, base, run = publication
            start, end = self._spans.get(name, (0, 0))
            if base + run.bytes <= start:
                continue  # retention took it, or nobody knows the partition any more
            if base < self._gaps.reached[name] or base + run.bytes > end:
                raise InvalidRecord(f"LSN {header.lsn}: offsets [{base}, {base + run.bytes}) of {name} up to {end}")
            found += self._gaps.closed(publication)
        return found

    def rest(self) -> list[Publication]:
        """The copy has reached the checkpoint: what is left to publish, ends of gaps."""
        return list(self._gaps.rest())
