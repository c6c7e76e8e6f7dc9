"""What recovery finds behind the newest checkpoint, held back until slaves in sync have it.

A master in mode sync that starts again does not know which of that was acknowledged. It must not show it before its
slaves have it: should one of them take its place, a reader would have seen what is not there. What a checkpoint holds
was acknowledged, or it would not have been written.
"""

from collections.abc import Callable, Iterable

from journal.checkpoint import PartitionMark
from journal.frame import Offset
from journal.publications import Publication
from journal.records import PartitionName
from journal.recovery import PublicationSink


class HeldBack(PublicationSink):
    """Passes to *sink* what a checkpoint holds, and keeps the rest until `release`. Bounded by what a start replays."""

    def __init__(self, sink: PublicationSink) -> None:
        self._sink = sink
        self._ends: dict[PartitionName, int] = {}  # as of the checkpoint
        self._held: list[Publication | tuple[PartitionName, Offset]] = []  # in their order; a pair is a trim

    def restore(self, marks: list[PartitionMark]) -> set[PartitionName]:
        self._ends = {PartitionName(mark.topic, mark.partition): mark.end for mark in marks}
        return self._sink.restore(marks)

    def publish(self, publication: Publication) -> None:
        if publication.base < self._ends.get(publication.name, 0):  # an index that is made anew
            self._sink.publish(publication)
        else:
            self._held.append(publication)

    def trim(self, name: PartitionName, start: Offset) -> None:
        if start <= self._ends.get(name, 0):
            self._sink.trim(name, start)
        else:
            self._held.append((name, start))

    def release(self, publish: Callable[[Iterable[Publication]], None]) -> None:
        """All of it may be shown: have it published, in its order. Once."""
        held, self._held = self._held, []
        for one in held:
            if isinstance(one, Publication):
                publish([one])
            else:
                self._sink.trim(*one)
