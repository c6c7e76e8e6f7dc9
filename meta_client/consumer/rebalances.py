"""What a member's rebalances did: each is logged in one line and remembered for whoever counts them. Pure but for the
log."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from meta_client.consumer.plan import TopicPartition

REMEMBERED = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance of one member: from the first news that caused it until the member had its whole share."""

    number: int  # of this member's, from 1
    ended_at: float  # Unix time
    reasons: tuple[str, ...]  # what was heard meanwhile, in order: "started", "members changed", ...
    duration_s: float
    attempts: int  # more than one: others had to let go first, or ZooKeeper did not answer
    claimed: tuple[TopicPartition, ...]
    released: tuple[TopicPartition, ...]
    owned: int  # partitions of this member now; those that are in neither list were not interrupted
    members: int  # that share any of its topics
    partitions: int  # of its topics


class Rebalances:
    """The rebalances of one member. The group's thread, but for `recent`."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._recent: deque[Rebalance] = deque(maxlen=REMEMBERED)
        self._count = 0
        self._reasons: dict[str, None] = {}  # of the one that is due or under way; none: nothing is
        self._began_at = 0.0
        self._attempts = 0
        self._claimed: set[TopicPartition] = set()
        self._released: set[TopicPartition] = set()

    def recent(self) -> tuple[Rebalance, ...]:
        """The last REMEMBERED ones, oldest first. Any thread."""
        return tuple(self._recent.copy())

    @property
    def is_due(self) -> bool:
        """Whether something was heard that no rebalance has answered yet."""
        return bool(self._reasons)

    def heard(self, reason: str) -> None:
        """There is a reason to rebalance, one more perhaps."""
        if not self._reasons:
            self._began_at, self._attempts = time.monotonic(), 0
        self._reasons[reason] = None

    def attempt(self) -> None:
        """One is tried."""
        self._attempts += 1

    def moved(self, claimed: set[TopicPartition], released: set[TopicPartition]) -> None:
        """These partitions came and went. What went and came back within one rebalance counts as both."""
        self._claimed |= claimed
        self._released |= released

    def done(self, owned: int, members: int, partitions: int) -> Rebalance:
        """The member has its share."""
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
