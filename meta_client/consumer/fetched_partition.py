"""A partition that a consumer was given, and its state: one table, walked by one function. Pure.

Revoked, a partition is kept until its owner node is deleted. Lost, it is dropped at once, and may be claimed again
while its last delivery continues.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from journal.records.state_table import IdentityEnum, walk
from meta_client.consumer.backlog import Backlog
from meta_client.consumer.delivery import Delivery
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.long_poll import LongPoll
from meta_client.consumer.routing import Route
from zk.tree.claims import Claimed


class PartitionState(IdentityEnum):
    """State of a partition. In all but the last four it is assigned."""

    QUEUED = "in the delay queue, until its back-off is over"
    FETCHING = "with a runner"
    WAITING = "in a long poll"
    DELIVERING = "with a runner, in a delivery"
    PARKED = "paused, stopped or without room: kept until it may be fetched"
    DRAINING = "revoked, in a delivery, which counts"
    LEAVING = "revoked: its owner node is to be deleted"
    DETACHED = "lost, in a delivery, which counts only if nobody claims it"
    GONE = "given back, or lost"


class PartitionEvent(IdentityEnum):
    """Event that may change the state of a partition."""

    TAKE = "a runner takes it from the queue"
    REQUEUE = "its round has ended"
    PARK = "it may not be fetched now"
    UNPARK = "it may be fetched again"
    POLL = "a long poll begins"
    POLL_ENDED = "the long poll was answered, expired or cancelled, or not sent"
    DELIVER = "a delivery begins"
    RETURN = "the delivery has ended"
    REVOKE = "it goes to another consumer, or the consumer closes"
    RELEASE = "its owner node is deleted"
    LOSE = "it may be another consumer's already"


S = PartitionState
E = PartitionEvent

ASSIGNED: Final = frozenset({S.QUEUED, S.FETCHING, S.WAITING, S.DELIVERING, S.PARKED})

_END: Final[Mapping[E, S]] = {E.REVOKE: S.LEAVING, E.LOSE: S.GONE}
_RUNNERS: Final = (E.TAKE, E.REQUEUE, E.POLL, E.DELIVER)  # after the end: by a runner that has it, or takes it

NEXT: Final[Mapping[S, Mapping[E, S]]] = {
    S.QUEUED: {E.TAKE: S.FETCHING, E.REQUEUE: S.QUEUED, **_END},  # again if its runner is cancelled
    S.FETCHING: {E.REQUEUE: S.QUEUED, E.PARK: S.PARKED, E.POLL: S.WAITING, E.DELIVER: S.DELIVERING, **_END},
    S.WAITING: {E.POLL_ENDED: S.QUEUED, **_END},
    S.DELIVERING: {E.RETURN: S.FETCHING, E.REVOKE: S.DRAINING, E.LOSE: S.DETACHED},
    S.PARKED: {E.UNPARK: S.QUEUED, **_END},
    S.DRAINING: {E.RETURN: S.LEAVING, E.REVOKE: S.DRAINING, E.LOSE: S.DETACHED},
    S.LEAVING: {E.RELEASE: S.GONE, **_END, **dict.fromkeys(_RUNNERS, S.LEAVING)},
    S.DETACHED: {E.RETURN: S.GONE},
    S.GONE: {E.RELEASE: S.GONE, **dict.fromkeys(_RUNNERS, S.GONE)},
}


@dataclass(slots=True, eq=False, kw_only=True)
class FetchedPartition(FetchRequest):
    """A partition from its assignment until it is gone. *state* and *poll* are guarded by the lock of the
    assignments."""

    delivery: Delivery
    claimed: Claimed | None = None  # None: without a group
    state: PartitionState = S.QUEUED
    poll: LongPoll | None = None  # in progress, or ended and not evaluated
    is_stopped: bool = False  # at a rejected message, or beyond the end: parked until it is resumed or sought
    route: Route | None = None  # of the last fetch
    suggested: int | None = None  # slave named by the last answer
    caught_up_at: float = 0.0  # when it last had everything, or was assigned; monotonic seconds
    backlog: Backlog = field(init=False)

    def __post_init__(self) -> None:
        FetchRequest.__post_init__(self)  # super() knows no class with slots
        self.backlog = Backlog(self.topic, self.partition.number)

    @property
    def epoch(self) -> int | None:
        """Epoch of the ownership, sent to brokers with `owner`."""
        return None if self.claimed is None else self.claimed.epoch

    @property
    def is_assigned(self) -> bool:
        """True if it is fetched and delivered."""
        return self.state in ASSIGNED

    def on(self, event: PartitionEvent) -> PartitionState:
        """Move to the state after *event*, and return it."""
        self.state = walk(NEXT, self.state, event)
        return self.state
