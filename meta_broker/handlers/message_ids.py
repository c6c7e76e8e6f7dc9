"""Message ids: milliseconds since a fixed date, broker id, sequence (spec 3.4). Pure except for its clock.

Unlike the ancestor's, which count from the host's boot, they are positive and grow across restarts and when the wall
clock is set back: a record's time is never before an id handed out, and the next run begins after every record.
"""

from collections.abc import Callable

from meta_client.protocol.id_layout import BIRTH_MS, BROKER_BITS, SEQUENCE_BITS

_SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1


class MessageIds:
    """Allocates ids of one broker, ascending. Loop thread only."""

    def __init__(self, broker_id: int, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._broker_part = broker_id << SEQUENCE_BITS
        self._ms = BIRTH_MS
        self._sequence = -1

    def begin_after(self, ms: int) -> None:
        """Start all later ids after *ms*, the latest time of any record in the journal."""
        if ms >= self._ms:
            self._ms, self._sequence = ms + 1, -1

    def now_ms(self) -> int:
        """Return the journal's time: the broker's, but never before the ids, or a restart could reuse one."""
        return max(self._clock_ms(), self._ms)

    def next(self) -> int:
        """Return a new id. Once a millisecond's 4,096 are used up it borrows from the next: it never waits."""
        return self.allocate(1)

    def allocate(self, count: int) -> int:
        """Return the first of *count* new ids, at most 4,096, consecutive within one millisecond."""
        assert 0 < count <= _SEQUENCE_MAX + 1
        now = self._clock_ms()
        first = self._sequence + 1
        if now > self._ms:
            self._ms, first = now, 0
        elif first + count > _SEQUENCE_MAX + 1:
            self._ms, first = self._ms + 1, 0
        self._sequence = first + count - 1
        return (self._ms - BIRTH_MS) << (BROKER_BITS + SEQUENCE_BITS) | self._broker_part | first
