"""Which partitions are fetched, which of those may go on now, and which are being delivered.

What runners, the group's thread and users' threads agree by: one lock, and one condition that tells of every change.
"""

import logging
import threading
from collections.abc import Callable, Collection
from enum import Enum

from meta_client.consumer.delivery import Delivery
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import Jump
from meta_client.consumer.watchdog import Standing, Where

BUSY_S = 0.05  # how long a partition rests of which something else is being delivered
LEASE_LOOK_S = 0.05  # how often to look whether the session's lease is renewed, while it has run out unseen
SLOW_S = 10.0  # a listener that keeps the group waiting for longer is named in the log

_log = logging.getLogger(__name__)


class MayGoOn(Enum):
    """What a runner does with a request that it has."""

    YES = "fetch"
    PARKED = "leave it: it is kept, and comes back"
    GONE = "drop it: the partition was withdrawn"


class Assignments:
    """The partitions of one consumer. Starts paused. Any thread; *changed* guards all of it."""

    def __init__(self, group: str, may_deliver: Callable[[], bool], changed: threading.Condition) -> None:
        """*may_deliver* is asked before each delivery: False means as a pause does, and nobody tells when it ends."""
        self._may_deliver = may_deliver
        self.changed = changed
        self._group = group
        self._assigned: dict[TopicPartition, tuple[FetchRequest, Delivery]] = {}
        self._delivering: set[TopicPartition] = set()
        self._parked: dict[TopicPartition, FetchRequest] = {}
        self._held: set[TopicPartition] = set()  # by the user, until the user lets them go on
        self._stopped: set[TopicPartition] = set()  # at a message that was refused; not longer than they are ours
        self._is_paused = True
        self._pauses = 0
        self._is_closed = False

    def add(self, request: FetchRequest, delivery: Delivery) -> None:
        """Begin with a partition."""
        with self.changed:
            assert request.key not in self._assigned
            self._assigned[request.key] = request, delivery

    def keys(self) -> list[TopicPartition]:
        """What is being fetched."""
        with self.changed:
            return list(self._assigned)

    def remove(self, keys: Collection[TopicPartition]) -> None:
        """No further batch of these partitions is delivered; what is being delivered goes on, and counts."""
        gone: list[tuple[TopicPartition, Delivery]] = []
        with self.changed:
            for key in keys:
                if (found := self._assigned.pop(key, None)) is not None and key not in self._delivering:
                    gone.append((key, found[1]))
                self._parked.pop(key, None)
                self._stopped.discard(key)
        for key, delivery in gone:
            delivery.forget(key, is_seek=False)

    def is_delivering(self, key: TopicPartition) -> bool:
        """Whether something of this partition is being delivered, ours or no longer."""
        with self.changed:
            return key in self._delivering

    def delivering(self) -> set[TopicPartition]:
        """All of which something is being delivered."""
        with self.changed:
            return set(self._delivering)

    def wait_returned(self, keys: Collection[TopicPartition]) -> None:
        """Wait until nothing of these partitions, which were removed, is being delivered."""
        with self.changed:
            while waiting := self._delivering.intersection(keys):
                if not self.changed.wait(SLOW_S):
                    shown = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(waiting))
                    _log.warning("waiting for listeners to return group=%s partitions=%s", self._group, shown)

    def pause(self) -> int:
        """Deliver nothing new until resume() is given the number returned here, or a later one."""
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
        """Whether nothing may be delivered just now."""
        return self._is_paused or not self._may_deliver()

    def wait_changed(self, timeout_s: float | None) -> None:
        """Wait, under `changed`, for something that may end a pause, or bring messages."""
        if not self._is_paused and not self._may_deliver():
            timeout_s = LEASE_LOOK_S if timeout_s is None else min(timeout_s, LEASE_LOOK_S)
        self.changed.wait(timeout_s)

    def close(self) -> None:
        """Nobody waits any more. Idempotent."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()

    def wait_unpaused(self) -> bool:
        """Wait out a pause; False: it is closed."""
        with self.changed:
            while self.is_paused and not self._is_closed:
                self.wait_changed(None)
            return not self._is_closed

    def hold(self, keys: Collection[TopicPartition]) -> None:
        """Fetch and deliver nothing of these partitions, whenever they are ours, until release()."""
        with self.changed:
            self._held.update(keys)

    def stop(self, request: FetchRequest) -> None:
        """A partition can't go on: nothing of it until release(), or until it is ours anew."""
        with self.changed:
            if self._is_current(request):
                self._stopped.add(request.key)

    def release(self, keys: Collection[TopicPartition]) -> None:
        """Let them go on. unpark() has the requests that waited."""
        with self.changed:
            self._held.difference_update(keys)
            self._stopped.difference_update(keys)

    def held(self) -> list[TopicPartition]:
        """What hold() and stop() keep."""
        with self.changed:
            return sorted(self._held | self._stopped)

    def may_go_on(self, request: FetchRequest) -> MayGoOn:
        """Whether to fetch now. PARKED: unpark() gives the request back when it may."""
        key = request.key
        with self.changed:
            if not self._is_current(request):
                return MayGoOn.GONE
            if self._may_fetch(key):
                return MayGoOn.YES
            self._parked[key] = request
            return MayGoOn.PARKED

    def unpark(self) -> list[FetchRequest]:
        """The requests that were parked and may go on now; they are the caller's."""
        with self.changed:
            return [self._parked.pop(key) for key in list(self._parked) if self._may_fetch(key)]

    def begin(self, request: FetchRequest) -> Delivery | None:
        """Whom to deliver to, if it may be: the partition may have gone, or a pause begun, during the fetch."""
        key = request.key
        with self.changed:
            request.rest_s = 0.0
            if self.is_paused or request.jump is not None or not self._is_current(request):
                return None
            if key in self._held or key in self._stopped:
                return None
            if key in self._delivering:  # the listener of its former life, or of a local store, has not returned yet
                request.rest_s = BUSY_S
                return None
            self._delivering.add(key)
            return self._assigned[key][1]

    def counts(self, request: FetchRequest) -> bool:
        """Whether what is being delivered counts: nobody has ordered the partition elsewhere, and it is not ours
        anew, with progress of others that we have not seen."""
        with self.changed:
            return request.jump is None and (request.key not in self._assigned or self._is_current(request))

    def end(self, request: FetchRequest, delivery: Delivery) -> bool:
        """The delivery is over; whether the partition was removed meanwhile."""
        with self.changed:
            is_removed = not self._is_current(request)
        if is_removed:  # only now: what a listener acknowledges at the last moment still counts
            delivery.forget(request.key, is_seek=False)
        with self.changed:
            self._delivering.discard(request.key)
            self.changed.notify_all()
            return not self._is_current(request)

    def begin_extra(self, key: TopicPartition) -> bool:
        """Deliver something of a partition, ours or not, that was not fetched just now: wait until nothing else of
        it is being delivered. False: it is closed. end_extra() must follow."""
        with self.changed:
            while key in self._delivering and not self._is_closed:
                self.changed.wait()
            if not self._is_closed:
                self._delivering.add(key)
            return not self._is_closed

    def end_extra(self, key: TopicPartition) -> None:
        """What begin_extra() began is over."""
        with self.changed:
            self._delivering.discard(key)
            self.changed.notify_all()

    def order(self, key: TopicPartition, jump: Jump) -> Delivery | None:
        """Have a partition go on elsewhere, from the next fetch on; None: it is not ours."""
        with self.changed:
            if (found := self._assigned.get(key)) is None:
                return None
            found[0].jump = jump
            self._stopped.discard(key)  # who says where to go on has seen where it stopped
            return found[1]

    def jumped(self, request: FetchRequest, jump: Jump) -> Delivery | None:
        """*jump* is being carried out; whose messages don't count any more, None: the partition is not ours."""
        with self.changed:
            if request.jump is jump:
                request.jump = None  # a newer order stays
            return self._assigned[request.key][1] if self._is_current(request) else None

    def delivery(self, key: TopicPartition) -> Delivery | None:
        """Who gets the messages of a partition; None: it is not ours."""
        with self.changed:
            found = self._assigned.get(key)
            return None if found is None else found[1]

    def standings(self) -> list[Standing]:
        """How each partition stands."""
        with self.changed:
            return [
                Standing(key, request.offset, request.rounds, request.epoch, self._where(key), request.trouble)
                for key, (request, _) in self._assigned.items()
            ]

    def _where(self, key: TopicPartition) -> Where:
        if key in self._held or key in self._stopped:
            return Where.HELD
        if key in self._delivering:
            return Where.DELIVERING
        return Where.UNTAKEN if key in self._parked else Where.FETCHING

    def is_caught_up(self) -> bool:
        """Whether every partition, and there is one, had nothing new when last asked."""
        with self.changed:
            return bool(self._assigned) and all(
                request.is_at_end and request.jump is None for request, _ in self._assigned.values()
            )

    def _is_current(self, request: FetchRequest) -> bool:
        found = self._assigned.get(request.key)
        return found is not None and found[0] is request

    def _may_fetch(self, key: TopicPartition) -> bool:
        return key not in self._held and key not in self._stopped and self._assigned[key][1].has_room()
