"""Numbers for the partitions that a reader meets, and which of their messages are wanted. One reader's own."""

from collections.abc import Callable
from typing import NamedTuple

from journal.errors import InvalidRecord
from spark_jobs.messages.batches import PartitionId
from spark_jobs.source.directory import LSN_MAX


class OffsetSpan(NamedTuple):
    """Offsets [start, end) of a partition."""

    start: int = 0
    end: int = LSN_MAX


WantedOffsets = Callable[[str, str], OffsetSpan | None]  # of topic and `broker-number`; None: nothing


class Names:
    """Partitions of one broker, numbered as they come."""

    def __init__(self, broker_id: int, wanted: WantedOffsets) -> None:
        self.names: list[PartitionId] = []
        self.spans: list[OffsetSpan] = []
        self._broker_id = broker_id
        self._wanted = wanted
        self._numbers: dict[tuple[bytes, int], int] = {}

    def number(self, topic: bytes, partition: int) -> int:
        """Return the number of a partition; -1 if nothing of it is wanted. Raises InvalidRecord for no topic."""
        if (known := self._numbers.get((topic, partition))) is not None:
            return known
        try:
            name = topic.decode()
        except UnicodeDecodeError as error:
            raise InvalidRecord(f"a topic that is not UTF-8: {error}") from error
        if not name:
            raise InvalidRecord("a topic of 0 bytes")
        shown = f"{self._broker_id}-{partition}"
        span = self._wanted(name, shown)
        number = -1
        if span is not None:
            number = len(self.names)
            self.names.append((name, shown))
            self.spans.append(span)
        self._numbers[topic, partition] = number
        return number
