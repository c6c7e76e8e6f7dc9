"""A connection against a dumb model, under random operations of its peer, its handlers, the server and the journal."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journal.errors import StorageFailed
from journal.records.record import PartitionName
from meta_broker.handlers.context import WaitingFetch
from meta_broker.net.connection import ClientConnection
from meta_broker.net.connection_owner import ConnectionBounds
from meta_broker.net.server import RECEIVE_BYTES
from meta_broker.net.turns import REQUESTS_PER_TURN, TURN_S, Turns, TurnTaker
from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.limits import Limits
from meta_client.protocol.requests import Fetch, Quit, Version
from tests.fixtures.thoroughness import examples

UNSENT_BYTES_MAX, IN_FLIGHT_MAX = 100, 5
ANSWER = b"x" * 30
NAME, FETCH = PartitionName("orders", 0), Fetch("orders", "g", 0, 0, 1, 1, 1, 1)


class Loop:
    """Runs callbacks when the test says so."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], object]] = deque()

    def time(self) -> float:
        return 0.0

    def call_soon(self, action: Callable[[], object]) -> None:
        self.due.append(action)

    def settle(self) -> None:
        for _ in range(10_000):
            if not self.due:
                return
            self.due.popleft()()
        raise AssertionError("it never ends")


class Transport:
    """Records what a connection does with its socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.closing = False
        self.protocol: asyncio.Protocol | None = None  # that the connection was handed over to

    def set_write_buffer_limits(self, high: int) -> None:
        assert high == UNSENT_BYTES_MAX

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return name, 1

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def pause_reading(self) -> None:
        assert self.is_reading()
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        assert not self.closing
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.closing = True

    abort = close


class CountingTurns(Turns):
    """Turns of a clock that the test drives, which end the count of requests handled at once."""

    def __init__(self, model: "Connections") -> None:
        super().__init__(model.loop.call_soon, self.clock)
        self.model = model

    def clock(self) -> float:
        self.model.now += self.model.clock_step
        return self.model.now

    def wait(self, connection: TurnTaker) -> None:
        self.model.handled_in_call = 0
        super().wait(connection)


class Connections(RuleBasedStateMachine):
    """Owner, dispatcher and model of one connection: what may be handled, read and closed, said once more, simply."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = None
        self.loop, self.transport = Loop(), Transport()
        bounds = ConnectionBounds(
            decoder=Limits(), unsent_bytes_max=UNSENT_BYTES_MAX, requests_in_flight_max=IN_FLIGHT_MAX
        )
        self.buffers, self.received_chunk = BodyBuffers(0), memoryview(bytearray(RECEIVE_BYTES))
        self.now = self.clock_step = 0.0
        self.turns = CountingTurns(self)
        make: Any = ClientConnection
        self.connection: ClientConnection = make(self, self, self.loop, bounds)
        self.arrived_last = 0  # entries of `queue` that arrived with the last bytes
        self.arrived = 0  # requests received while that was allowed; each has the next number as its opaque
        self.queue: deque[int | WaitingFetch | None] = deque()  # to be handled, in this order; None: a quit
        self.waiting: list[WaitingFetch] = []  # handled, and put off until something wakes them
        self.unanswered: list[int | WaitingFetch] = []
        self.answered = 0
        self.pausing: set[int] = set()  # requests that are going to be paused for
        self.put_off: set[int] = set()  # requests that are going to wait
        self.paused_for: int | None = None
        self.is_stalled = self.is_full = self.is_garbled = self.is_quitting = self.is_lost = False
        self.has_quit = False  # its peer has sent that
        self.held_at_watermark = 0
        self.handled_in_call = 0

    # -- connection_owner.ConnectionOwner -------------------------------------------------------------------

    def opened(self, connection: ClientConnection, transport: object) -> bool:
        del connection, transport
        return True

    def closed(self, connection: ClientConnection) -> None:
        assert connection is self.connection
        assert self.is_lost

    def received(self, connection: ClientConnection, held: int, *, made_progress: bool) -> None: ...

    def unsent(self, connection: ClientConnection, held: int, *, made_progress: bool) -> None: ...

    def flush_later(self, connection: ClientConnection) -> None:
        self.loop.call_soon(connection.flush)

    def is_journal_full(self) -> bool:
        return self.is_full

    def failed(self, error: StorageFailed) -> None:
        raise AssertionError(error)

    # -- handlers.dispatch.Dispatcher -----------------------------------------------------------------------

    def handle(self, request: Version | Quit | WaitingFetch, peer: ClientConnection) -> None:
        assert not self.is_quitting
        assert not self.is_stalled
        assert not self.is_full
        assert not self.is_lost
        assert self.paused_for is None
        assert len(self.unanswered) < IN_FLIGHT_MAX
        assert self.held_at_watermark <= UNSENT_BYTES_MAX
        self.handled_in_call += 1
        assert self.handled_in_call <= REQUESTS_PER_TURN
        first = self.queue.popleft()
        if isinstance(request, Quit):
            assert first is None
            peer.end_in_flight()
            peer.quit()
        elif isinstance(request, WaitingFetch):
            assert first is request
            self.unanswered.append(request)
        else:
            assert first == request.opaque, "in their order"
            if request.opaque in self.put_off:
                peer.end_in_flight()
                self.waiting.append(WaitingFetch(FETCH, peer, NAME, 1, 1))
                return
            self.unanswered.append(request.opaque)
            if request.opaque in self.pausing:
                self.paused_for = request.opaque
                peer.pause()

    def release(self, peer: ClientConnection, woken: list[WaitingFetch]) -> list[bytes]:
        """The connection is quitting: what waits, or has waited, is answered; other requests are not."""
        assert peer is self.connection
        assert woken == [each for each in self.queue if isinstance(each, WaitingFetch)]
        self.is_quitting = True
        released = len(woken) + len(self.waiting)
        self.answered += released
        self.queue.clear()
        self.waiting.clear()
        return [ANSWER] * released

    def peer_closed(self, peer: ClientConnection) -> None:
        assert peer is self.connection

    # -- what the model permits -----------------------------------------------------------------------------

    @property
    def may_handle(self) -> bool:
        return not (
            self.is_quitting
            or self.is_lost
            or self.is_stalled
            or self.is_full
            or self.paused_for is not None
            or len(self.unanswered) >= IN_FLIGHT_MAX
            or self.held_at_watermark > UNSENT_BYTES_MAX
        )

    # -- what happens -----------------------------------------------------------------------------------------

    def call(self, action: Callable[[], object]) -> None:
        """Let the connection act: an input that ended badly has it quit once everything is handled."""
        self.handled_in_call = 0
        action()
        assert self.is_quitting or self.is_lost or not self.is_garbled or self.queue

    @initialize()
    def connect(self) -> None:
        self.connection.connection_made(cast(Any, self.transport))

    def may_receive(self) -> bool:
        return self.transport.is_reading() and not self.is_lost

    @precondition(may_receive)
    @rule(
        count=st.sampled_from([1, 1, 2, 3, 10, REQUESTS_PER_TURN * 2]),
        pausing=st.integers(0, 9),
        put_off=st.integers(0, 3),
        tail=st.integers(0, 9),
    )
    def receive(self, count: int, pausing: int, put_off: int, tail: int) -> None:
        data = b"".join(b"version %d\r\n" % (self.arrived + number) for number in range(count))
        queued = len(self.queue)
        if not self.has_quit and not self.is_quitting:
            opaques = range(self.arrived, self.arrived + count)
            self.pausing |= {opaques[pausing]} if pausing < count else set()
            self.put_off |= set(opaques[put_off::3]) - self.pausing
            self.queue += opaques
            self.arrived += count
            if tail == 0:
                self.has_quit, data = True, data + b"quit\r\n" + b"version 77777\r\n"
                self.queue.append(None)
            elif tail == 1:
                self.is_garbled, data = True, data + b"version ?\r\n"
        self.arrived_last = len(self.queue) - queued
        self.call(lambda: self.hand_over(data))
        assert not self.is_quitting or not self.transport.is_reading()

    def hand_over(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    @rule(step=st.sampled_from([0.0, TURN_S / 2, TURN_S]))
    def others_take_time(self, step: float) -> None:
        self.clock_step = step

    @precondition(lambda self: self.unanswered and not self.is_lost)
    @rule(which=st.integers(0, IN_FLIGHT_MAX))
    def answer(self, which: int) -> None:
        done = self.unanswered.pop(which % len(self.unanswered))
        self.answered += 1
        self.call(lambda: self.connection.send(ANSWER))
        if done == self.paused_for:
            self.paused_for = None
            self.call(self.connection.resume)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100), together=st.booleans())
    def wake(self, which: int, together: bool) -> None:
        woken = self.waiting[:] if together else [self.waiting[which % len(self.waiting)]]
        self.waiting = [each for each in self.waiting if each not in woken]
        for each in woken:
            if not self.is_lost:  # bytes that nobody has decoded yet are no requests: it comes before them
                undecoded = self.arrived_last if self.connection._receiver.undecoded else 0
                self.queue.insert(len(self.queue) - undecoded, each)
            self.call(partial(self.connection.enqueue, each))

    @precondition(lambda self: not self.is_lost)
    @rule()
    def stall_or_read(self) -> None:
        self.is_stalled = not self.is_stalled
        self.call(self.connection.pause_writing if self.is_stalled else self.connection.resume_writing)

    @rule()
    def fill_the_journal_or_make_room(self) -> None:
        self.is_full = not self.is_full
        if not self.is_full:
            self.call(self.connection.handle_queued)

    @precondition(lambda self: not self.is_lost)
    @rule(size=st.sampled_from([0, 0, 50, 101]))
    def hold_replies_at_the_high_watermark(self, size: int) -> None:
        before, self.held_at_watermark = self.held_at_watermark, size
        self.connection.add_pending(size)
        self.call(partial(self.connection.end_pending, before))

    @precondition(lambda self: not self.is_lost)
    @rule(anything=st.integers(0, 9))
    def stop_the_server(self, anything: int) -> None:
        if anything == 0:
            self.call(self.connection.quit)
            assert self.is_quitting

    @precondition(lambda self: not self.is_lost)
    @rule(anything=st.integers(0, 9))
    def lose(self, anything: int) -> None:
        if anything == 0 or self.transport.closing:
            self.is_lost = True
            self.queue.clear()
            self.call(lambda: self.connection.connection_lost(None))

    @rule()
    def turn(self) -> None:
        """Run what is due, until nothing is."""
        while self.loop.due:
            self.call(self.loop.due.popleft())
        if self.is_lost:
            return
        assert not self.queue or not self.may_handle
        assert len(self.transport.written) == self.answered * len(ANSWER)
        assert self.transport.closing == (self.is_quitting and not self.unanswered)

    # -- what holds always ----------------------------------------------------------------------------------

    @invariant()
    def it_reads_only_what_it_could_handle(self) -> None:
        if not self.transport.closing and not self.is_lost:
            if self.is_quitting:  # stopped by the server, it reads on until something arrives
                assert not self.transport.reading or not (self.is_garbled or self.has_quit)
                return
            assert self.transport.reading == (not self.queue and not self.is_garbled)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if not self.is_quitting and not self.is_lost:
            left = len(self.queue) - (None in self.queue)
            assert self.arrived == self.answered + len(self.unanswered) + len(self.waiting) + left
        assert len(self.transport.written) <= self.answered * len(ANSWER)


