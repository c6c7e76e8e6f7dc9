"""Watchdog: finds owned partitions without progress, and partitions without an owner. Pure.

Detects faults that raise no error: a listener that never returns, a consumer that keeps what it was to release, an
owner node that was deleted. Reports each finding once, with a remedy.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zk.tree.nodes import TopicPartition


class FetchState(Enum):
    """Present state of a partition's fetching and delivery."""

    FETCHING = "fetching"  # or in a long poll
    DELIVERING = "delivering"  # a listener is running
    STARVED = "starved"  # every runner is inside a listener: it can't be fetched
    BUFFER_FULL = "untaken"  # the limit of messages is fetched ahead, and none are taken
    PAUSED = "held"  # by the user's pause()
    STOPPED = "stopped"  # at a rejected message, or at an offset beyond the end, until somebody seeks or resumes it


class PartitionStatus(NamedTuple):
    """Status of one owned partition."""

    key: TopicPartition
    offset: int
    rounds: int  # successful: messages delivered, or none there; counted from 0 in each ownership
    epoch: int | None  # of our ownership
    state: FetchState
    last_error: str | None  # of the last round


class Cure(Enum):
    """Action of the member on a finding."""

    NONE = "nothing"  # not curable by the member
    REBALANCE = "rebalance"  # reads brokers and members again
    CALL = "call the others"  # has every member read the group again: a genuine one gives up after seven tries
    RECLAIM = "reclaim"  # releases the partition and claims it again


class PartitionFinding(NamedTuple):
    """A partition without progress or owner. *text* says for how long, the cause if known, and the remedy."""

    key: TopicPartition
    text: str
    cure: Cure = Cure.NONE


@dataclass(slots=True)
class _Since:
    mark: object  # status when it was last known to move
    at: float
    is_logged: bool = False


class Watchdog:
    """Findings of one member. One owner thread, except `current`; the caller has the clock, in seconds."""

    def __init__(self, still_s: float, unowned_s: float) -> None:
        """*still_s*: limit of time without progress; *unowned_s*: limit of time without an owner."""
        self._still_s = still_s
        self._unowned_s = unowned_s
        self._still: dict[TopicPartition, _Since] = {}
        self._unowned: dict[TopicPartition, _Since] = {}
        self._current: dict[TopicPartition, PartitionFinding] = {}  # replaced as a whole

    def current(self) -> tuple[PartitionFinding, ...]:
        """Return the current findings. Any thread."""
        return tuple(self._current.values())

    def update(
        self,
        now: float,
        statuses: Iterable[PartitionStatus],
        unowned: Mapping[TopicPartition, tuple[str, Cure]],
        ownerless: Collection[TopicPartition],
    ) -> list[PartitionFinding]:
        """Return the new findings. *unowned*: unread partitions that should have an owner, with the text to log;
        *ownerless*: owned partitions whose owner node is gone."""
        found: dict[TopicPartition, tuple[_Since, PartitionFinding | None]] = {}
        self._still = {status.key: self._since(self._still, now, status) for status in statuses}
        for key, since in self._still.items():
            if now - since.at >= self._still_s:
                assert isinstance(since.mark, PartitionStatus)
                found[key] = since, _why_still(since.mark, now - since.at)
        # A finding that ended is reported again if it comes back.
        self._unowned = {key: self._unowned.get(key) or _Since(None, now) for key in {*unowned, *ownerless}}
        for key, since in self._unowned.items():
            lasted_s = now - since.at
            if key in ownerless:
                text = "its owner node is gone, so that others may read it too: claiming it again"
                found[key] = since, PartitionFinding(key, text, Cure.RECLAIM)
            elif lasted_s >= self._unowned_s:
                text, cure = unowned[key]
                found[key] = since, PartitionFinding(key, f"for {lasted_s:.0f} s {text}", cure)
        self._current = {key: finding for key, (_, finding) in found.items() if finding is not None}
        new = []
        for since, finding in found.values():
            if finding is not None and not since.is_logged:
                since.is_logged = True
                new.append(finding)
        return new

    def _since(self, known: Mapping[TopicPartition, _Since], now: float, status: PartitionStatus) -> _Since:
        former = known.get(status.key)
        if former is None or status.state is FetchState.PAUSED:
            return _Since(status, now)
        assert isinstance(former.mark, PartitionStatus)
        if (former.mark.rounds, former.mark.epoch) != (status.rounds, status.epoch):
            return _Since(status, now)
        former.mark = status  # no progress, but the cause may have changed
        return former


def _why_still(status: PartitionStatus, lasted_s: float) -> PartitionFinding | None:
    stands = f"stands at offset {status.offset} for {lasted_s:.0f} s"
    match status.state:
        case FetchState.DELIVERING:
            return PartitionFinding(status.key, f"{stands}: its listener has not returned: see what it waits for")
        case FetchState.BUFFER_FULL:
            return PartitionFinding(status.key, f"{stands}: nobody takes what was fetched: call fetch(), or iterate")
        case FetchState.PAUSED:
            return None
        case FetchState.STOPPED:
            return PartitionFinding(
                status.key, f"{stands}: {status.last_error}: it is stopped until you seek or resume it"
            )
        case FetchState.STARVED:
            return PartitionFinding(status.key, f"{stands}: all runners are inside listeners: configure more runners")
        case FetchState.FETCHING if status.last_error is not None:
            return PartitionFinding(status.key, f"{stands}: {status.last_error}", Cure.REBALANCE)
        case FetchState.FETCHING:
            return PartitionFinding(status.key, f"{stands}: its fetch gets no answer: claiming it again", Cure.RECLAIM)
