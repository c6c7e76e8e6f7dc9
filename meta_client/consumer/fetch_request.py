"""One owned partition being fetched: where to go on, how much to ask for, how long to rest (spec 8.4 - 8.6).

Pure. A request has one owner at a time: the queue, or the runner that took it.
"""

from dataclasses import dataclass, field

from meta_client.consumer.position import Jump, Position, offset_of
from meta_client.protocol.limits import BODY_BYTES_MAX
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER, HEADER_BYTES
from meta_client.protocol.requests import OFFSET_END
from zk.nodes import Partition

FRAME_BYTES_MAX = HEADER_BYTES + DATA_BYTES_MAX
REST_STEPS = 10  # a rest grows by this part of its maximum


@dataclass(slots=True, eq=False)
class FetchRequest:
    """The state of one partition's fetching. Each of the last seven methods ends a round and sets the rest."""

    topic: str
    partition: Partition
    offset: int
    bytes_max_wanted: int  # as subscribed; more only for as long as a message needs it
    rest_s_max: float
    epoch: int | None = None  # of our ownership, told to brokers that know what it means
    bytes_max: int = field(init=False)
    bytes_asked: int = 0  # by the last fetch
    rest_s: float = 0.0
    cut_off_count: int = 0  # answers in a row without one whole message
    jump: Jump | None = None  # where to go before the next fetch; set by a user's thread, under a lock
    is_at_end: bool = False  # the last answer was "nothing here yet"
    is_moved_back: bool = False  # to an offset that has to be stored before anything from there is delivered
    is_troubled: bool = False  # the last answer was an error: said once, not at every round
    trouble: str | None = None  # what the last round ran into, for the watchdog
    rounds: int = 0  # that ended well, for the watchdog
    tells_end: bool = False  # the broker asked last tells where the log ends: its 404 does not mean the end

    def __post_init__(self) -> None:
        self.bytes_max = self.bytes_max_wanted

    @property
    def key(self) -> tuple[str, Partition]:
        return self.topic, self.partition

    def begin_at(self, start: Position) -> None:
        """Before the first fetch: where to begin. Of a time, its broker knows the offset, and a runner asks."""
        if (offset := offset_of(start)) is None:
            self.jump = Jump(start, is_progress=True)
        else:
            self.offset = offset

    def ask_for(self, bytes_limit: int = BODY_BYTES_MAX) -> int:
        """How much the next fetch asks for, *bytes_limit* at most."""
        self.bytes_asked = min(self.bytes_max, bytes_limit)
        return self.bytes_asked

    def shrink(self, body_bytes: int) -> None:
        """An answer came: ask for less again if so much is not needed."""
        if body_bytes < self.bytes_max // 2:
            self.bytes_max = max(self.bytes_max // 2, self.bytes_max_wanted)

    def delivered(self, next_offset: int, log_end: int | None = None) -> None:
        """The listener has taken everything before *next_offset*: go on at once. *log_end*, if the broker tells."""
        self.offset = next_offset
        self.cut_off_count = 0
        self.rest_s = 0.0
        self.is_at_end = log_end is not None and next_offset >= log_end
        self._is_well()

    def reached_end(self, *, is_early: bool) -> None:
        """A broker that waits says that there is nothing: wait there, unless it does not really (*is_early*)."""
        self.is_at_end = True
        self._is_well()
        if is_early:
            self._rest_longer()
        else:
            self.rest_s = 0.0

    def moved(self, offset: int) -> None:
        """The broker names another offset to go on from: at once, if that is further on.

        The ancestor rests half a second and more; what a filter at the broker rejects would come at two a second.
        """
        is_forward = offset > self.offset
        self.is_moved_back = offset < self.offset < OFFSET_END
        self.offset = offset
        self.cut_off_count = 0
        self.is_at_end = False
        if is_forward:
            self._is_well()
            self.rest_s = 0.0
        else:
            self._rest_longer()

    def nothing_there(self, text: str, *, is_at_end: bool) -> None:
        """A broker has nothing at this offset, or (not *is_at_end*) does not serve the partition: *text* is its."""
        if is_at_end and self.tells_end:
            self.is_troubled, self.trouble = False, text  # it should have said where its end is: this is beyond it
        else:
            self._is_well()
        self.found_nothing(is_at_end=is_at_end)

    def found_nothing(self, *, is_at_end: bool) -> None:
        """There is nothing (yet), or nobody to ask."""
        self.is_at_end = is_at_end
        self._rest_longer()

    def failed(self, offset: int, rest_s_min: float = 0.0) -> None:
        """The message at *offset* was not taken: it comes again, later."""
        if offset > self.offset:
            self.offset, self.rest_s = offset, 0.0  # it is the first time that this one fails
        self.is_at_end = False
        self._rest_longer()
        self.rest_s = max(self.rest_s, rest_s_min)

    def jumped(self, offset: int) -> None:
        """It goes on at *offset*, where somebody wants to read: at once."""
        self.offset = offset
        self.cut_off_count = 0
        self.rest_s = 0.0
        self.is_at_end = False
        self._is_well()

    def cut_off(self, body: bytes) -> None:
        """Not one message was whole. A frame begins with its length, so ask for as much as that takes.

        The ancestor doubles after its seventh try; so do we, when a broker sends less than was asked for.
        """
        self.cut_off_count += 1
        self.is_at_end = False
        needed = HEADER_BYTES if len(body) < HEADER_BYTES else HEADER_BYTES + HEADER.unpack_from(body)[0]
        if self.bytes_asked < needed <= FRAME_BYTES_MAX:
            self.bytes_max = max(self.bytes_max, needed)
            self.rest_s = 0.0
            return
        self._rest_longer()

    def _is_well(self) -> None:
        self.is_troubled, self.trouble = False, None
        self.rounds += 1

    def _rest_longer(self) -> None:
        self.rest_s = min(self.rest_s + self.rest_s_max / REST_STEPS, self.rest_s_max)