class Refusing(Connections):
    """An owner that takes no connection."""

    def opened(self, connection: ClientConnection, transport: object) -> bool:
        del connection, transport
        return False


def test_a_refused_connection_is_lost_like_any_other() -> None:
    refusing = Refusing()
    refusing.connect()
    refusing.is_lost = True
    refusing.connection.connection_lost(None)
    refusing.loop.settle()
    assert not refusing.transport.written


def test_fetches_woken_together_are_all_answered_if_a_goodbye_comes_between() -> None:
    one = Connections()
    one.connect()
    one.receive(count=4, pausing=9, put_off=0, tail=9)
    assert len(one.waiting) == 2
    one.fill_the_journal_or_make_room()
    one.receive(count=1, pausing=9, put_off=3, tail=0)
    one.is_full = False  # as after an advance of the high watermark, before connections are told
    one.wake(which=0, together=True)
    assert one.is_quitting
    assert one.answered == 2
    one.turn()


class Upgrading(Connections):
    """A dispatcher that hands every connection over to another protocol, and the owner of what remains."""

    def __init__(self) -> None:
        super().__init__()
        self.successor = asyncio.Protocol()

    def handle(self, request: Version | Quit | WaitingFetch, peer: ClientConnection) -> None:
        del request
        assert peer.upgrade(ANSWER, lambda transport, name: self.successor)

    def closed(self, connection: ClientConnection) -> None:
        assert self.transport.protocol is self.successor


def test_a_connection_that_is_handed_over_in_a_later_turn_is_read_on() -> None:
    one = Upgrading()
    one.connect()
    assert not one.turns.is_over()
    one.clock_step = TURN_S
    one.hand_over(b"replicate 1\r\n")
    assert not one.transport.reading
    assert one.transport.protocol is None
    one.loop.settle()
    assert one.transport.protocol is one.successor
    assert one.transport.reading
    assert one.transport.written == ANSWER


TestConnections = Connections.TestCase
TestConnections.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
