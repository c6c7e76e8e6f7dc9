"""How a consumer behaves, and what its group may be called. Pure."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meta_client.consumer.position import EARLIEST, Position, check_position
from meta_client.errors import InvalidGroup
from meta_client.protocol.limits import BODY_BYTES_MAX
from zk.strategy import STRATEGIES

FETCH_BYTES = 1024 * 1024  # what a genuine broker sends at most (maxTransferSize, spec 1.8)
FETCH_WAIT_S_MAX = 3600
_FORBIDDEN = frozenset("~!#$%^&*()+=`'\",;/?[]<>.: ")  # spec 8.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """One consumer's settings; the defaults are for a service that consumes all the time."""

    consumer_id: str | None = None  # None: one of its own, so that a restart need not wait for a dead session
    start: Position = EARLIEST  # where a partition is begun of which the group has stored nothing
    starts_anew: bool = False  # True: there also if it has, each time that the partition becomes ours
    runners: int = 4  # threads that fetch and call listeners; a partition occupies one at a time
    fetch_timeout_s: float = 10.0
    fetch_wait_s: float = 15.0  # how long a metaq broker keeps a request for which it has nothing new
    # The longest rest after trouble, and at brokers without `fetch` of a partition that has nothing new; it grows by
    # tenths. The ancestor rests 5 s: gentler to a
    # broker with thousands of idle consumers, and that much later to see a message.
    rest_s_max: float = 1.0
    commit_period_s: float = 5.0
    watchdog_s: float = (
        30.0  # a partition that stands still for longer, beside what a fetch may wait, is told in the log
    )
    prefetch_bytes: int = 8 * 1024 * 1024  # of message frames, fetched ahead of fetch() and iteration, or a fetch more
    # Where refused messages are parked (on_reject="park"), one directory a consumer, at most so many bytes of them;
    # and how often they are offered to the listeners again.
    refused_directory: Path | str | None = None
    refused_bytes_max: int = 256 * 1024 * 1024
    redelivery_period_s: float = 300.0
    duplicates_max: int = 0  # so many consumed messages are remembered, and not delivered when they come again
    # What to do where the group has read further than the broker's partition goes: what stood there was lost, by the
    # promotion of a slave that had not got so far. Which messages have taken its place, only their consumer knows: to
    # go on at the end leaves them out, to go back reads some twice. So nothing is guessed unless it is asked for.
    ahead: Literal["stop", "end"] = "stop"
    strategy: str = "default"  # the whole group must use the same one

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy {self.strategy!r} is none of {', '.join(sorted(STRATEGIES))}")
        if self.ahead not in ("stop", "end"):
            raise ValueError(f"ahead {self.ahead!r} is neither stop nor end")
        if self.runners < 1:
            raise ValueError(f"runners {self.runners}: one thread at least has to fetch")
        check_position(self.start)
        if self.prefetch_bytes < 1:
            raise ValueError(f"prefetch_bytes {self.prefetch_bytes}: one byte at least has to be fetched ahead")
        if self.duplicates_max < 0:
            raise ValueError(f"duplicates_max {self.duplicates_max} is negative: 0 remembers nothing")
        times = self.fetch_timeout_s, self.fetch_wait_s, self.rest_s_max, self.commit_period_s, self.redelivery_period_s
        if min(*times, self.watchdog_s) <= 0:
            raise ValueError(f"{self}: times must be positive")
        if self.fetch_wait_s > FETCH_WAIT_S_MAX:
            raise ValueError(f"fetch_wait_s {self.fetch_wait_s:g}: brokers wait {FETCH_WAIT_S_MAX} s at most")


def check_group(group: str) -> str:
    """Return *group* if brokers, genuine clients and ZooKeeper can live with it. Raises InvalidGroup."""
    if not group.strip():
        raise InvalidGroup("Blank group: give the consumer group a name")
    if bad := next((c for c in group if c in _FORBIDDEN or not c.isprintable()), None):
        raise InvalidGroup(f"Group name has invalid character {bad!r} in {group!r}: use letters, digits, -, _ and @")
    return group


def group_of(group: str | None, broadcast: str | None) -> str | None:
    """The group of a consumer: of its own, if it shares with nobody but *broadcast*. Raises InvalidGroup."""
    return group if broadcast is None else f"{check_group(group or '')}@{check_group(broadcast)}"


def check_bytes_max(bytes_max: int) -> int:
    """Return *bytes_max* if a fetch may ask for so much. Raises ValueError."""
    if not 1 <= bytes_max <= BODY_BYTES_MAX:
        raise ValueError(f"max_bytes {bytes_max} is outside [1, {BODY_BYTES_MAX}]")
    return bytes_max
