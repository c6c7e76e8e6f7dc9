"""Configuration of a consumer, and valid group names. Pure."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meta_client.consumer.position import EARLIEST, Position, check_position
from meta_client.errors import InvalidGroup
from meta_client.protocol.limits import BODY_BYTES_MAX
from zk.groups.strategy import STRATEGIES

FETCH_BYTES = 1024 * 1024  # what a genuine broker sends at most (maxTransferSize, spec 1.8)
FETCH_WAIT_S_MAX = 3600
_FORBIDDEN = frozenset("~!#$%^&*()+=`'\",;/?[]<>.: ")  # spec 8.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of one consumer; the defaults suit a service that consumes continuously."""

    consumer_id: str | None = None  # None: a new one, so that a restart need not wait for a dead session
    start: Position = EARLIEST  # for a partition without a stored offset
    starts_anew: bool = False  # True: ignore stored offsets, at each assignment
    runners: int = 4  # threads that fetch and call listeners; a partition uses one at a time
    fetch_timeout_s: float = 10.0
    fetch_wait_s: float = 15.0  # long-poll time at a metaq broker without new messages
    # Longest back-off after an error, and at brokers without `fetch` of a partition with nothing new; it grows by
    # tenths. The ancestor's 5 s is gentler to a broker with thousands of idle consumers, but delays messages.
    backoff_s_max: float = 1.0
    commit_period_s: float = 5.0
    watchdog_s: float = 30.0  # a partition without progress for longer, beside long polls, is logged
    # Limit of frames fetched ahead of fetch() and iteration; exceeded by one fetch at most.
    prefetch_bytes: int = 8 * 1024 * 1024
    # Store of dead letters (on_reject="dead_letter"): one directory per consumer, its size limit, and the period of
    # redelivery to the listeners.
    dead_letter_directory: Path | str | None = None
    dead_letter_bytes_max: int = 256 * 1024 * 1024
    redelivery_period_s: float = 300.0
    duplicates_max: int = 0  # size of the cache of consumed messages, whose duplicates are not delivered
    # Policy when the stored offset is beyond the end of the broker's partition: messages were lost by the promotion of
    # a slave that lagged. Continuing at the end skips messages that took their place; going back reads some twice:
    # "stop" leaves the choice to the user.
    ahead: Literal["stop", "end"] = "stop"
    strategy: str = "default"  # the whole group must use the same

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
        times = (self.fetch_timeout_s, self.fetch_wait_s, self.backoff_s_max, self.commit_period_s, self.watchdog_s)
        if not all(time > 0 for time in (*times, self.redelivery_period_s)):  # nor is nan
            raise ValueError(f"{self}: times must be positive")
        if self.fetch_wait_s > FETCH_WAIT_S_MAX:
            raise ValueError(f"fetch_wait_s {self.fetch_wait_s:g}: brokers wait {FETCH_WAIT_S_MAX} s at most")


def check_group(group: str) -> str:
    """Return *group* if brokers, genuine clients and ZooKeeper accept it. Raises InvalidGroup."""
    if not group.strip():
        raise InvalidGroup("Blank group: give the consumer group a name")
    if bad := next((c for c in group if c in _FORBIDDEN or not c.isprintable()), None):
        raise InvalidGroup(f"Group name has invalid character {bad!r} in {group!r}: use letters, digits, -, _ and @")
    return group


def group_of(group: str | None, broadcast: str | None) -> str | None:
    """Return the group of a consumer; *broadcast* makes it a group of its own. Raises InvalidGroup."""
    return group if broadcast is None else f"{check_group(group or '')}@{check_group(broadcast)}"


def check_bytes_max(bytes_max: int) -> int:
    """Return *bytes_max* if a fetch may ask for so much. Raises ValueError."""
    if not 1 <= bytes_max <= BODY_BYTES_MAX:
        raise ValueError(f"max_bytes {bytes_max} is outside [1, {BODY_BYTES_MAX}]")
    return bytes_max
