"""A connection against a dumb model, under random operations of its peer, its handlers, the server and the journal."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journal.errors import StorageFailed
from meta_broker.net.connection import REQUESTS_PER_TURN, ClientConnection
from meta_broker.net.connection_owner import ConnectionBounds
from meta_client.protocol.limits import Limits
from meta_client.protocol.requests import Quit, Version

UNSENT_BYTES_MAX, IN_FLIGHT_MAX = 100, 5
ANSWER = b"x" * 30


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

    def close(self) -> None:
        self.closing = True

    abort = close


class Connections(RuleBasedStateMachine):
    """Owner, dispatcher and model of one connection: what may be handled, read and closed, said once more, simply."""

    def __init__(self) -> None:
        super().__init__()
        self.loop, self.transport = Loop(), Transport()
        bounds = ConnectionBounds(
            decoder=Limits(), unsent_bytes_max=UNSENT_BYTES_MAX, requests_in_flight_max=IN_FLIGHT_MAX
        )
        make: Any = ClientConnection
        self.connection: ClientConnection = make(self, self, self.loop, bounds)
        self.arrived = 0  # requests received while that was allowed; each has the next number as its opaque
        self.handled = 0
        self.unanswered: list[int] = []
        self.answered = 0
        self.pausing: set[int] = set()  # requests that are going to be paused for
        self.paused_for: int | None = None
        self.is_stalled = self.is_full = self.is_garbled = self.is_quitting = self.is_lost = False
        self.quit_at: int | None = None  # number of requests before a quit
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

    def handle(self, request: Version | Quit, peer: ClientConnection) -> None:
        assert not self.is_quitting
        assert not self.is_stalled
        assert not self.is_full
        assert not self.is_lost
        assert self.paused_for is None
        assert len(self.unanswered) < IN_FLIGHT_MAX
        assert self.held_at_watermark <= UNSENT_BYTES_MAX
        self.handled_in_call += 1
        assert self.handled_in_call <= REQUESTS_PER_TURN
        if isinstance(request, Quit):
            assert self.handled == self.quit_at
            self.is_quitting = True
            peer.end_in_flight()
            peer.quit()
            return
        assert request.opaque == self.handled, "in their order"
        self.handled += 1
        self.unanswered.append(request.opaque)
        if request.opaque in self.pausing:
            self.paused_for = request.opaque
            peer.pause()

    def release(self, peer: ClientConnection) -> list[bytes]:
        del peer
        return []

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

    @property
    def left(self) -> int:
        """Requests, and quits, that were received and not handled."""
        return self.arrived - self.handled + (self.quit_at is not None and not self.is_quitting)

    # -- what happens -----------------------------------------------------------------------------------------

    def call(self, action: Callable[[], object]) -> None:
        """Let the connection act, and see the end of an input without quit."""
        self.handled_in_call = 0
        action()
        if self.is_garbled and not self.left:
            self.is_quitting = True

    @initialize()
    def connect(self) -> None:
        self.connection.connection_made(cast(Any, self.transport))

    def may_receive(self) -> bool:
        return self.transport.is_reading() and not self.is_lost

    @precondition(may_receive)
    @rule(
        count=st.sampled_from([1, 1, 2, 3, 10, REQUESTS_PER_TURN * 2]),
        pausing=st.integers(0, 9),
        tail=st.integers(0, 9),
    )
    def receive(self, count: int, pausing: int, tail: int) -> None:
        data = b"".join(b"version %d\r\n" % (self.arrived + number) for number in range(count))
        if self.quit_at is None and not self.is_quitting:
            self.pausing |= {self.arrived + pausing} if pausing < count else set()
            self.arrived += count
            if tail == 0:
                self.quit_at, data = self.arrived, data + b"quit\r\n" + b"version 77777\r\n"
            elif tail == 1:
                self.is_garbled, data = True, data + b"version ?\r\n"
        self.call(lambda: self.connection.data_received(data))
        assert not self.is_quitting or not self.transport.is_reading()

    @precondition(lambda self: self.unanswered and not self.is_lost)
    @rule(which=st.integers(0, IN_FLIGHT_MAX))
    def answer(self, which: int) -> None:
        done = self.unanswered.pop(which % len(self.unanswered))
        self.answered += 1
        self.call(lambda: self.connection.send(ANSWER))
        if done == self.paused_for:
            self.paused_for = None
            self.call(self.connection.resume)

    @precondition(lambda self: not self.is_lost)
    @rule()
    def stall_or_read(self) -> None:
        self.is_stalled = not self.is_stalled
        self.call(self.connection.pause_writing if self.is_stalled else self.connection.resume_writing)

    @rule()
    def fill_the_journal_or_make_room(self) -> None:
        self.is_full = not self.is_full
        if not self.is_full:
            self.call(self.connection.on_journal_room)

    @precondition(lambda self: not self.is_lost)
    @rule(size=st.sampled_from([0, 0, 50, 101]))
    def hold_replies_at_the_high_watermark(self, size: int) -> None:
        self.held_at_watermark = self.connection.pending_reply_bytes = size

    @precondition(lambda self: not self.is_lost)
    @rule(anything=st.integers(0, 9))
    def stop_the_server(self, anything: int) -> None:
        if anything == 0:
            self.is_quitting = True
            self.call(self.connection.close)

    @precondition(lambda self: not self.is_lost)
    @rule(anything=st.integers(0, 9))
    def lose(self, anything: int) -> None:
        if anything == 0 or self.transport.closing:
            self.is_lost = True
            self.call(lambda: self.connection.connection_lost(None))

    @rule()
    def turn(self) -> None:
        """Run what is due, until nothing is."""
        while self.loop.due:
            self.call(self.loop.due.popleft())
        if self.is_lost:
            return
        if self.may_handle:
            # Once the loop is idle, a limit that was left is noticed by the next event: any will do.
            self.call(self.connection.on_journal_room)
            while self.loop.due:
                self.call(self.loop.due.popleft())
            assert not self.left or not self.may_handle
        assert len(self.transport.written) == self.answered * len(ANSWER)
        assert self.transport.closing == (self.is_quitting and not self.unanswered)

    # -- what holds always ----------------------------------------------------------------------------------

    @invariant()
    def it_reads_only_what_it_could_handle(self) -> None:
        if not self.transport.closing and not self.is_lost:
            if self.is_quitting:  # stopped by the server, it reads on until something arrives
                assert not self.transport.reading or not (self.is_garbled or self.quit_at is not None)
                return
            assert self.transport.reading == (not self.left and not self.is_garbled)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        assert self.handled == self.answered + len(self.unanswered)
        assert self.handled <= self.arrived
        assert len(self.transport.written) <= self.answered * len(ANSWER)


TestConnections = Connections.TestCase
TestConnections.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
