"""Storage of a broker in memory: the bytes of each partition, in runs as they were put. One thread at a time."""

import bisect
from dataclasses import dataclass, field

from journal.records.producer_state import ProducerState


@dataclass(slots=True)
class MemoryPartition:
    """One partition, from offset 0 on."""

    body: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)  # of the runs
    times_ms: list[int] = field(default_factory=list)  # time of each put, ascending
    is_closed: bool = False

    @property
    def end(self) -> int:
        return len(self.body)

    def append(self, frames: bytes, time_ms: int) -> int:
        """Store a run; return its offset."""
        base = len(self.body)
        self.starts.append(base)
        self.times_ms.append(max(time_ms, self.times_ms[-1] if self.times_ms else 0))
        self.body += frames
        return base

    def read(self, offset: int, bytes_max: int) -> bytes:
        return bytes(memoryview(self.body)[offset : offset + bytes_max])

    def nearest(self, offset: int) -> int:
        """Return the start of the run that contains *offset*; the nearer end if it is outside."""
        if offset >= self.end:
            return self.end
        return self.starts[bisect.bisect_right(self.starts, max(offset, 0)) - 1] if self.starts else 0

    def at_time(self, time_ms: int) -> int:
        """Return the start of the first run put at *time_ms* or later, or the end."""
        index = bisect.bisect_left(self.times_ms, time_ms)
        return self.starts[index] if index < len(self.starts) else self.end


class MemoryStore:
    """Partitions of one broker, and the batches they contain."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], MemoryPartition] = {}
        self.batches = ProducerState()

    def find(self, topic: str, number: int) -> MemoryPartition | None:
        return self.partitions.get((topic, number))

    def of(self, topic: str, number: int) -> MemoryPartition:
        return self.partitions.setdefault((topic, number), MemoryPartition())
