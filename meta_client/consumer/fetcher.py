"""Runner threads: take a due request, fetch, deliver the batch, queue the request again (spec 8.4, 8.5).

A partition's request is in one place, see PartitionState: its delivery is never called concurrently. `close`, `assign`,
`withdraw` and `set_brokers` belong to the group's thread; any thread may call the rest.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable

from meta_client.consumer.assignments import Assignments
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.delay_queue import DelayQueue
from meta_client.consumer.delivery import DeliveryFailure
from meta_client.consumer.fetch_client import FetchClient, FetchReply
from meta_client.consumer.fetched_partition import FetchedPartition, PartitionEvent
from meta_client.consumer.messages.batch import Batch, decode_batch
from meta_client.consumer.offsets import OffsetEntry, OffsetTracker
from meta_client.consumer.position import Seek, offset_of
from meta_client.consumer.traffic import ConsumedTotals
from meta_client.consumer.watchdog import FetchState, PartitionStatus
from meta_client.consumer.workers import Workers
from meta_client.errors import text_of
from meta_client.net.transport import Transports
from meta_client.protocol.errors import BeyondEnd, Forbidden, MetaError, Moved, NotFound, StaleOwner, Unavailable
from meta_client.protocol.requests import OFFSET_END
from zk.brokers.cluster import BrokerEntries
from zk.tree.nodes import TopicPartition

RESET_LOOK_S = 0.05  # interval of checks whether a reset is stored
SWEEP_S = 1.0  # interval of checks for lost long polls

_log = logging.getLogger(__name__)


class _Sweep:
    """Queue item: expire overdue long polls."""


class Fetcher:
    """Fetches and delivers the partitions assigned to it. Starts paused."""

    def __init__(
        self,
        group: str,
        connections: Transports,
        tracker: OffsetTracker,
        config: ConsumerConfig,
        may_deliver: Callable[[], bool],
        workers: Workers,
    ) -> None:
        """*may_deliver* is called before each delivery, on the runner: False pauses."""
        self._workers = workers
        self._config = config
        self.assignments = Assignments(group, may_deliver, self._workers.condition())
        self._group = group
        self._tracker = tracker
        self._queue: DelayQueue[FetchedPartition | _Sweep] = DelayQueue(self._workers.condition())
        self._fetch_client = FetchClient(group, connections, self.assignments, config, self._go_on)
        # On a runner: the listener of a withdrawn partition has returned.
        self.on_returned: Callable[[], None] = lambda: None
        # On a runner: another member owns the partition, with *epoch*; the request is repeated until withdrawn.
        self.on_stale: Callable[[FetchedPartition, int], None] = lambda request, epoch: None
        self.on_reset: Callable[[], None] = lambda: None  # on a runner: a reset has to be stored, see is_moved_back

    def start(self) -> None:
        self._queue.put(_Sweep(), SWEEP_S)
        self._workers.start(self._run, self._config.runners, f"metaq {self._group} runner")

    def close(self) -> None:
        """Stop delivery and wait until none is in progress. Idempotent."""
        self.assignments.pause()
        self.withdraw(self.assignments.assigned(), PartitionEvent.REVOKE)
        self.assignments.wait_returned(self.assignments.delivering())
        self.assignments.close()
        self._queue.close()
        self._workers.join()

    def is_runner(self) -> bool:
        """Return True if the caller is a runner, as inside a listener."""
        return self._workers.is_current()

    def set_brokers(self, brokers: BrokerEntries) -> None:
        self._fetch_client.set_brokers(brokers)

    def assign(self, partitions: Iterable[FetchedPartition]) -> None:
        """Start to fetch and deliver these partitions."""
        for request in partitions:
            self.assignments.add(request)
            self._go_on(request)

    def withdraw(self, keys: Collection[TopicPartition], event: PartitionEvent) -> None:
        """Stop fetching these partitions, which are revoked or lost: no further batch is delivered. A listener may
        still be running; `on_returned` is called when it returns."""
        for poll in self.assignments.withdraw(keys, event):
            poll.abandon()

    def resume_partitions(self, keys: Collection[TopicPartition]) -> None:
        self.assignments.resume_partitions(keys)
        self.unpark()

    def unpark(self) -> None:
        """Queue the parked requests that may go on now."""
        for request in self.assignments.unpark():
            self._go_on(request)

    def seek(self, key: TopicPartition, seek: Seek) -> bool:
        """Continue a partition elsewhere, without what was fetched and not delivered; False: it is not assigned."""
        if (request := self.assignments.seek(key, seek)) is None:
            return False
        request.delivery.discard(key, is_seek=seek.is_progress)
        self._set_progress(request, seek, offset_of(seek.to))  # no runner may come to it before a rebalance
        self._fetch_client.cancel(request)
        self.unpark()
        return True

    def statuses(self) -> list[PartitionStatus]:
        statuses = self.assignments.statuses()
        if len(self.assignments.delivering()) < self._config.runners:
            return statuses
        return [s._replace(state=FetchState.STARVED) if s.state is FetchState.FETCHING else s for s in statuses]

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if not self.assignments.wait_unpaused():
                    return
                self._attend(item)
            except Exception as error:
                # Any error: a consumer whose runners ended would keep its partitions and read none of them.
                _log.exception("round failed, trying again group=%s", self._group)
                if isinstance(item, FetchedPartition):
                    item.last_error = text_of(error)
                    item.found_nothing(is_at_end=False)
                self._give_back(item, SWEEP_S if isinstance(item, _Sweep) else item.backoff_s)
            except BaseException:
                self._give_back(item, 0)  # for another runner: this one ends
                raise

    def _give_back(self, item: "FetchedPartition | _Sweep", after_s: float) -> None:
        if isinstance(item, FetchedPartition):
            self.assignments.end_round(item)
        self._queue.put(item, after_s)

    def _attend(self, item: "FetchedPartition | _Sweep") -> None:
        if isinstance(item, _Sweep):
            self._fetch_client.expire_overdue()
            self._queue.put(item, SWEEP_S)
            return
        while self.assignments.begin_round(item):
            if self._serve(item):
                return
            if not item.is_at_end or item.backoff_s:
                self._give_back(item, item.backoff_s)
                return
            self.assignments.end_round(item)  # starting the long poll does not block

    def _go_on(self, request: FetchedPartition) -> None:
        self._queue.put(request, 0)

    def _serve(self, request: FetchedPartition) -> bool:
        """Do one round of a partition: the table of spec 8.5. True if a long poll has begun: the request is no longer
        this runner's."""
        what = f"get {request.topic}/{request.partition} at {request.offset}"
        try:
            if request.seek is not None:
                self._seek(request, request.seek)
                what = f"get {request.topic}/{request.partition} at {request.offset}"
            if request.is_moved_back and not self._is_reset_stored(request):
                return False
            if (answer := self._fetch_client.fetch(request, what)) is None:
                return True
        except Moved as error:
            self._on_moved(request, error)
        except BeyondEnd as error:
            self._on_beyond(request, error.end)
        except StaleOwner as error:
            request.found_nothing(is_at_end=False)
            self.on_stale(request, error.epoch)
        except (NotFound, Forbidden) as error:
            request.nothing_there(str(error), is_at_end=isinstance(error, NotFound))
        except MetaError as error:
            log = _log.debug if request.has_error else _log.warning
            log("fetch failed, trying again group=%s request=%r error=%s", self._group, what, error)
            request.has_error, request.last_error = True, str(error)
            # Unavailable: the broker has too many long polls; the partition is still at its end.
            request.found_nothing(is_at_end=request.is_at_end and isinstance(error, Unavailable))
        else:
            self._on_data(request, answer)
        return False

    def _on_moved(self, request: FetchedPartition, moved: Moved) -> None:
        offset = moved.offset
        if moved.is_filtered:
            _log.debug(
                "filter skipped group=%s partition=%s/%s from=%d to=%d",
                *(self._group, request.topic, request.partition, request.offset, offset),
            )
        elif request.offset != OFFSET_END:
            skipped = 0 if request.is_at_start else max(offset - request.offset, 0)
            self.assignments.count(request.topic, ConsumedTotals(skipped_bytes=skipped))
            _log.log(
                logging.INFO if request.is_at_start else logging.WARNING,
                "offset moved group=%s partition=%s/%s from=%d to=%d skipped=%s",
                *(self._group, request.topic, request.partition, request.offset, offset),
                f"up to {skipped} bytes" if skipped else "0",
            )
        self._go_to(request, offset)

    def _on_beyond(self, request: FetchedPartition, end: int) -> None:
        """Handle an offset beyond the end: a promotion lost messages that were consumed from another replica."""
        request.log_end, is_stop = end, self._config.ahead == "stop"
        _log.error(
            "offset beyond the end, %s group=%s partition=%s/%s offset=%d end=%d lost=%d",
            "the partition stops until somebody seeks" if is_stop else "going on at the end",
            *(self._group, request.topic, request.partition, request.offset, end, request.offset - end),
        )
        if is_stop:
            request.found_nothing(is_at_end=False)
            request.last_error = f"the offset is beyond the end, {end}"
            self.assignments.stop(request)
        else:
            self._go_to(request, end)

    def _go_to(self, request: FetchedPartition, offset: int) -> None:
        """Continue where the broker says, and move the group's offset with it: never above a message that the broker
        has, and that is not consumed.

        When it moves back, new messages have, or will have, the offsets of some that were fetched. Fetched ahead, these
        are consumed first, and count up to *offset*. With manual acknowledgement, which may wait for what follows,
        fetching begins again at the first one not acknowledged.
        """
        is_back, delivery = offset < request.offset, request.delivery
        with self.assignments.changed:  # nothing is handed out or withdrawn meanwhile
            unconsumed = delivery.unconsumed_from()
            if is_back and delivery.window is not None:
                delivery.discard(request.key, is_seek=False)
                offset, unconsumed = offset if unconsumed is None else min(offset, unconsumed), None
            request.moved(offset)
            if not request.is_assigned or request.seek is not None:
                return
            if unconsumed is None or (is_back and offset <= unconsumed):
                self._tracker.advance(OffsetEntry(request.topic, request.partition, offset, is_reset=is_back))
            if is_back and unconsumed is not None:
                self._tracker.limit(request.key, offset)
        if is_back:
            self.on_reset()

    def _is_reset_stored(self, request: FetchedPartition) -> bool:
        """Return True if a partition that moved back may be fetched; set a back-off otherwise."""
        if self._tracker.is_limited(request.key):
            with self.assignments.changed:
                if is_settled := self.assignments.is_settled(request):
                    self._tracker.advance(OffsetEntry(*request.key, request.offset, is_reset=True))
            if not is_settled:
                request.found_nothing(is_at_end=False)
                request.last_error = "nobody takes what was fetched before the broker lost messages: call fetch()"
                return False
            self.on_reset()
        # A store that compares offsets would take the messages for consumed: store the reset first.
        if self._tracker.is_resetting(request.key):
            request.found_nothing(is_at_end=False)
            request.backoff_s = min(request.backoff_s, RESET_LOOK_S)
            return False
        request.is_moved_back = False
        request.backoff_s = 0.0
        return True

    def _on_data(self, request: FetchedPartition, answer: FetchReply) -> None:
        body, request.log_end = answer.body, answer.log_end
        if not body and answer.log_end is not None:
            request.reached_end(is_early=answer.is_early)
            return
        request.shrink(len(body))
        batch, broken = decode_batch(request.topic, request.partition, request.offset, body)
        if batch is not None:
            self._fetch_client.count(request, batch)
            self._deliver(request, batch, answer.log_end)
        elif broken is not None:
            # A repetition repairs bytes damaged on the way; damage on disk needs an operator. Skipping them would lose
            # an acknowledged message.
            log = _log.debug if request.has_error else _log.error
            log("broken message, asking again group=%s error=%s/%s: %s", self._group, *request.key, broken)
            request.has_error, request.last_error = True, str(broken)
            request.found_nothing(is_at_end=False)
        else:
            request.cut_off(body)

    def _deliver(self, request: FetchedPartition, batch: Batch, log_end: int | None) -> None:
        if not self.assignments.begin_delivery(request):
            return
        is_current_delivery = False
        try:
            outcome = request.delivery.deliver(batch, lambda: self.assignments.goes_on(request))
            is_current_delivery = self.assignments.is_current_delivery(request)
            if is_current_delivery and outcome.consumed is not None:
                self._tracker.advance(outcome.consumed)
        finally:
            if self.assignments.end_delivery(request):
                self.on_returned()
        if not is_current_delivery:
            return
        is_whole = outcome.next_offset == batch.next_offset
        taken = len(batch) if is_whole else sum(m.next_offset <= outcome.next_offset for m in batch.messages)
        self.assignments.count(batch.topic, ConsumedTotals(taken, outcome.next_offset - batch.offset))
        if outcome.failure is None:
            request.delivered(outcome.next_offset, log_end)
            if request.is_at_end:
                request.caught_up_at = time.monotonic()
        else:
            self._on_failure(request, outcome.next_offset, outcome.failure)

    def _on_failure(self, request: FetchedPartition, offset: int, failure: DeliveryFailure) -> None:
        request.failed(offset, failure.backoff_s_min)
        raised = text_of(failure.error)
        request.last_error = f"its listener raises {raised} at offset {offset}, attempt {failure.attempt}"
        if failure.stops:
            self.assignments.stop(request)
            _log.error(
                "message rejected, partition stopped group=%s partition=%s/%s offset=%d attempt=%d",
                *(self._group, request.topic, request.partition, offset, failure.attempt),
                exc_info=failure.error,
            )
            return
        _log.error(
            "listener failed, same messages again in %.1f s group=%s partition=%s/%s offset=%d attempt=%d",
            *(request.backoff_s, self._group, request.topic, request.partition, offset, failure.attempt),
            exc_info=failure.error,
        )

    def _seek(self, request: FetchedPartition, seek: Seek) -> None:
        """Carry out *seek*. Raises MetaError; it is tried again then."""
        self.assignments.take_poll(request)  # drop messages of the old offset
        offset = self._fetch_client.offset_of(request, seek.to)
        is_assigned = self.assignments.finish_seek(request, seek)
        request.sought(offset, seek.to)
        if is_assigned:
            request.delivery.discard(request.key, is_seek=seek.is_progress)
            if request.delivery.window is not None:
                request.delivery.window.resume()
            if self._set_progress(request, seek, offset):
                request.is_moved_back = True
                self.on_reset()

    def _set_progress(self, request: FetchedPartition, seek: Seek, offset: int | None) -> bool:
        """Set the group's progress if *seek* is to; False: it is not, or its offset is unknown."""
        if not seek.is_progress or offset is None or offset == OFFSET_END:
            return False
        self._tracker.advance(OffsetEntry(*request.key, offset, is_reset=True))
        return True
