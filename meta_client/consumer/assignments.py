"""Partitions given to a consumer: which are fetched, which may go on now, and which are being delivered.

Shared by runners, the group's thread and users' threads: one lock, and one condition for every change.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from operator import add

from meta_client.consumer.fetched_partition import FetchedPartition, PartitionEvent, PartitionState
from meta_client.consumer.long_poll import LongPoll
from meta_client.consumer.position import Seek
from meta_client.consumer.traffic import ConsumedTotals, PartitionLag, lag_of
from meta_client.consumer.watchdog import FetchState, PartitionStatus
from meta_client.net.pending_reply import PendingReply
from zk.tree.nodes import TopicPartition

BUSY_S = 0.05  # back-off of a partition while another delivery of it is in progress
LEASE_LOOK_S = 0.05  # interval of checks for renewal of an expired lease
SLOW_S = 10.0  # a listener that blocks the group for longer is logged

S = PartitionState
E = PartitionEvent

_log = logging.getLogger(__name__)


class Assignments:
    """Partitions of one consumer. Starts paused. Any thread; *changed* guards everything."""

    def __init__(self, group: str, may_deliver: Callable[[], bool], changed: threading.Condition) -> None:
        """*may_deliver* is called before each delivery: False acts as a pause, whose end is not notified."""
        self._may_deliver = may_deliver
        self.changed = changed
        self._group = group
        self._held: dict[TopicPartition, FetchedPartition] = {}  # until they are gone
        self._delivering: set[TopicPartition] = set()  # also after a loss, and by redelivery
        self._paused: set[TopicPartition] = set()  # by the user, until the user resumes them
        self._totals: dict[str, ConsumedTotals] = {}  # by topic
        self._is_paused = True
        self._pauses = 0
        self._is_closed = False

    def add(self, request: FetchedPartition) -> None:
        with self.changed:
            assert request.key not in self._held
            request.caught_up_at = time.monotonic()
            self._held[request.key] = request

    def held(self) -> dict[TopicPartition, FetchedPartition]:
        """Return the partitions that are assigned, or not given back yet."""
        with self.changed:
            return dict(self._held)

    def assigned(self) -> set[TopicPartition]:
        with self.changed:
            return {key for key, request in self._held.items() if request.is_assigned}

    def get(self, key: TopicPartition) -> FetchedPartition | None:
        """Return an assigned partition; None if it is not assigned."""
        with self.changed:
            request = self._held.get(key)
            return request if request is not None and request.is_assigned else None

    def withdraw(self, keys: Collection[TopicPartition], event: PartitionEvent) -> list[LongPoll]:
        """Revoke or lose partitions: no further batch of them is delivered; a delivery in progress continues. Returns
        the long polls to abandon."""
        ended: list[FetchedPartition] = []
        polls: list[LongPoll] = []
        with self.changed:
            for key in keys:  # a user's store may name one twice
                if (request := self._held.get(key)) is None:
                    continue
                if request.is_assigned and request.state is not S.DELIVERING:
                    ended.append(request)
                if request.poll is not None:
                    polls.append(request.poll)
                    request.poll = None
                request.on(event)
                if event is E.LOSE:
                    del self._held[request.key]
        for request in ended:
            request.delivery.discard(request.key, is_seek=False)
        return polls

    def leaving(self) -> list[FetchedPartition]:
        """Return the revoked partitions that can be given back: no delivery of them is in progress."""
        with self.changed:
            return [it for it in self._held.values() if it.state is S.LEAVING and it.key not in self._delivering]

    def released(self, requests: Collection[FetchedPartition]) -> None:
        """Drop partitions that were given back."""
        with self.changed:
            for request in requests:
                request.on(E.RELEASE)
                if self._held.get(request.key) is request:
                    del self._held[request.key]

    def delivering(self) -> set[TopicPartition]:
        with self.changed:
            return set(self._delivering)

    def wait_returned(self, keys: Collection[TopicPartition]) -> None:
        """Wait until no delivery of these partitions, which were withdrawn, is in progress."""
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
        try:
            self.changed.wait(timeout_s)
        finally:
            if not self.changed._is_owned():  # type: ignore[attr-defined]  # a ^C when wait() had just released it
                self.changed.acquire()

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

    def stop(self, request: FetchedPartition) -> None:
        """Stop a partition that can't go on, until it is resumed or sought; a seek that is pending counts already."""
        with self.changed:
            request.is_stopped = request.seek is None

    def resume_partitions(self, keys: Collection[TopicPartition]) -> None:
        """End the pause or stop of these partitions; call unpark() for their requests."""
        with self.changed:
            self._paused.difference_update(keys)
            for key in keys:
                if key in self._held:
                    self._held[key].is_stopped = False

    def paused_partitions(self) -> list[TopicPartition]:
        """Return the partitions paused by pause_partitions() or stop()."""
        with self.changed:
            stopped = {key for key, request in self._held.items() if request.is_assigned and request.is_stopped}
            return sorted(self._paused | stopped)

    def begin_round(self, request: FetchedPartition) -> bool:
        """Take a queued request; False if it is parked, until unpark() returns it, or no longer assigned."""
        with self.changed:
            if request.on(E.TAKE) is not S.FETCHING:
                return False
            if self._may_fetch(request):
                return True
            request.on(E.PARK)
            return False

    def end_round(self, request: FetchedPartition) -> None:
        """Give a request back, to be queued."""
        with self.changed:
            request.on(E.REQUEUE)

    def unpark(self) -> list[FetchedPartition]:
        """Return the parked requests that may go on now, to be queued."""
        with self.changed:
            found = [it for it in self._held.values() if it.state is S.PARKED and self._may_fetch(it)]
            for request in found:
                request.on(E.UNPARK)
            return found

    def begin_poll(self, request: FetchedPartition, poll: LongPoll) -> bool:
        """Begin a long poll; False if the request is to be queued instead: it was sought, or is no longer assigned."""
        with self.changed:
            if request.seek is not None:
                request.on(E.REQUEUE)
            elif request.on(E.POLL) is S.WAITING:
                request.poll = poll
                return True
            return False

    def end_poll(self, request: FetchedPartition, poll: LongPoll, outcome: PendingReply | Exception | None) -> bool:
        """Record the outcome of a long poll; True if the request is to be queued, False if the poll was cancelled."""
        with self.changed:
            if request.poll is not poll or request.state is not S.WAITING:
                return False
            poll.complete(outcome)
            request.on(E.POLL_ENDED)
            if isinstance(outcome, PendingReply) and outcome.is_answered and not request.has_error:
                request.caught_up_at = time.monotonic()  # until now
            return True

    def take_poll(self, request: FetchedPartition) -> LongPoll | None:
        """Remove and return the long poll that has ended; None if there is none."""
        with self.changed:
            poll, request.poll = request.poll, None
            return poll

    def cancel_poll(self, request: FetchedPartition) -> tuple[LongPoll | None, bool]:
        """Remove and return the long poll, if there is one, and True if the request is to be queued."""
        with self.changed:
            is_queued = request.state is S.WAITING
            if is_queued:
                request.on(E.POLL_ENDED)
            return self.take_poll(request), is_queued

    def begin_delivery(self, request: FetchedPartition) -> bool:
        """Begin a delivery; False if the partition was withdrawn, paused or sought during the fetch."""
        with self.changed:
            request.backoff_s, request.is_at_end = 0.0, False
            if self.is_paused or request.seek is not None or request.key in self._paused or request.is_stopped:
                return False
            if request.key in self._delivering:  # by an earlier assignment, or a redelivery
                request.backoff_s = BUSY_S
                return False
            if request.on(E.DELIVER) is not S.DELIVERING:
                return False
            self._delivering.add(request.key)
            return True

    def goes_on(self, request: FetchedPartition) -> bool:
        """Return True if the delivery in progress may hand over its next message: the partition is still assigned, and
        no pause has begun. Without the lock: called for each message."""
        return request.state is S.DELIVERING and not self._is_paused and self._may_deliver()

    def is_current_delivery(self, request: FetchedPartition) -> bool:
        """Return True if the delivery in progress counts: no seek is pending, and the partition was not assigned again,
        with progress of other members."""
        with self.changed:
            return request.seek is None and self._held.get(request.key, request) is request

    def end_delivery(self, request: FetchedPartition) -> bool:
        """End the delivery; return True if the partition was withdrawn meanwhile."""
        with self.changed:
            is_withdrawn = request.on(E.RETURN) is not S.FETCHING
            if is_withdrawn:  # only now: acknowledgements made until here count
                request.delivery.discard(request.key, is_seek=False)
            self._delivering.discard(request.key)
            self.changed.notify_all()
            return is_withdrawn

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
        with self.changed:
            self._delivering.discard(key)
            self.changed.notify_all()

    def seek(self, key: TopicPartition, seek: Seek) -> FetchedPartition | None:
        """Record a seek for the partition's next fetch; None if it is not assigned."""
        with self.changed:
            if (request := self.get(key)) is not None:
                request.seek = seek
                request.is_stopped = False
            return request

    def finish_seek(self, request: FetchedPartition, seek: Seek) -> bool:
        """Clear *seek*, which is being carried out; False if the partition is no longer assigned."""
        with self.changed:
            if request.seek is seek:
                request.seek = None  # a newer seek stays
            return request.is_assigned

    def is_settled(self, request: FetchedPartition) -> bool:
        """Return True if the partition is assigned and everything delivered of it is consumed."""
        with self.changed:
            return request.is_assigned and request.delivery.unconsumed_from() is None

    def statuses(self) -> list[PartitionStatus]:
        with self.changed:
            return [
                PartitionStatus(it.key, it.offset, it.rounds, it.epoch, self._state_of(it), it.last_error)
                for it in self._held.values()
                if it.is_assigned
            ]

    def _state_of(self, request: FetchedPartition) -> FetchState:
        if request.key in self._paused:
            return FetchState.PAUSED
        if request.is_stopped:
            return FetchState.STOPPED
        if request.key in self._delivering:
            return FetchState.DELIVERING
        return FetchState.BUFFER_FULL if request.state is S.PARKED else FetchState.FETCHING

    def lags(self) -> dict[TopicPartition, PartitionLag]:
        now = time.monotonic()
        with self.changed:
            is_paused = self.is_paused
            return {it.key: lag_of(it, now, is_paused=is_paused) for it in self._held.values() if it.is_assigned}

    def count(self, topic: str, more: ConsumedTotals) -> None:
        with self.changed:
            self._totals[topic] = ConsumedTotals(*map(add, self._totals.get(topic, ConsumedTotals()), more))

    def totals(self) -> dict[str, ConsumedTotals]:
        """Return what was delivered, and skipped, since the start, by topic."""
        with self.changed:
            return self._totals.copy()

    def is_caught_up(self) -> bool:
        """Return True if there are partitions and each had nothing new when last asked."""
        with self.changed:
            assigned = [request for request in self._held.values() if request.is_assigned]
            return bool(assigned) and all(request.is_at_end and request.seek is None for request in assigned)

    def _may_fetch(self, request: FetchedPartition) -> bool:
        return request.key not in self._paused and not request.is_stopped and request.delivery.has_room()
