"""Assigned partitions: which are fetched, which may go on now, and which are being delivered.

Shared by runners, the group's thread and users' threads: one lock, and one condition for every change.
"""

import logging
import threading
from collections.abc import Callable, Collection
from enum import Enum

from meta_client.consumer.delivery import Delivery
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import Seek
from meta_client.consumer.watchdog import FetchState, PartitionStatus

BUSY_S = 0.05  # back-off of a partition while another delivery of it is in progress
LEASE_LOOK_S = 0.05  # interval of checks for renewal of an expired lease
SLOW_S = 10.0  # a listener that blocks the group for longer is logged

_log = logging.getLogger(__name__)


class FetchPermission(Enum):
    """Decision about a runner's next fetch."""

    GRANTED = "fetch"
    PARKED = "leave it: it is kept, and comes back"
    REVOKED = "drop it: the partition was withdrawn"


class Assignments:
    """Partitions of one consumer. Starts paused. Any thread; *changed* guards everything."""

    def __init__(self, group: str, may_deliver: Callable[[], bool], changed: threading.Condition) -> None:
        """*may_deliver* is called before each delivery: False acts as a pause, whose end is not notified."""
        self._may_deliver = may_deliver
        self.changed = changed
        self._group = group
        self._assigned: dict[TopicPartition, tuple[FetchRequest, Delivery]] = {}
        self._delivering: set[TopicPartition] = set()
        self._parked: dict[TopicPartition, FetchRequest] = {}
        self._paused: set[TopicPartition] = set()  # by the user, until the user resumes them
        self._stopped: set[TopicPartition] = set()  # at a rejected message; cleared when they are removed
        self._is_paused = True
        self._pauses = 0
        self._is_closed = False

    def add(self, request: FetchRequest, delivery: Delivery) -> None:
        """Add a partition."""
        with self.changed:
            assert request.key not in self._assigned
            self._assigned[request.key] = request, delivery

    def keys(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        with self.changed:
            return list(self._assigned)

    def remove(self, keys: Collection[TopicPartition]) -> None:
        """Remove partitions: no further batch of them is delivered; a delivery in progress continues, and counts."""
        gone: list[tuple[TopicPartition, Delivery]] = []
        with self.changed:
            for key in keys:
                if (found := self._assigned.pop(key, None)) is not None and key not in self._delivering:
                    gone.append((key, found[1]))
                self._parked.pop(key, None)
                self._stopped.discard(key)
        for key, delivery in gone:
            delivery.discard(key, is_seek=False)

    def is_delivering(self, key: TopicPartition) -> bool:
        """Return True if a batch of this partition is being delivered, also after its removal."""
        with self.changed:
            return key in self._delivering

    def delivering(self) -> set[TopicPartition]:
        """Return the partitions with a delivery in progress."""
        with self.changed:
            return set(self._delivering)

    def wait_returned(self, keys: Collection[TopicPartition]) -> None:
        """Wait until no delivery of these partitions, which were removed, is in progress."""
        with self.changed:
            while waiting := self._delivering.intersection(keys):
                if not self.changed.wait(SLOW_S):
                    shown = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(waiting))
                    _log.warning("waiting for listeners to return group=%s partitions=%s", self._group, shown)

    def pause(self) -> int:
        """Start no delivery until resume() is called with the number returned here, or a later one."""
        with self.changed:
            self._is_paused = True
            self._pauses += 1
            return self._pauses

    def resume(self, pauses: int) -> None:
        """End the pause, unless another one began after the one numbered *pauses*."""
        with self.changed:
            if pauses >= self._pauses:
                self._is_paused = False
                self.changed.notify_all()

    @property
    def is_paused(self) -> bool:
        """True if nothing may be delivered now."""
        return self._is_paused or not self._may_deliver()

    def wait_changed(self, timeout_s: float | None) -> None:
        """Wait, under `changed`, for a change that may end a pause or bring messages."""
        if not self._is_paused and not self._may_deliver():
            timeout_s = LEASE_LOOK_S if timeout_s is None else min(timeout_s, LEASE_LOOK_S)
        self.changed.wait(timeout_s)

    def close(self) -> None:
        """Release all waiting threads. Idempotent."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()

    def wait_unpaused(self) -> bool:
        """Wait until the pause ends; False once closed."""
        with self.changed:
            while self.is_paused and not self._is_closed:
                self.wait_changed(None)
            return not self._is_closed

    def pause_partitions(self, keys: Collection[TopicPartition]) -> None:
        """Fetch and deliver nothing of these partitions, whenever they are assigned, until resume_partitions()."""
        with self.changed:
            self._paused.update(keys)

    def stop(self, request: FetchRequest) -> None:
        """Stop a partition that can't go on, until resume_partitions() or its next assignment."""
        with self.changed:
            if self._is_current(request):
                self._stopped.add(request.key)

    def resume_partitions(self, keys: Collection[TopicPartition]) -> None:
        """End the pause or stop of these partitions; call unpark() for their requests."""
        with self.changed:
            self._paused.difference_update(keys)
            self._stopped.difference_update(keys)

    def paused_partitions(self) -> list[TopicPartition]:
        """Return the partitions paused by pause_partitions() or stop()."""
        with self.changed:
            return sorted(self._paused | self._stopped)

    def fetch_permission(self, request: FetchRequest) -> FetchPermission:
        """Decide whether to fetch now. A PARKED request is kept here until unpark() returns it."""
        key = request.key
        with self.changed:
            if not self._is_current(request):
                return FetchPermission.REVOKED
            if self._may_fetch(key):
                return FetchPermission.GRANTED
            self._parked[key] = request
            return FetchPermission.PARKED

    def unpark(self) -> list[FetchRequest]:
        """Return the parked requests that may go on now; the caller owns them."""
        with self.changed:
            return [self._parked.pop(key) for key in list(self._parked) if self._may_fetch(key)]

    def begin(self, request: FetchRequest) -> Delivery | None:
        """Begin a delivery; None if the partition was removed, paused or sought during the fetch."""
        key = request.key
        with self.changed:
            request.backoff_s = 0.0
            if self.is_paused or request.seek is not None or not self._is_current(request):
                return None
            if key in self._paused or key in self._stopped:
                return None
            if key in self._delivering:  # the listener of an earlier assignment, or a redelivery, has not returned yet
                request.backoff_s = BUSY_S
                return None
            self._delivering.add(key)
            return self._assigned[key][1]

    def is_current_delivery(self, request: FetchRequest) -> bool:
        """Return True if the delivery in progress counts: no seek is pending, and the partition was not assigned again,
        with progress of other members."""
        with self.changed:
            return request.seek is None and (request.key not in self._assigned or self._is_current(request))

    def end(self, request: FetchRequest, delivery: Delivery) -> bool:
        """End the delivery; return True if the partition was removed meanwhile."""
        with self.changed:
            is_removed = not self._is_current(request)
        if is_removed:  # only now: acknowledgements made until here count
            delivery.discard(request.key, is_seek=False)
        with self.changed:
            self._delivering.discard(request.key)
            self.changed.notify_all()
            return not self._is_current(request)

    def begin_redelivery(self, key: TopicPartition) -> bool:
        """Begin to deliver a message from the dead-letter store: wait until no other delivery of its partition is in
        progress. False once closed. end_redelivery() must follow."""
        with self.changed:
            while key in self._delivering and not self._is_closed:
                self.changed.wait()
            if not self._is_closed:
                self._delivering.add(key)
            return not self._is_closed

    def end_redelivery(self, key: TopicPartition) -> None:
        """End a delivery begun by begin_redelivery()."""
        with self.changed:
            self._delivering.discard(key)
            self.changed.notify_all()

    def seek(self, key: TopicPartition, seek: Seek) -> Delivery | None:
        """Record a seek for the partition's next fetch; None if it is not assigned."""
        with self.changed:
            if (found := self._assigned.get(key)) is None:
                return None
            found[0].seek = seek
            self._stopped.discard(key)  # a seek also ends the stop
            return found[1]

    def finish_seek(self, request: FetchRequest, seek: Seek) -> Delivery | None:
        """Clear *seek*, which is being carried out; return the delivery to discard, None if the partition is not
        assigned."""
        with self.changed:
            if request.seek is seek:
                request.seek = None  # a newer seek stays
            return self._assigned[request.key][1] if self._is_current(request) else None

    def delivery(self, key: TopicPartition) -> Delivery | None:
        """Return the delivery of a partition; None if it is not assigned."""
        with self.changed:
            found = self._assigned.get(key)
            return None if found is None else found[1]

    def statuses(self) -> list[PartitionStatus]:
        """Return the status of each partition."""
        with self.changed:
            return [
                PartitionStatus(
                    key, request.offset, request.rounds, request.epoch, self._state_of(key), request.last_error
                )
                for key, (request, _) in self._assigned.items()
            ]

    def _state_of(self, key: TopicPartition) -> FetchState:
        if key in self._paused or key in self._stopped:
            return FetchState.PAUSED
        if key in self._delivering:
            return FetchState.DELIVERING
        return FetchState.BUFFER_FULL if key in self._parked else FetchState.FETCHING

    def is_caught_up(self) -> bool:
        """Return True if there are partitions and each had nothing new when last asked."""
        with self.changed:
            return bool(self._assigned) and all(
                request.is_at_end and request.seek is None for request, _ in self._assigned.values()
            )

    def _is_current(self, request: FetchRequest) -> bool:
        found = self._assigned.get(request.key)
        return found is not None and found[0] is request

    def _may_fetch(self, key: TopicPartition) -> bool:
        return key not in self._paused and key not in self._stopped and self._assigned[key][1].has_room()
