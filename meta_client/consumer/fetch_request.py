"""Progress of fetching one partition: where to continue, how much to ask for, how long to back off (spec 8.4 - 8.6).

Pure. One owner at a time: a reader (browsing.py), or the one that the state of a FetchedPartition names.
"""

from dataclasses import dataclass, field

from meta_client.consumer.position import Position, Seek, offset_of
from meta_client.protocol.limits import BODY_BYTES_MAX
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER, HEADER_BYTES
from meta_client.protocol.requests import Body
from zk.tree.nodes import Partition

FRAME_BYTES_MAX = HEADER_BYTES + DATA_BYTES_MAX
BACKOFF_STEPS = 10  # a back-off grows by this part of its maximum


@dataclass(slots=True, eq=False)
class FetchRequest:
    """Progress of fetching one partition. Each of the methods after `shrink` ends a round and sets the back-off."""

    topic: str
    partition: Partition
    offset: int
    bytes_max_wanted: int  # as subscribed; raised only while a message needs it
    backoff_s_max: float
    bytes_max: int = field(init=False)
    bytes_asked: int = 0  # by the last fetch
    backoff_s: float = 0.0
    seek: Seek | None = None  # to be done before the next fetch; set by a user's thread, under a lock
    log_end: int | None = None  # of the partition, as the last answer told; None: it did not
    is_at_end: bool = False  # the last answer had nothing new
    is_moved_back: bool = False  # to an offset that has to be stored before delivery
    is_at_start: bool = False  # asks for the beginning, wherever retention left it, and was not answered yet
    has_error: bool = False  # the last answer was an error: logged once, not at every round
    last_error: str | None = None  # of the last round, for the watchdog
    rounds: int = 0  # successful ones, for the watchdog
    tells_end: bool = False  # the last broker tells the log end: its 404 does not mean the end

    def __post_init__(self) -> None:
        self.bytes_max = self.bytes_max_wanted

    @property
    def key(self) -> tuple[str, Partition]:
        return self.topic, self.partition

    def begin_at(self, start: Position) -> None:
        """Set the start before the first fetch. A time is resolved by a runner, which asks the broker."""
        if (offset := offset_of(start)) is None:
            self.seek = Seek(start, is_progress=True)
        else:
            self.offset, self.is_at_start = offset, not isinstance(start, int)

    def ask_for(self, bytes_limit: int = BODY_BYTES_MAX) -> int:
        """Return the size of the next fetch, *bytes_limit* at most."""
        self.bytes_asked = min(self.bytes_max, bytes_limit)
        return self.bytes_asked

    def shrink(self, body_bytes: int) -> None:
        """Reduce the size again if an answer of *body_bytes* does not need it."""
        if body_bytes < self.bytes_max // 2:
            self.bytes_max = max(self.bytes_max // 2, self.bytes_max_wanted)

    def delivered(self, next_offset: int, log_end: int | None = None) -> None:
        """Continue at once at *next_offset*: everything before it is delivered. *log_end*: if the broker tells it."""
        self.offset = next_offset
        self.backoff_s = 0.0
        self.is_at_end = log_end is not None and next_offset >= log_end
        self._is_well()

    def reached_end(self, *, is_early: bool) -> None:
        """Record that a long poll found nothing: poll again at once, or after a back-off if it ended early
        (*is_early*)."""
        self.is_at_end = True
        self._is_well()
        if is_early:
            self._grow_backoff()
        else:
            self.backoff_s = 0.0

    def moved(self, offset: int) -> None:
        """Continue at the offset that the broker names, at once if it is further on.

        The ancestor always backs off half a second or more, which would limit a filter's skips to two per second.
        """
        is_forward = offset > self.offset
        self.is_moved_back = offset < self.offset
        self.offset = offset
        self.is_at_end = False
        if is_forward:
            self._is_well()
            self.backoff_s = 0.0
        else:
            self._grow_backoff()

    def nothing_there(self, text: str, *, is_at_end: bool) -> None:
        """Record that the broker has nothing at this offset, or (not *is_at_end*) does not serve the partition; *text*
        is its answer."""
        if is_at_end and not self.tells_end:
            self._is_well()
        else:  # the partition is closed, or the offset beyond its end, which this broker tells
            self.has_error, self.last_error = False, text
        self.found_nothing(is_at_end=is_at_end)

    def found_nothing(self, *, is_at_end: bool) -> None:
        """Back off: there is nothing (yet), or no broker to ask."""
        self.is_at_end = is_at_end
        self._grow_backoff()

    def failed(self, offset: int, backoff_s_min: float = 0.0) -> None:
        """Back off: the message at *offset* failed and is delivered again."""
        if offset > self.offset:
            self.offset, self.backoff_s = offset, 0.0  # first failure of this one
        self.is_at_end = False
        self._grow_backoff()
        self.backoff_s = max(self.backoff_s, backoff_s_min)

    def sought(self, offset: int, to: Position) -> None:
        """Continue at once at *offset*, that of *to*, after a seek."""
        self.offset = offset
        self.is_moved_back = False
        self.backoff_s = 0.0
        self.is_at_end = False
        self._is_well()
        self.is_at_start = offset == 0 and not isinstance(to, int)

    def cut_off(self, body: Body) -> None:
        """Handle an answer without one whole message. A frame begins with its length, so ask for that much next.

        The ancestor doubles the size after its seventh try; here the back-off grows if a broker sends less than was
        asked for.
        """
        self.is_at_end = False
        needed = HEADER_BYTES if len(body) < HEADER_BYTES else HEADER_BYTES + HEADER.unpack_from(body)[0]
        if self.bytes_asked < needed <= FRAME_BYTES_MAX:
            self.bytes_max = max(self.bytes_max, needed)
            self.backoff_s = 0.0
            return
        self._grow_backoff()

    def _is_well(self) -> None:
        self.has_error, self.last_error, self.is_at_start = False, None, False
        self.rounds += 1

    def _grow_backoff(self) -> None:
        self.backoff_s = min(self.backoff_s + self.backoff_s_max / BACKOFF_STEPS, self.backoff_s_max)
