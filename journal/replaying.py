"""Folds records into a state and tells what they publish: live in a copy, and at every start."""

from collections.abc import Sequence
from typing import NamedTuple

from journal.bootstrap import Copying
from journal.fold import JournalState, apply
from journal.frame import Header, Kind, Lsn, Offset
from journal.publications import Publication
from journal.records import PartitionName, Record
from journal.topic_changes import TopicChange, TopicState


class Received(NamedTuple):
    """Publications of a record, to be shown once everything below *lsn* is acknowledged.

    *starts*: where partitions begin from there on, if a topic was deleted. The state may be further by then.
    """

    lsn: Lsn
    publications: Sequence[Publication]
    change: TopicChange | None = None
    starts: Sequence[tuple[PartitionName, Offset]] = ()


class Fold:
    """The state of a copy. While it is *copying* what its first checkpoint holds, that is the state already."""

    def __init__(self, state: JournalState, copying: Copying | None) -> None:
        self.state = state
        self.copying = copying

    def add(self, header: Header, record: Record) -> Received | None:
        """Add a record; None if it has nothing to say to others. After an InvalidRecord the state is not to be used."""
        publications: Sequence[Publication]
        if self.copying is not None:
            publications = self.copying.add(header, record)
            if header.end == self.copying.lsn:
                publications += self.copying.rest()
                self.copying = None
        else:
            publications = apply(self.state, header, record)
            if header.kind == Kind.TOPIC and isinstance(record, TopicChange):
                return Received(header.end, publications, record, self._starts(record))
        return Received(header.end, publications) if publications else None

    def _starts(self, change: TopicChange) -> list[tuple[PartitionName, Offset]]:
        if change.state is not TopicState.DELETED:
            return []
        return [(name, span.start) for name, span in self.state.spans.items() if name.topic == change.topic]
