"""Messages fetched ahead, and those in the user's hands, compared with a dumb model under random operations."""

import functools
import itertools
import math
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meta_client.consumer.acknowledging import AckWindow
from meta_client.consumer.assignments import Assignments
from meta_client.consumer.filtering import MessageFilter
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import OffsetEntry, OffsetTracker
from meta_client.consumer.pulling import PullBuffer, PullDelivery
from meta_client.consumer.workers import ThreadWorkers
from tests.fixtures.interrupts import interrupted
from tests.fixtures.thoroughness import examples
from tests.meta_client.consumer.test_listening import KEY, SIZE, batch

BYTES_MAX = 10 * SIZE
FETCH_MAX = 6  # messages


class PullMachine(RuleBasedStateMachine):
    """One partition. The user must see every message in order, again only from where progress is after a seek."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.tracker.own(*KEY)
        assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
        assignments.resume(0)
        self.unparked = 0
        self.buffer = PullBuffer(assignments, self.tracker, BYTES_MAX, self._unpark)
        self.tracker.on_commit = self.buffer.report
        self.delivery = PullDelivery(self.buffer, self.tracker, MessageFilter(None, None), None)
        self.fetched = 0  # the next message that a fetch brings
        self.shown = 0  # the next message that the user must see
        self.finished = 0  # the user is done with everything before it
        self.loop: Iterator[ReceivedMessage] | None = None
        self.left: list[Iterator[ReceivedMessage]] = []  # not closed: `async for` closes its loop some time after break

    def _unpark(self) -> None:
        self.unparked += 1

    def stored(self) -> int:
        class Store:
            def __init__(self) -> None:
                self.entry: OffsetEntry | None = None

            def load(self, topic: object, partition: object) -> None:
                del topic, partition

            def commit(self, entries: object) -> None:
                assert isinstance(entries, list)
                (self.entry,) = entries

        store = Store()
        self.tracker.commit(store)
        if store.entry is not None:
            self._stored = store.entry.offset // SIZE
        return self._stored

    _stored = 0

    @precondition(lambda self: self.delivery.has_room())
    @rule(count=st.integers(1, FETCH_MAX))
    def fetch(self, count: int) -> None:
        outcome = self.delivery.deliver(batch(self.fetched, count))
        self.fetched += count
        assert outcome == (self.fetched * SIZE, None, None)

    @rule(count=st.integers(1, 8))
    def take(self, count: int) -> None:
        self.finished = self.shown  # asking again says that what was taken is done
        taken = self.buffer.poll(count, 0)
        assert [m.message_id for m in taken] == list(range(self.shown, min(self.shown + count, self.fetched)))
        self.shown += len(taken)

    @precondition(lambda self: self.shown < self.fetched)
    @rule(steps=st.integers(1, 5))
    def go_on_in_a_loop(self, steps: int) -> None:
        if self.loop is None:
            self.loop = self.buffer.iterate()
        steps = min(steps, self.fetched - self.shown)
        self.finished = self.shown
        for message in itertools.islice(self.loop, steps):
            assert message.message_id == self.shown
            self.finished = self.shown
            self.shown += 1

    @precondition(lambda self: self.loop is not None)
    @rule()
    def leave_loop(self) -> None:
        assert self.loop is not None
        self.left.append(self.loop)
        self.loop = None

    @precondition(lambda self: self.left)
    @rule()
    def close_what_was_left(self) -> None:
        self.left.pop().close()  # type: ignore[attr-defined]  # a generator is what iterate() gives

    @precondition(lambda self: self.left and self.loop is None)
    @rule()
    def go_back_to_what_was_left(self) -> None:
        self.loop = self.left.pop()

    @rule()
    def end_loop(self) -> None:
        if self.loop is not None:
            self.loop.close()  # type: ignore[attr-defined]  # a generator is what iterate() gives
            self.loop = None

    @rule()
    def seek_back_to_progress(self) -> None:
        self.end_loop()
        at = self.stored()
        self.delivery.discard(KEY, is_seek=True)
        self.fetched = self.shown = self.finished = at

    @invariant()
    def progress_is_what_is_finished(self) -> None:
        assert self.stored() == self.finished

    @invariant()
    def what_is_ahead_is_bounded(self) -> None:
        # Beyond the bound: the fetch that reaches it, and what a loop that ends gives back.
        assert self.buffer._bytes < BYTES_MAX + FETCH_MAX * SIZE + FETCH_MAX * SIZE
        assert self.buffer._bytes == sum(it.bytes for it in self.buffer._ahead)
        expected = None if self.finished == self.fetched else self.finished * SIZE
        assert self.delivery.unconsumed_from() == expected


TestPulling = PullMachine.TestCase
TestPulling.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def with_nine(*, is_manual: bool) -> tuple[PullBuffer, Assignments]:
    """A buffer with nine messages in three batches."""
    tracker = OffsetTracker()
    tracker.own(*KEY)
    buffer, assignments = empty(tracker)
    window = AckWindow(tracker.advance) if is_manual else None
    delivery = PullDelivery(buffer, tracker, MessageFilter(None, None), window)
    for first in (0, 3, 6):
        delivery.deliver(batch(first, 3))
    return buffer, assignments


def empty(tracker: OffsetTracker) -> tuple[PullBuffer, Assignments]:
    assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
    assignments.resume(0)
    return PullBuffer(assignments, tracker, BYTES_MAX, lambda: None), assignments


@pytest.mark.parametrize("is_manual", [False, True])
def test_what_a_loop_has_not_yielded_is_taken_first(is_manual: bool) -> None:
    """`async for` ends its loop some time after a break, as a loop does that a program keeps."""
    buffer, _ = with_nine(is_manual=is_manual)
    left = buffer.iterate()
    seen = [next(left).message_id]
    seen += [message.message_id for message in buffer.poll(4, 0)]
    seen += [message.message_id for message in itertools.islice(buffer.iterate(), 2)]
    seen += [message.message_id for message in itertools.islice(left, 2)]
    assert seen == list(range(9))


@pytest.mark.parametrize("is_manual", [False, True])
def test_what_a_ctrl_c_keeps_from_the_user_is_handed_out_again(is_manual: bool) -> None:
    """Of a program that catches it, and asks again: nothing may count as consumed that it has not seen."""
    for nth in itertools.count():
        buffer, assignments = with_nine(is_manual=is_manual)
        seen: list[list[ReceivedMessage]] = []
        is_interrupted = interrupted(nth, functools.partial(_take, buffer, seen))
        assert _is_free(assignments), nth
        seen.append(buffer.poll(3, 0))
        seen.append(buffer.poll(20, 0))
        ids = [message.message_id for taken in seen for message in taken]
        assert list(dict.fromkeys(ids)) == list(range(9)), nth
        assert buffer._bytes <= 0, "nothing more would be fetched"
        if not is_interrupted:
            break
    assert nth > 30


def test_a_ctrl_c_while_it_waits_leaves_nothing_locked() -> None:
    for nth in itertools.count():
        buffer, assignments = empty(OffsetTracker())
        is_interrupted = interrupted(nth, functools.partial(buffer.poll, 1, 0.01))
        assert _is_free(assignments), nth
        assert buffer.poll(1, 0) == []
        if not is_interrupted:
            break
    assert nth > 30


def _is_free(assignments: Assignments) -> bool:
    """True if another thread gets the lock."""
    got = list[bool]()

    def get() -> None:
        got.append(assignments.changed.acquire(blocking=False))
        if got[0]:
            assignments.changed.release()

    thread = threading.Thread(target=get)
    thread.start()
    thread.join()
    return got == [True]


def _take(buffer: PullBuffer, seen: list[list[ReceivedMessage]]) -> None:
    seen.append(buffer.poll(4, 0))


def test_what_a_filter_rejects_is_consumed_with_what_is_taken() -> None:
    tracker = OffsetTracker()
    tracker.own(*KEY)
    assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
    assignments.resume(0)
    buffer = PullBuffer(assignments, tracker, BYTES_MAX, lambda: None)
    message_filter = MessageFilter(lambda message: message.message_id in (1, 2), None)
    delivery = PullDelivery(buffer, tracker, message_filter, None)
    assert delivery.deliver(batch(0, 1)).consumed == OffsetEntry(*KEY, SIZE, 0)  # nothing of it is delivered
    assert delivery.deliver(batch(1, 5)).consumed is None
    assert delivery.deliver(batch(6, 2)).consumed is None  # something before it is out
    assert [message.message_id for message in buffer.poll(1, 0)] == [1]
    assert [message.message_id for message in buffer.poll(5, 0)] == [2]
    assert delivery.deliver(batch(8, 2)).consumed is None  # what is before it is in the user's hands
    assert tracker._entries[KEY] == OffsetEntry(*KEY, 2 * SIZE, 1)
    buffer.poll(1, 0)
    assert tracker._entries[KEY] == OffsetEntry(*KEY, 10 * SIZE, 9), "it would stay behind for ever"
    assert delivery.deliver(batch(10, 1)).consumed == OffsetEntry(*KEY, 11 * SIZE, 10)


def test_by_hand_nothing_counts_that_was_not_acknowledged() -> None:
    tracker = OffsetTracker()
    tracker.own(*KEY)
    assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
    assignments.resume(0)
    buffer = PullBuffer(assignments, tracker, BYTES_MAX, lambda: None)
    window = AckWindow(tracker.advance)
    delivery = PullDelivery(buffer, tracker, MessageFilter(None, None), window)
    delivery.deliver(batch(0, 4))
    first = buffer.poll(2, 0)
    buffer.poll(1, 0)
    assert tracker._entries[KEY] is None
    assert delivery.unconsumed_from() == 0
    assert window.acknowledge(first[1])
    assert delivery.unconsumed_from() == 2 * SIZE
    assert tracker._entries[KEY] == OffsetEntry(*KEY, 2 * SIZE, 1)
    delivery.discard(KEY, is_seek=False)
    assert not window.acknowledge(first[1])
    assert buffer.poll(1, 0) == []


def test_a_time_limit_may_be_endless() -> None:
    assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
    assignments.resume(0)
    buffer = PullBuffer(assignments, OffsetTracker(), BYTES_MAX, lambda: None)
    delivery = PullDelivery(buffer, OffsetTracker(), MessageFilter(None, None), None)
    later = threading.Timer(0.1, delivery.deliver, [batch(0, 4)])
    later.start()
    assert len(buffer.poll(9, math.inf)) == 4
    later.join()


def test_a_buffer_that_fills_up_while_its_user_waits_lets_everybody_go_on_again() -> None:
    """The user begins to wait while there is room, and finds none left when messages are there."""
    tracker = OffsetTracker()
    tracker.own(*KEY)
    assignments = Assignments("group", lambda: True, ThreadWorkers().condition())
    assignments.resume(0)
    unparked = threading.Event()
    buffer = PullBuffer(assignments, tracker, BYTES_MAX, unparked.set)
    delivery = PullDelivery(buffer, tracker, MessageFilter(None, None), None)
    taken: list[ReceivedMessage] = []
    user = threading.Thread(target=lambda: taken.extend(buffer.poll(100, 60)))
    with assignments.changed:
        user.start()
        while not assignments.changed._waiters:  # type: ignore[attr-defined]  # it waits inside poll()
            assignments.changed.wait(0.001)
        delivery.deliver(batch(0, 20))
        assert not delivery.has_room()
    user.join(60)
    assert len(taken) == 20
    assert unparked.is_set()


def test_what_was_rolled_back_counts_once_a_loop_yields_it_again() -> None:
    buffer, tracker = empty(OffsetTracker())[0], OffsetTracker()
    window = AckWindow(tracker.advance)
    delivery = PullDelivery(buffer, tracker, MessageFilter(None, None), window)
    delivery.deliver(batch(0, 3))
    before = list(itertools.islice(buffer.iterate(), 3))
    assert window.rollback() == 0
    window.resume()
    delivery.deliver(batch(0, 3))
    loop = buffer.iterate()
    next(loop)
    assert not window.acknowledge(before[2])
    assert [message.message_id for message in itertools.islice(loop, 2)] == [1, 2]
    assert window.acknowledge(before[2])
