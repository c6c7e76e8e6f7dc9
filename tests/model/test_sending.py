"""The sending engine between brokers and connections that do what they like, in any order of events.

Messages are added while brokers die and are replaced by others with or without `mput`. Connections fail before, while
and after a request is sent; answers come late or never; a broken connection's requests may be executed long after. Each
handle must end once, with the truth; no message is stored twice, or sent under two numbers; those for one partition
keep their order; memory and batches in flight stay bounded; and once nothing fails any more, everything is settled.
"""

import itertools
import logging
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from meta_client.errors import (
    ClientClosed,
    ConnectionLost,
    Destination,
    NoBroker,
    NoPartition,
    NotConnected,
    ReplyTimeout,
    SendFailed,
    SendRefused,
    SendUnknown,
    TooManyRequests,
)
from meta_client.metadata.topology import TopicView
from meta_client.net.pending_reply import PendingReply, RequestsInFlight
from meta_client.net.transport import Transport
from meta_client.producer.attempts import Connected, ConnectFailed, SendAttempt
from meta_client.producer.batch import SendHandle
from meta_client.producer.message_run import MessageRun
from meta_client.producer.partition_queues import IN_FLIGHT_MAX, BatchingConfig
from meta_client.producer.results import SendResult
from meta_client.producer.sending_engine import SendingEngine
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.responses import Result
from tests.model.playing import Counted, play
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

PARTITIONS = (Partition(0, 0), Partition(0, 1), Partition(1, 0))
URLS = {0: BrokerUrl("a", 1), 1: BrokerUrl("b", 1)}
VIEW = TopicView("orders", PARTITIONS, URLS, PARTITIONS)
REFUSED = b"refused"
NOT_NOW = 503
CONFIG = BatchingConfig(batch_bytes=80, linger_s=0.1, delivery_timeout_s=20.0, buffer_bytes_max=1500)
TROUBLE = ["busy", "cut", "interrupted", "unsendable"]  # that a request may meet
WINDOW = 8  # batches that a broker remembers of a producer and a partition


class Link:
    """A connection: requests arrive in order, unless it broke."""

    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.url = URLS[broker.broker_id]
        self.is_broken = False
        self.arrived: list[SendAttempt] = []  # not executed yet
        self.awaited: dict[int, tuple[SendAttempt, PendingReply]] = {}  # by opaque
        self.answers: list[Result] = []

    def read_for(self, reply: PendingReply, deadline: float) -> None:
        raise AssertionError("the engine never waits")

    def expire(self, opaque: int, after_s: float) -> None:
        if opaque in self.awaited:
            self.awaited.pop(opaque)[1].fail(ReplyTimeout(f"{after_s:g} s"))

    def hang_up(self) -> None:
        self.is_broken = True
        self.broker.late += self.arrived
        self.arrived = []

    def notice(self) -> None:
        """Fail the first reply that a broken connection owes; other threads go on meanwhile."""
        if self.is_broken and self.awaited:
            self.awaited.pop(next(iter(self.awaited)))[1].fail(ConnectionLost("the broker closed it"))


