"""Record of a member's rebalances: each is logged in one line and kept for statistics. Pure, except for the log."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from zk.tree.nodes import TopicPartition

REMEMBERED = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance of one member: from its first cause until the member owned its whole share."""

    number: int  # of this member's, from 1
    ended_at: float  # Unix time
    reasons: tuple[str, ...]  # causes in order: "started", "members changed", ...
    duration_s: float
    attempts: int  # more than one: others had to release first, or ZooKeeper did not answer
    claimed: tuple[TopicPartition, ...]
    released: tuple[TopicPartition, ...]
    owned: int  # partitions of this member now; those in neither list were not interrupted
    members: int  # that share any of its topics
    partitions: int  # of its topics


class Rebalances:
    """Rebalances of one member. The group's thread, except `recent`."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._recent: deque[Rebalance] = deque(maxlen=REMEMBERED)
        self._count = 0
        self._reasons: dict[str, None] = {}  # of the rebalance that is due or in progress; empty: none
        self._began_at = 0.0
        self._attempts = 0
        self._claimed: set[TopicPartition] = set()
        self._released: set[TopicPartition] = set()

    def recent(self) -> tuple[Rebalance, ...]:
        """Return the last REMEMBERED rebalances, oldest first. Any thread."""
        return tuple(self._recent.copy())

    @property
    def is_due(self) -> bool:
        """True if a cause has not been followed by a complete rebalance yet."""
        return bool(self._reasons)

    @property
    def number(self) -> int:
        """Number of the rebalance that is due or in progress, from 1."""
        return self._count + 1

    def heard(self, reason: str) -> None:
        """Record a cause; a rebalance is due then."""
        if not self._reasons:
            self._began_at, self._attempts = time.monotonic(), 0
        self._reasons[reason] = None

    def attempt(self) -> None:
        self._attempts += 1

    def moved(self, claimed: set[TopicPartition], released: set[TopicPartition]) -> None:
        """Record moved partitions. One released and claimed within a rebalance counts as both."""
        self._claimed |= claimed
        self._released |= released

    def done(self, owned: int, members: int, partitions: int) -> Rebalance:
        """Complete the rebalance: log and return its record."""
        self._count += 1
        record = Rebalance(
            self._count,
            time.time(),
            tuple(self._reasons),
            time.monotonic() - self._began_at,
            self._attempts,
            tuple(sorted(self._claimed)),
            tuple(sorted(self._released)),
            owned,
            members,
            partitions,
        )
        self._reasons.clear()
        self._claimed, self._released = set(), set()
        self._recent.append(record)
        _log.info(
            "rebalanced group=%s reason=%r ms=%.0f attempts=%d claimed=%d released=%d owned=%d of=%d members=%d",
            *(self._group, ", ".join(record.reasons), record.duration_s * 1000, record.attempts),
            *(len(record.claimed), len(record.released), owned, partitions, members),
        )
        return record
