"""Message ids: milliseconds since a birthday, broker id, sequence (spec 3.4). Pure but for its clock.

Unlike the ancestor's, which count from the host's boot, they are positive and grow through restarts and through a
wall clock that was set back: records of the journal carry a time that is never behind an id handed out, and the
next life begins beyond every record.
"""

from collections.abc import Callable

from meta_client.protocol.id_layout import BIRTH_MS, BROKER_BITS, SEQUENCE_BITS

_SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1


class MessageIds:
    """Hands out ids of one broker, rising. Loop thread only."""

    def __init__(self, broker_id: int, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._broker_part = broker_id << SEQUENCE_BITS
        self._ms = BIRTH_MS
        self._sequence = -1

    def begin_after(self, ms: int) -> None:
        """Every id from now on lies beyond *ms*: the latest time that any record in the journal carries."""
        if ms >= self._ms:
            self._ms, self._sequence = ms + 1, -1

    def now_ms(self) -> int:
        """The journal's clock: the broker's time, but never behind the ids, or a restart could hand one out again."""
        return max(self._clock_ms(), self._ms)

    def next(self) -> int:
        """A new id. When a millisecond's 4,096 are used up it borrows from the next: it never waits."""
        return self.take(1)

    def take(self, count: int) -> int:
        """The first of *count* new ids, at most 4,096, that follow one another within one millisecond."""
        assert 0 < count <= _SEQUENCE_MAX + 1
        now = self._clock_ms()
        first = self._sequence + 1
        if now > self._ms:
            self._ms, first = now, 0
        elif first + count > _SEQUENCE_MAX + 1:
            self._ms, first = self._ms + 1, 0
        self._sequence = first + count - 1
        return (self._ms - BIRTH_MS) << (BROKER_BITS + SEQUENCE_BITS) | self._broker_part | first
