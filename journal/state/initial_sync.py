"""Initial sync: begins a copy of a journal whose first records are gone, from its segments and a checkpoint.

The state at the checkpoint's LSN comes from the checkpoint; the records below it give only index entries. Until the
copy reaches that LSN the directory is no journal: the file `bootstrap.<20-digit base of the first segment>` marks that,
and holds the checkpoint.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from journal.errors import ContradictoryRecord, ForeignStream, InvalidContent, SyncSuperseded, UnfinishedSync
from journal.records.header import Lsn, RecordHeader
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName, Record
from journal.state.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint, encode_checkpoint, state_of
from journal.state.history import OffsetGaps, index_updates_from
from journal.state.journal_state import JournalState
from journal.wal.segments import SEGMENT_HEADER_BYTES, segment_base
from journal.wal.storage import Storage

_NAME = re.compile(r"bootstrap\.(\d{20})", re.ASCII)


class InitialSync(NamedTuple):
    """The checkpoint that a copy began with. *first*: base of the first segment."""

    first: Lsn
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        return f"bootstrap.{self.first:020d}"


def begin_initial_sync(storage: Storage, first: int, raw: bytes) -> None:
    """Begin a copy in an empty directory; durable on return.

    *first*: base of the master's first segment; *raw*: content of its newest checkpoint file. Raises ForeignStream if
    that is invalid, UnfinishedSync unless the directory is empty, StorageFailed.
    """
    if any(segment_base(name) is not None for name in storage.names()) or checkpoint_numbers(storage):
        raise UnfinishedSync(f"{storage.path} holds a journal already: a copy begins in an empty directory")
    try:
        checkpoint = decode_checkpoint(raw)
    except InvalidContent as error:
        raise ForeignStream(first, f"what should be a checkpoint is none: {error}") from error
    if checkpoint.lsn < first + SEGMENT_HEADER_BYTES or first % 4096:
        raise ForeignStream(first, f"a checkpoint of LSN {checkpoint.lsn} for a journal that begins at {first}")
    # Its index entries are of the master's files.
    bare = [msgspec.structs.replace(entry, index=None) for entry in checkpoint.partitions]
    for name in list(initial_sync_names(storage)):  # of one that received nothing
        storage.remove(name)
    begun = InitialSync(Lsn(first), msgspec.structs.replace(checkpoint, partitions=bare))
    storage.replace(begun.name, encode_checkpoint(begun.checkpoint))


def read_initial_sync(storage: Storage) -> InitialSync | None:
    """Return the initial sync in progress in the directory, if any. Raises UnfinishedSync if its file is damaged."""
    for name in storage.names():
        if (match := _NAME.fullmatch(name)) is not None:
            try:
                return InitialSync(Lsn(int(match[1])), decode_checkpoint(storage.read(name)))
            except InvalidContent as error:
                text = f"{storage.path}/{name}: {error}: empty the directory, and start the slave"
                raise UnfinishedSync(text) from error
    return None


def initial_sync_names(storage: Storage) -> Iterator[str]:
    """Yield the files that mark an initial sync in progress."""
    return (name for name in storage.names() if _NAME.fullmatch(name))


def refuse_unfinished_sync(storage: Storage) -> None:
    """Check that no initial sync is in progress in the directory. Raises UnfinishedSync."""
    for name in initial_sync_names(storage):
        raise UnfinishedSync(
            f"{storage.path} holds the beginning of a copy of its master's journal ({name}): start it as a slave until "
            f"the copy is whole, or give this broker another --data directory"
        )


def finish_initial_sync(storage: Storage, begun: InitialSync) -> None:
    """Make the directory a journal: the copy has durably reached its checkpoint."""
    number = max(checkpoint_numbers(storage), default=0) + 1
    storage.replace(f"checkpoint.{number}", encode_checkpoint(begun.checkpoint))
    storage.remove(begun.name)


class CatchingUp:
    """Updates of the records below a copy's checkpoint. Pure."""

    def __init__(self, begun: InitialSync) -> None:
        self.state: JournalState = state_of(begun.checkpoint)
        self.lsn = self.state.lsn  # the checkpoint's LSN
        self._writer_epoch = self.state.epoch, self.state.incarnation
        offset_ranges = {
            name: (offset_range.start, offset_range.end) for name, offset_range in self.state.offset_ranges.items()
        }
        self._publications = index_updates_from(Lsn(begun.first + SEGMENT_HEADER_BYTES), set(offset_ranges))
        self._gaps = OffsetGaps(offset_ranges)
        self._spans: dict[PartitionName, tuple[int, int]] = dict(offset_ranges)

    def add(self, header: RecordHeader, record: Record) -> list[IndexUpdate]:
        """Return the updates of a record. Raises SyncSuperseded for a record of a later master,
        ContradictoryRecord for one that contradicts the checkpoint."""
        if header.writer_epoch > self._writer_epoch:
            raise SyncSuperseded(header.lsn, f"written later than the checkpoint at LSN {self.lsn}")
        if header.end > self.lsn:
            raise ContradictoryRecord(
                f"LSN {header.lsn}: a record up to {header.end}, across the checkpoint at {self.lsn}"
            )
        found: list[IndexUpdate] = []
        for update in self._publications.of(header, record):
            name, base, extent = update
            start, end = self._spans.get(name, (0, 0))
            if base + extent.bytes <= start:
                continue  # dropped by retention, or the partition is gone
            if base < self._gaps.reached[name] or base + extent.bytes > end:
                raise ContradictoryRecord(
                    f"LSN {header.lsn}: offsets [{base}, {base + extent.bytes}) of {name} up to {end}"
                )
            found += self._gaps.fill(update)
        return found

    def rest(self) -> list[IndexUpdate]:
        """Return the remaining updates, ends of gaps, once the copy has reached the checkpoint."""
        return list(self._gaps.fill_rest())
