"""The runner threads: take a due request, fetch, hand the batch over, queue the request again (spec 8.4, 8.5).

A partition's request is in the queue, parked, with one runner or waiting at a broker, never twice, so its delivery is
never called twice at a time. Threads: `close`, `assign`, `withdraw` and `set_brokers` belong to the group's thread; the
rest may be called by any.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from meta_client.consumer.asking import Answer, Asker
from meta_client.consumer.assignments import Assignments, MayGoOn
from meta_client.consumer.batch import Batch, decode_batch
from meta_client.consumer.delay_queue import DelayQueue
from meta_client.consumer.delivery import Delivery, Failure
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.offsets import OffsetEntry, OffsetTracker
from meta_client.consumer.plan import TopicPartition
from meta_client.consumer.position import Jump
from meta_client.consumer.watchdog import Standing, Where
from meta_client.consumer.workers import Threads, Workers
from meta_client.protocol.errors import BeyondEnd, Forbidden, MetaError, Moved, NotFound, StaleOwner, Unavailable
from meta_client.protocol.requests import OFFSET_END
from meta_client.transport import Transports
from zk.cluster import Brokers

RESET_LOOK_S = 0.05  # how often to look whether a reset has been stored
SWEEP_S = 1.0  # how often to look for requests that a broker has forgotten

_log = logging.getLogger(__name__)


class _Sweep:
    """In the queue among the requests: time to look after what waits at brokers."""


class Fetcher:
    """Fetches the partitions assigned to it. Starts paused."""

    def __init__(
        self,
        group: str,
        connections: Transports,
        tracker: OffsetTracker,
        runners: int,
        fetch_timeout_s: float,
        fetch_wait_s: float,
        may_deliver: Callable[[], bool] = lambda: True,
        ahead: Literal["stop", "end"] = "stop",
        workers: Workers | None = None,
    ) -> None:
        """*may_deliver* is asked before each delivery, on the runner: False means as a pause does. *ahead*: see
        ConsumerConfig. *workers*, or threads, are the runners."""
        self._workers = workers or Threads()
        self._runners = runners
        self.assignments = Assignments(group, may_deliver, self._workers.condition())
        self._group = group
        self._ahead = ahead
        self._tracker = tracker
        self._queue: DelayQueue[FetchRequest | _Sweep] = DelayQueue(self._workers.condition())
        self._asker = Asker(group, connections, fetch_timeout_s, fetch_wait_s, self._go_on)
        self.returned: Callable[[], None] = lambda: None  # on a runner: a withdrawn partition's listener is done
        self.on_stale: Callable[[FetchRequest, int], None] = lambda request, epoch: None  # on a runner: somebody else
        # owns the partition, with *epoch*; the request is asked again until it is withdrawn
        self.on_reset: Callable[[], None] = lambda: None  # on a runner: a reset waits to be stored, see is_moved_back

    def start(self) -> None:
        """Start the runners."""
        self._queue.put(_Sweep(), SWEEP_S)
        self._workers.start(self._run, self._runners, f"metaq {self._group} runner")

    def close(self) -> None:
        """Stop delivering and wait until nothing is being delivered. Idempotent."""
        self.pause()
        self.withdraw(self.assigned())
        self.assignments.wait_returned(self.assignments.delivering())
        self.assignments.close()
        self._queue.close()
        self._workers.join()

    def is_runner(self) -> bool:
        """Whether the caller is one of the runners, as it is inside a listener."""
        return self._workers.is_current()

    def set_brokers(self, brokers: Brokers) -> None:
        """Who is up from now on."""
        self._asker.follow(brokers)

    def assign(self, partitions: Iterable[tuple[FetchRequest, Delivery]]) -> None:
        """Begin to fetch these partitions, and hand them over."""
        for request, delivery in partitions:
            self.assignments.add(request, delivery)
            self._go_on(request)

    def assigned(self) -> list[TopicPartition]:
        """What is being fetched."""
        return self.assignments.keys()

    def withdraw(self, keys: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions: no further batch of them is delivered. A listener may be at work still, see
        is_delivering(); `returned` is told when it is not."""
        self.assignments.remove(keys)
        self._asker.withdraw(keys)

    def is_delivering(self, key: TopicPartition) -> bool:
        """Whether a listener is at work on a batch of this partition."""
        return self.assignments.is_delivering(key)

    def pause(self) -> int:
        """Deliver nothing new until resume() is given the number returned here, or a later one."""
        return self.assignments.pause()

    def resume(self, pauses: int) -> None:
        """End the pause, unless another one began after the one numbered *pauses*."""
        self.assignments.resume(pauses)

    def hold(self, keys: Collection[TopicPartition]) -> None:
        """Fetch and deliver nothing of these partitions until release(); a delivery that has begun goes on."""
        self.assignments.hold(keys)

    def release(self, keys: Collection[TopicPartition]) -> None:
        """Let held partitions go on."""
        self.assignments.release(keys)
        self.unpark()

    def unpark(self) -> None:
        """Something that a partition waited for may have come about: those that may go on do."""
        for request in self.assignments.unpark():
            self._go_on(request)

    def order(self, key: TopicPartition, jump: Jump) -> bool:
        """Have a partition go on elsewhere; False: it is not ours. What was fetched and not delivered is dropped."""
        if (delivery := self.assignments.order(key, jump)) is None:
            return False
        delivery.forget(key, is_seek=jump.is_progress)
        self._recall(key)
        self.unpark()
        return True

    def standings(self) -> list[Standing]:
        """How each partition that is being fetched stands."""
        standings = self.assignments.standings()
        if len(self.assignments.delivering()) < self._runners:
            return standings
        return [s._replace(where=Where.STARVED) if s.where is Where.FETCHING else s for s in standings]

    def is_caught_up(self) -> bool:
        """Whether every assigned partition, and there is one, had nothing new when last asked."""
        return self.assignments.is_caught_up()

    def _run(self) -> None:
        """A runner."""
        while (item := self._queue.take()) is not None:
            try:
                if not self.assignments.wait_unpaused():
                    return
                self._attend(item)
            except BaseException:
                self._queue.put(item, 0)  # another runner's turn: this one ends
                raise

    def _attend(self, item: "FetchRequest | _Sweep") -> None:
        if isinstance(item, _Sweep):
            self._asker.flights.give_up(self._asker.timeout_s)
            self._queue.put(item, SWEEP_S)
            return
        while (verdict := self.assignments.may_go_on(item)) is MayGoOn.YES:
            if not self._has_next_round(item):
                break
        if verdict is MayGoOn.GONE:
            self._asker.flights.take(item)  # what it brought back is nobody's

    def _has_next_round(self, request: FetchRequest) -> bool:
        """One round of one partition; False: the request is not this runner's any more."""
        if self._serve(request):
            if request.jump is not None:
                self._recall(request.key)  # it was ordered elsewhere while it was being sent
            return False
        if request.is_at_end and not request.rest_s:
            return True  # to send it to the broker to wait there takes no time
        self._queue.put(request, request.rest_s)
        return False

    def _go_on(self, request: FetchRequest) -> None:
        self._queue.put(request, 0)

    def _recall(self, key: TopicPartition) -> None:
        """Don't wait for an answer that nobody wants."""
        for request in self._asker.flights.cancel([key]):
            self._go_on(request)

    def _serve(self, request: FetchRequest) -> bool:
        """One round of one partition: the table of spec 8.5. True: the request waits at the broker now."""
        what = f"get {request.topic}/{request.partition} at {request.offset}"
        try:
            if request.jump is not None:
                self._jump(request, request.jump)
                what = f"get {request.topic}/{request.partition} at {request.offset}"
            if request.is_moved_back:
                # A store that compares would take what comes from there for consumed: it has to hear of it first.
                if self._tracker.is_resetting(request.key):
                    request.found_nothing(is_at_end=False)
                    request.rest_s = min(request.rest_s, RESET_LOOK_S)
                    return False
                request.is_moved_back = False
                request.rest_s = 0.0
            if (answer := self._asker.ask(request, what)) is None:
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
            log = _log.debug if request.is_troubled else _log.warning
            log("fetch failed, trying again group=%s request=%r error=%s", self._group, what, error)
            request.is_troubled, request.trouble = True, str(error)
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
        self._go_to(request, offset)

    def _on_beyond(self, request: FetchRequest, end: int) -> None:
        """The broker never had what was consumed from another copy of it: a promotion has lost that."""
        is_stop = self._ahead == "stop"
        _log.error(
            "offset beyond the end, %s group=%s partition=%s/%s offset=%d end=%d lost=%d",
            "the partition stops until somebody seeks" if is_stop else "going on at the end",
            *(self._group, request.topic, request.partition, request.offset, end, request.offset - end),
        )
        if is_stop:
            request.found_nothing(is_at_end=False)
            self.assignments.stop(request)
        else:
            self._go_to(request, end)

    def _go_to(self, request: FetchRequest, offset: int) -> None:
        """Go on where the broker says, and let the group's offset follow."""
        delivery = self.assignments.delivery(request.key)
        is_back = offset < request.offset
        # What is out and not acknowledged stands before the offset that a broker sends us on to.
        is_progress = is_back or (delivery is not None and delivery.is_settled())
        request.moved(offset)
        if is_progress and request.jump is None:
            self._tracker.advance(OffsetEntry(request.topic, request.partition, offset, is_reset=is_back))
            if request.is_moved_back:
                self.on_reset()

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
            request.is_troubled, request.trouble = True, str(broken)
            request.found_nothing(is_at_end=False)
        else:
            request.cut_off(body)

    def _deliver(self, request: FetchRequest, batch: Batch, log_end: int | None) -> None:
        if (delivery := self.assignments.begin(request)) is None:
            return
        counts = False
        try:
            outcome = delivery.deliver(batch)
            counts = self.assignments.counts(request)
            if counts and outcome.consumed is not None:
                self._tracker.advance(outcome.consumed)
        finally:
            if self.assignments.end(request, delivery):
                self.returned()
        if not counts:
            return
        if outcome.failure is None:
            request.delivered(outcome.next_offset, log_end)
        else:
            self._on_failure(request, outcome.next_offset, outcome.failure)

    def _on_failure(self, request: FetchRequest, offset: int, failure: Failure) -> None:
        request.failed(offset, failure.rest_s_min)
        request.trouble = f"its listener raises {failure.error!r} at offset {offset}, attempt {failure.attempt}"
        if failure.stops:
            self.assignments.stop(request)
            _log.error(
                "message refused, partition stopped group=%s partition=%s/%s offset=%d attempt=%d",
                *(self._group, request.topic, request.partition, offset, failure.attempt),
                exc_info=failure.error,
            )
            return
        _log.error(
            "listener failed, same messages again in %.1f s group=%s partition=%s/%s offset=%d attempt=%d",
            *(request.rest_s, self._group, request.topic, request.partition, offset, failure.attempt),
            exc_info=failure.error,
        )

    def _jump(self, request: FetchRequest, jump: Jump) -> None:
        """Carry out an order to go on elsewhere. Raises MetaError; then it is carried out later."""
        self._asker.flights.take(request)  # fetched from where nobody wants to read any more
        offset = self._asker.offset_of(request, jump.to)
        delivery = self.assignments.jumped(request, jump)
        request.jumped(offset)
        if delivery is not None:
            delivery.forget(request.key, is_seek=jump.is_progress)
            if jump.is_progress and offset != OFFSET_END:
                self._tracker.advance(OffsetEntry(request.topic, request.partition, offset, is_reset=True))
                request.is_moved_back = True
                self.on_reset()