@dataclass(eq=False)
class Broker:
    """Keeps what it stored, whatever happens to it."""

    broker_id: int
    is_up: bool = True
    has_mput: bool = True
    refusals_left: int = 0  # batches that it refuses for now
    links: list[Link] = field(default_factory=list)
    late: list[SendAttempt] = field(default_factory=list)  # of broken connections
    stored: dict[Partition, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    windows: dict[tuple[str, Partition], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def execute(self, send: SendAttempt) -> Result:
        log = self.stored[send.partition]
        if any(body.startswith(REFUSED) for body in send.bodies):
            return Result(500, b"no room", send.opaque)
        if self.refusals_left and send.sequence is not None:
            self.refusals_left -= 1
            return Result(NOT_NOW, b"not now", send.opaque)
        if send.sequence is not None:
            window = self.windows[send.sequence.producer, send.partition]
            if window and send.sequence.number <= window[-1][0]:
                index = dict(window[-WINDOW:]).get(send.sequence.number)
                return Result(500, b"too old", send.opaque) if index is None else self.place(send, index)
            window.append((send.sequence.number, len(log)))
        log += send.bodies
        return self.place(send, len(log) - len(send.bodies))

    def place(self, send: SendAttempt, index: int) -> Result:
        offset = sum(HEADER_BYTES + len(body) for body in self.stored[send.partition][:index])
        return Result(200, b"%d %d %d" % (index, send.partition.number, offset), send.opaque)


@dataclass
class Message:
    """A message that was added."""

    body: bytes
    wanted: Partition | None
    handle: SendHandle
    sent_as: Counter[tuple[Partition, int]] = field(default_factory=Counter)  # by partition and number; not if refused
    times_sent_singly: int = 0


class Sending(Counted):
    """One engine, its driver, and two brokers."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable()
        self.now = 100.0
        self.engine = SendingEngine(CONFIG, "me", SendHandle)
        self.brokers = [Broker(0), Broker(1)]
        self.messages: list[Message] = []
        self.unsettled: list[Message] = []
        self.by_body: dict[bytes, Message] = {}
        self.connecting: list[tuple[int, tuple[str, ...]]] = []
        self.numbers = itertools.count()

    @initialize(first=st.booleans(), second=st.booleans())
    def start(self, *, first: bool, second: bool) -> None:
        self.brokers[0].has_mput, self.brokers[1].has_mput = first, second

    @property
    def links(self) -> list[Link]:
        return [link for broker in self.brokers for link in broker.links]

    # -- messages --------------------------------------------------------------------------------------------------

    @rule(
        wanted=st.sampled_from([None, None, *PARTITIONS]),
        size=st.sampled_from([8, 8, 40, 300]),
        count=st.integers(1, 8),
        prefix=st.sampled_from([b""] * 9 + [REFUSED]),
    )
    def add(self, wanted: Partition | None, size: int, count: int, prefix: bytes) -> None:
        self.count()
        for _ in range(count):
            body = b"%b%08d%b" % (prefix, next(self.numbers), bytes(size))
            if (handle := self.engine.maybe_add("orders", wanted, 0, body)) is None:
                if self.engine.must_wait("orders", HEADER_BYTES + len(body)):
                    return
                handle = self.engine.add_first(self.now, VIEW, wanted, 0, body)
            self.added([Message(body, wanted, handle)])

    @rule(
        wanted=st.sampled_from([None, None, *PARTITIONS]),
        sizes=st.lists(st.sampled_from([8, 8, 40, 300]), min_size=1, max_size=16),
    )
    def add_many(self, wanted: Partition | None, sizes: list[int]) -> None:
        self.count()
        run = MessageRun([b"%08d%b" % (next(self.numbers), bytes(size)) for size in sizes], [0] * len(sizes))
        start = 0
        while start < len(run):
            if (part := self.engine.maybe_add_run("orders", wanted, run, start)) is None:
                if self.engine.must_wait_for("orders", run, start):
                    return
                self.engine.open_batch(self.now, VIEW, wanted)
                part = self.engine.maybe_add_run("orders", wanted, run, start)
            assert part is not None
            assert part.indexes == range(start, start + len(part.indexes))
            handles = [SendHandle(part.batch, part.first + index) for index in range(len(part.indexes))]
            bodies = [run.bodies[index] for index in part.indexes]
            self.added([Message(body, wanted, handle) for body, handle in zip(bodies, handles, strict=True)])
            start += len(bodies)

    def added(self, messages: list[Message]) -> None:
        self.messages += messages
        self.by_body |= {message.body: message for message in messages}
        self.unsettled = [it for it in self.unsettled if not it.handle.is_done] + messages
        unsettled = [len(it.body) + HEADER_BYTES for it in self.unsettled]
        assert self.engine.bytes == sum(unsettled)
        assert sum(unsettled) <= CONFIG.buffer_bytes_max or len(unsettled) == 1

    @rule()
    def ask_for_a_partition_that_is_not_there(self) -> None:
        try:
            self.engine.add_first(self.now, VIEW, Partition(0, 9), 0, b"")
        except NoPartition:
            return
        raise AssertionError("it is not there")

    @rule()
    def seal(self) -> None:
        self.count()
        self.engine.seal_all()

    # -- the driver ------------------------------------------------------------------------------------------------

    @rule(outcome=st.sampled_from(["sent"] * 9 + TROUBLE), count=st.integers(1, 9))
    def send(self, outcome: str, count: int = 1) -> None:
        """Send a few; *outcome* is the last one's."""
        for left in reversed(range(count)):
            self.count()
            if (send := self.engine.maybe_send(self.now)) is None:
                return
            self.submit(send, "sent" if left else outcome)

    def submit(self, send: SendAttempt, outcome: str) -> None:
        link = cast(Link, send.connection)
        self.check_beside(send, link)
        if outcome == "cut":
            link.hang_up()
        if link.is_broken:
            self.engine.unsent(self.now, send.opaque, NotConnected("it is lost"))
        elif outcome == "busy":
            self.engine.unsent(self.now, send.opaque, TooManyRequests("too many"))
        elif outcome == "unsendable" and not any(+self.by_body[body].sent_as for body in send.bodies):
            self.engine.unsent(self.now, send.opaque, LocalProtocolError("it has no form"))
        else:
            self.note_sent(send)
            link.arrived.append(send)
            if outcome == "interrupted":
                self.engine.lost(self.now, send.opaque, KeyboardInterrupt())
            else:
                link.awaited[send.opaque] = (
                    send,
                    PendingReply(cast(RequestsInFlight, link), send.opaque, self.on_answer),
                )

    def check_beside(self, send: SendAttempt, link: Link) -> None:
        """Check *send* beside what is in flight for its partition."""
        assert link.broker.broker_id == send.partition.broker_id
        beside = [
            (other, sent)
            for other in self.links
            for sent, _ in other.awaited.values()
            if sent.partition == send.partition
        ]
        assert len(beside) < IN_FLIGHT_MAX
        for other, sent in beside:
            assert other is link, "it could overtake what is under way on another connection"
            assert send.sequence is not None, "a broker without mput executes in any order"
            assert sent.sequence is not None, "the others of that batch come later"

    def note_sent(self, send: SendAttempt) -> None:
        """Note that *send* may arrive."""
        for body in send.bodies:
            message = self.by_body[body]
            if send.sequence is None:
                message.times_sent_singly += 1
            else:
                message.sent_as[send.partition, send.sequence.number] += 1
            may_have = sum(times > 0 for times in message.sent_as.values())
            assert may_have + message.times_sent_singly == 1, "it could be stored twice"

    def on_answer(self, reply: PendingReply) -> None:
        self.engine.answered(self.now, reply)

    @rule()
    def connect(self) -> None:
        self.count()
        if (taken := self.engine.maybe_connect()) is not None:
            assert taken[0] not in [broker_id for broker_id, _ in self.connecting], "twice at a time"
            self.connecting.append(taken)

    @precondition(lambda self: self.connecting)
    @rule(which=st.integers(0, 1), fails=st.sampled_from([None] * 6 + [NoBroker, ReplyTimeout, ClientClosed]))
    def connected(self, which: int, fails: type[Exception] | None) -> None:
        self.count()
        broker_id, topics = self.connecting.pop(which % len(self.connecting))
        broker = self.brokers[broker_id]
        error: Exception | None = None
        if fails is NoBroker:
            error = NoBroker("it is not up", Destination(topics[0]))
        elif fails is not None:
            error = fails("it fails")
        elif not broker.is_up:
            error = NotConnected("it refuses")
        if error is None:
            if not (live := [link for link in broker.links if not link.is_broken]):
                live = [Link(broker)]
                broker.links.append(live[0])
            extensions = {"mput"} if broker.has_mput else set[str]()
            self.engine.connecting_ended(self.now, broker_id, Connected(cast(Transport, live[0]), extensions))
        else:
            self.engine.connecting_ended(self.now, broker_id, ConnectFailed(error, dict.fromkeys(topics, VIEW)))

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.1, 0.5, 1.0, 1.0, 5.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.count()
        self.now += seconds
        self.engine.advance(self.now)
        for connection, opaque, after_s in self.engine.overdue(self.now):
            connection.expire(opaque, after_s)
        assert self.engine.next_due > self.now

    # -- brokers ---------------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 9), order=st.integers(0, 9), count=st.integers(1, 9))
    def execute(self, which: int, order: int, count: int) -> None:
        """A broker executes a few of the requests on a connection: in order if it has `mput`."""
        for _ in range(count):
            self.count()
            if not (links := [link for link in self.links if link.arrived]):
                return
            link = links[which % len(links)]
            send = link.arrived.pop(0 if link.broker.has_mput else order % len(link.arrived))
            link.answers.append(link.broker.execute(send))

    @rule(which=st.integers(0, 1), count=st.integers(1, 3))
    def refuse_for_now(self, which: int, count: int) -> None:
        self.count()
        self.brokers[which].refusals_left = count

    @rule(which=st.integers(0, 9), order=st.integers(0, 9), count=st.integers(1, 9))
    def answer(self, which: int, order: int, count: int) -> None:
        for _ in range(count):
            self.count()
            if not (links := [link for link in self.links if link.answers and not link.is_broken]):
                return
            link = links[which % len(links)]
            answer = link.answers.pop(order % len(link.answers))
            if answer.opaque in link.awaited:
                send, reply = link.awaited.pop(answer.opaque)
                if answer.status == NOT_NOW and send.sequence is not None:  # this one did not arrive, so to say
                    for body in send.bodies:
                        self.by_body[body].sent_as[send.partition, send.sequence.number] -= 1
                reply.succeed(answer)

    @rule(which=st.integers(0, 9), count=st.integers(1, 9))
    def notice(self, which: int, count: int) -> None:
        """Replies of a broken connection fail, one after the other."""
        for _ in range(count):
            self.count()
            if links := [link for link in self.links if link.is_broken and link.awaited]:
                links[which % len(links)].notice()

    @rule(which=st.integers(0, 1))
    def execute_late(self, which: int) -> None:
        """A broker with `mput` executes what a broken connection brought."""
        self.count()
        broker = self.brokers[which]
        if broker.late:
            send = broker.late.pop(0)
            if send.sequence is not None:
                broker.execute(send)

    @rule(which=st.integers(0, 1), is_up=st.booleans(), has_mput=st.sampled_from([None, None, None, True, False]))
    def cut(self, which: int, is_up: bool, has_mput: bool | None) -> None:
        """A broker's connections break; perhaps it is down, or replaced by another one."""
        self.count()
        broker = self.brokers[which]
        for link in broker.links:
            if not link.is_broken:
                link.hang_up()
        broker.is_up = is_up
        if has_mput is not None and not broker.late:
            broker.has_mput = has_mput

    @rule(seed=st.integers(0, 2**32 - 1), steps=st.sampled_from([5, 20, 60]), chaos=st.sampled_from([0, 1, 2, 5]))
    def go_on(self, seed: int, steps: int, chaos: int) -> None:
        """Many small steps in any order, with some trouble."""
        dice = random.Random(seed)
        favourite = dice.choice([None, *PARTITIONS])
        for _ in range(steps):
            match dice.choices(range(10), (6, 6, 3, 3, 3, 3, 2, 1, chaos, 1))[0]:
                case 0:
                    self.add(dice.choice([favourite, favourite, None, *PARTITIONS]), 8, dice.randrange(1, 4), b"")
                case 1:
                    self.send(dice.choice(["sent"] * 8 * (6 - chaos) + TROUBLE), 1)
                case 2:
                    self.connect()
                case 3 if self.connecting:
                    self.connected(0, NoBroker if dice.randrange(40) < chaos else None)
                case 4:
                    self.execute(dice.randrange(10), dice.randrange(10), 1)
                case 5:
                    self.answer(dice.randrange(10), dice.randrange(10), 1)
                case 6:
                    self.time_passes(dice.choice([0.02, 0.1, 0.1, 0.3]) if dice.randrange(40) >= chaos else 11.0)
                case 7:
                    self.execute_late(dice.randrange(2))
                case 8 if dice.randrange(2) == 0:
                    has_mput = dice.choice([None, None, None, None, True, False])
                    self.cut(dice.randrange(2), dice.random() < 0.8, has_mput)
                case 9:
                    self.notice(dice.randrange(10), 1)

    # -- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing fails any more: everything is settled."""
        for broker in self.brokers:
            broker.is_up = True
        self.engine.seal_all()
        for _ in range(10_000):
            if self.engine.is_empty:
                return
            self.connect()
            while self.connecting:
                self.connected(0, None)
            self.send("sent", 100)
            self.execute(0, 0, 100)
            self.answer(0, 0, 100)
            self.notice(0, 100)
            if not (self.engine.has_sends or self.engine.has_connects or self.engine.is_empty):
                assert self.engine.next_due < float("inf"), "it waits for nothing"
                self.time_passes(max(self.engine.next_due - self.now, 0.0) + 1e-6)
        raise AssertionError("it never ends")

    def teardown(self) -> None:
        try:
            if next(self.numbers) % 2:
                self.finish()
            self.engine.close()
            self.check()
        finally:
            logging.disable(logging.NOTSET)

    def check(self) -> None:
        assert self.engine.is_empty
        assert self.engine.bytes == 0
        stored = [body for broker in self.brokers for log in broker.stored.values() for body in log]
        assert len(stored) == len(set(stored)), "stored twice"
        failures = []
        acknowledged: dict[Partition, list[tuple[int, bytes]]] = defaultdict(list)
        for message in self.messages:
            outcome = outcome_of(message.handle)
            if isinstance(outcome, SendFailed):
                failures.append(outcome)
                assert isinstance(outcome, NoBroker | SendRefused | SendUnknown)
                assert isinstance(outcome, SendUnknown) or message.body not in stored, "it was said not to be stored"
                continue
            assert message.wanted in (None, outcome.partition)
            log = self.brokers[outcome.partition.broker_id].stored[outcome.partition]
            assert log[outcome.message_id] == message.body
            assert outcome.offset == sum(HEADER_BYTES + len(body) for body in log[: outcome.message_id])
            if message.wanted is not None:
                acknowledged[outcome.partition].append((outcome.offset, message.body))
        assert (self.engine.take_failure() is None) == (not failures)
        for places in acknowledged.values():
            assert places == sorted(places), "in the order of adding"


def outcome_of(handle: SendHandle) -> SendResult | SendFailed:
    assert handle.is_done
    try:
        return handle.result(0)
    except SendFailed as error:
        return error


def test_whatever_happens_each_handle_ends_once_and_tells_the_truth() -> None:
    play(Sending, steps_a_machine=25, steps_an_example=200)
