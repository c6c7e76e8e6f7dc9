"""The runner threads: take a due request, fetch, hand the batch over, queue the request again (spec 8.4, 8.5).

A partition's request is in the queue, with one runner or waiting at a broker, never twice, so its listener is never
called twice at a time. Threads: `close`, `assign`, `withdraw` and `set_brokers` belong to the group's thread; `pause`
may come from any.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from meta_client.connections import Connections
from meta_client.consumer.asking import Answer, Asker
from meta_client.consumer.batch import Batch, decode_batch
from meta_client.consumer.delay_queue import DelayQueue
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.offsets import OffsetEntry, OffsetTracker
from meta_client.consumer.plan import TopicPartition
from meta_client.protocol.errors import Forbidden, MetaError, Moved, NotFound, StaleOwner, Unavailable
from meta_client.protocol.requests import OFFSET_END
from zk.cluster import Brokers

SWEEP_S = 1.0  # how often to look for requests that a broker has forgotten
LEASE_LOOK_S = 0.05  # how often to look whether the session's lease is renewed, while it has run out unseen
BUSY_S = 0.05  # how long a partition rests whose listener is at work on a batch from before it was lost
SLOW_S = 10.0  # a listener that keeps the group waiting for longer is named in the log

_log = logging.getLogger(__name__)


class _Sweep:
    """In the queue among the requests: time to look after what waits at brokers."""


class Fetcher:
    """Fetches the partitions assigned to it. Starts paused."""

    def __init__(
        self,
        group: str,
        connections: Connections,
        tracker: OffsetTracker,
        runners: int,
        fetch_timeout_s: float,
        fetch_wait_s: float,
        may_deliver: Callable[[], bool] = lambda: True,
    ) -> None:
        """*may_deliver* is asked before each delivery, on the runner: False means as a pause does."""
        self._group = group
        self._may_deliver = may_deliver
        self._tracker = tracker
        self._queue: DelayQueue[FetchRequest | _Sweep] = DelayQueue()
        self._asker = Asker(group, connections, fetch_timeout_s, fetch_wait_s, self._go_on)
        self.returned: Callable[[], None] = lambda: None  # on a runner: a withdrawn partition's listener is done
        self.on_stale: Callable[[FetchRequest, int], None] = lambda request, epoch: None  # on a runner: somebody else
        # owns the partition, with *epoch*; the request is asked again until it is withdrawn
        self._changed = threading.Condition()  # guards the next five
        self._assigned: dict[TopicPartition, FetchRequest] = {}
        self._delivering: set[TopicPartition] = set()
        self._is_paused = True
        self._pauses = 0
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"metaq {group} runner {number}", daemon=True)
            for number in range(runners)
        ]

    def start(self) -> None:
        """Start the runners."""
        self._queue.put(_Sweep(), SWEEP_S)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop delivering and wait until nothing is being delivered. Idempotent."""
        self.pause()
        self.withdraw(self.assigned())
        with self._changed:
            delivering = set(self._delivering)
        self.wait_returned(delivering)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._queue.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def is_runner(self) -> bool:
        """Whether the calling thread is one of the runners, as it is inside a listener."""
        return threading.current_thread() in self._threads

    def set_brokers(self, brokers: Brokers) -> None:
        """Who is up from now on."""
        self._asker.follow(brokers)

    def assign(self, requests: Iterable[FetchRequest]) -> None:
        """Begin to fetch these partitions."""
        for request in requests:
            with self._changed:
                assert request.key not in self._assigned
                self._assigned[request.key] = request
            self._queue.put(request, 0)

    def assigned(self) -> list[TopicPartition]:
        """What is being fetched."""
        with self._changed:
            return list(self._assigned)

    def withdraw(self, keys: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions: no further batch of them is delivered. A listener may be at work still, see
        is_delivering(); `returned` is told when it is not."""
        with self._changed:
            for key in keys:
                self._assigned.pop(key, None)
        self._asker.withdraw(keys)

    def is_delivering(self, key: TopicPartition) -> bool:
        """Whether a listener is at work on a batch of this partition."""
        with self._changed:
            return key in self._delivering

    def wait_returned(self, keys: Collection[TopicPartition]) -> None:
        """Wait until no listener is at work on any of these partitions, which were withdrawn."""
        with self._changed:
            while waiting := self._delivering.intersection(keys):
                if not self._changed.wait(SLOW_S):
                    shown = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(waiting))
                    _log.warning("waiting for listeners to return group=%s partitions=%s", self._group, shown)

    def pause(self) -> int:
        """Deliver nothing new until resume() is given the number returned here, or a later one."""
        with self._changed:
            self._is_paused = True
            self._pauses += 1
            return self._pauses

    def resume(self, pauses: int) -> None:
        """End the pause, unless another one began after the one numbered *pauses*."""
        with self._changed:
            if pauses >= self._pauses:
                self._is_paused = False
                self._changed.notify_all()

    def is_caught_up(self) -> bool:
        """Whether every assigned partition, and there is one, had nothing new when last asked."""
        with self._changed:
            return bool(self._assigned) and all(request.is_at_end for request in self._assigned.values())

    def _run(self) -> None:
        """A runner thread."""
        while (item := self._queue.take()) is not None:
            if not self._wait_unpaused():
                return
            if isinstance(item, _Sweep):
                self._asker.flights.give_up(self._asker.timeout_s)
                self._queue.put(item, SWEEP_S)
                continue
            while self._is_current(item):
                if not self._has_next_round(item):
                    break
            else:
                self._asker.flights.take(item)  # withdrawn: what it brought back is nobody's

    def _has_next_round(self, request: FetchRequest) -> bool:
        """One round of one partition; False: the request is not this runner's any more."""
        try:
            if self._serve(request):
                return False
        except BaseException:
            self._go_on(request)  # another runner's turn: this one ends
            raise
        if request.is_at_end and not request.rest_s:
            return True  # to send it to the broker to wait there takes no time
        self._queue.put(request, request.rest_s)
        return False

    def _go_on(self, request: FetchRequest) -> None:
        self._queue.put(request, 0)

    def _wait_unpaused(self) -> bool:
        with self._changed:
            while (self._is_paused or not self._may_deliver()) and not self._is_closed:
                self._changed.wait(None if self._is_paused else LEASE_LOOK_S)
            return not self._is_closed

    def _is_current(self, request: FetchRequest) -> bool:
        with self._changed:
            return self._assigned.get(request.key) is request

    def _serve(self, request: FetchRequest) -> bool:
        """One round of one partition: the table of spec 8.5. True: the request waits at the broker now."""
        what = f"get {request.topic}/{request.partition} at {request.offset}"
        if request.is_moved_back:
            # A store that compares would take what comes from there for consumed: it has to hear of the reset first.
            if self._tracker.is_resetting(request.key):
                request.found_nothing(is_at_end=False)
                return False
            request.is_moved_back = False
        try:
            if (answer := self._asker.ask(request, what)) is None:
                return True
        except Moved as error:
            self._on_moved(request, error)
        except StaleOwner as error:
            request.found_nothing(is_at_end=False)
            self.on_stale(request, error.epoch)
        except (NotFound, Forbidden) as error:
            request.is_troubled = False
            request.found_nothing(is_at_end=isinstance(error, NotFound))
        except MetaError as error:
            log = _log.debug if request.is_troubled else _log.warning
            log("fetch failed, trying again group=%s request=%r error=%s", self._group, what, error)
            request.is_troubled = True
            # Too many wait there already: what was read to its end still is.
            request.found_nothing(is_at_end=request.is_at_end and isinstance(error, Unavailable))
        else:
            self._on_data(request, answer)
        return False

    def _on_moved(self, request: FetchRequest, moved: Moved) -> None:
        offset = moved.offset
        if moved.is_filtered:
            _log.debug(
                "filter skipped group=%s partition=%s/%s from=%d to=%d",
                *(self._group, request.topic, request.partition, request.offset, offset),
            )
        elif request.offset != OFFSET_END:
            lost = "0" if offset < request.offset else f"up to {offset - request.offset} bytes"
            _log.warning(
                "offset moved group=%s partition=%s/%s from=%d to=%d skipped=%s",
                *(self._group, request.topic, request.partition, request.offset, offset, lost),
            )
        is_back = offset < request.offset
        request.moved(offset)
        self._tracker.advance(OffsetEntry(request.topic, request.partition, offset, is_reset=is_back))

    def _on_data(self, request: FetchRequest, answer: Answer) -> None:
        body = answer.body
        if not body and answer.log_end is not None:
            request.reached_end(is_early=answer.is_early)
            return
        request.shrink(len(body))
        batch, broken = decode_batch(request.topic, request.partition, request.offset, body)
        if batch is not None:
            self._deliver(request, batch, answer.log_end)
        elif broken is not None:
            # Asking again heals bytes that broke on the way; bytes that broke on disk need an operator. Skipping
            # them would lose a message that was acknowledged.
            log = _log.debug if request.is_troubled else _log.error
            log("broken message, asking again group=%s error=%s/%s: %s", self._group, *request.key, broken)
            request.is_troubled = True
            request.found_nothing(is_at_end=False)
        else:
            request.cut_off(body)

    def _deliver(self, request: FetchRequest, batch: Batch, log_end: int | None) -> None:
        if not self._begin_delivery(request):
            return
        try:
            request.listener(batch)
        except Exception:
            request.failed()
            _log.exception(
                "listener failed, same batch again in %.1f s group=%s partition=%s/%s offset=%d messages=%d attempt=%d",
                *(request.rest_s, self._group, batch.topic, batch.partition, batch.offset),
                *(len(batch.messages), request.failure_count),
            )
        else:
            request.delivered(batch.next_offset, log_end)
            last_id = batch.messages[-1].message_id
            self._tracker.advance(OffsetEntry(batch.topic, batch.partition, batch.next_offset, last_id))
        finally:
            with self._changed:
                self._delivering.discard(request.key)
                is_withdrawn = self._assigned.get(request.key) is not request
                self._changed.notify_all()
            if is_withdrawn:
                self.returned()

    def _begin_delivery(self, request: FetchRequest) -> bool:
        """Whether the listener may be called: the partition may have gone, or a pause begun, during the fetch."""
        with self._changed:
            if self._is_paused or not self._may_deliver() or self._assigned.get(request.key) is not request:
                request.rest_s = 0.0
                return False
            if request.key in self._delivering:  # the listener of its former life has not returned yet
                request.rest_s = BUSY_S
                return False
            self._delivering.add(request.key)
            return True
