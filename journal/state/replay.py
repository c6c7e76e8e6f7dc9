"""Replays records into a state: one loop for starts, copies and readers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from journal.records.codec import decode
from journal.records.header import Lsn, Offset, RecordHeader, RecordType
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName, Record
from journal.records.topic_changes import TopicChange, TopicState
from journal.state.fold import apply
from journal.state.initial_sync import CatchingUp
from journal.state.journal_state import JournalState
from journal.wal.scan import ScannedRecord


class PendingUpdates(NamedTuple):
    """Updates of a record, to be published once everything below *lsn* is acknowledged. *starts*: new starts of
    partitions, if a topic was deleted. The state may be further ahead."""

    lsn: Lsn
    updates: Sequence[IndexUpdate]
    change: TopicChange | None = None
    starts: Sequence[tuple[PartitionName, Offset]] = ()


class RecordFold:
    """State of a journal being read. During an initial sync it is already that of the first checkpoint."""

    def __init__(self, state: JournalState, catching_up: CatchingUp | None = None) -> None:
        self.state = state
        self.catching_up = catching_up

    def add(self, header: RecordHeader, record: Record) -> PendingUpdates | None:
        """Add a record; returns None if it publishes nothing. Raises ContradictoryRecord, SyncSuperseded."""
        updates: Sequence[IndexUpdate]
        if self.catching_up is not None:
            updates = self.catching_up.add(header, record)
            if header.end == self.catching_up.lsn:
                updates += self.catching_up.rest()
                self.catching_up = None
        else:
            updates = apply(self.state, header, record)
            if header.record_type == RecordType.TOPIC and isinstance(record, TopicChange):
                return PendingUpdates(header.end, updates, record, self._starts(record))
        return PendingUpdates(header.end, updates) if updates else None

    def _starts(self, change: TopicChange) -> list[tuple[PartitionName, Offset]]:
        if change.state is not TopicState.DELETED:
            return []
        return [
            (name, offset_range.start)
            for name, offset_range in self.state.offset_ranges.items()
            if name.topic == change.topic and offset_range.start
        ]


def replay(entries: Iterable[ScannedRecord], fold: RecordFold) -> Iterator[tuple[RecordHeader, PendingUpdates | None]]:
    """Decode *entries* and add them to *fold*; yields each header, and what the record publishes.

    Raises InvalidRecord if one does not decode, and as `RecordFold.add`.
    """
    for entry in entries:
        header = entry.header
        yield header, fold.add(header, decode(header, entry.meta))
