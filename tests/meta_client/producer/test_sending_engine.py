"""The sending engine step by step: which batch goes now, how often, and where. Time is passed in."""

import itertools
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_client.errors import (
    BufferFull,
    ClientClosed,
    Destination,
    NoBroker,
    NoPartition,
    NotConnected,
    NotReplicated,
    PartitionClosed,
    ReplyTimeout,
    SendFailed,
    SendRefused,
    SendUnknown,
    TooManyRequests,
    TryAgain,
)
from meta_client.metadata.topology import TopicView
from meta_client.net.connection import Connection
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.attempts import Connected, ConnectFailed, SendAttempt
from meta_client.producer.batch import SendHandle
from meta_client.producer.partition_queues import IN_FLIGHT_MAX, BatchingConfig
from meta_client.producer.sending_engine import SendingEngine
from meta_client.protocol.answers import NOT_REPLICATED
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.responses import Result
from tests.fixtures.interrupts import interrupted
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

CONFIG = BatchingConfig(batch_bytes=100, linger_s=1.0, delivery_timeout_s=10.0, buffer_bytes_max=2000)
BOTH = (Partition(0, 0), Partition(0, 1), Partition(1, 0))
VIEW = TopicView("orders", BOTH, {0: BrokerUrl("b", 1), 1: BrokerUrl("c", 1)}, BOTH)
ONE_BROKER = TopicView("orders", BOTH[:2], {0: BrokerUrl("b", 1)}, BOTH[:2])
ONLY = Partition(0, 1)

Engine = SendingEngine[SendHandle]


def test_nothing_is_left_of_a_closed_engine_wherever_a_ctrl_c_was_raised() -> None:
    for nth in itertools.count():
        engine = SendingEngine(CONFIG, "me", SendHandle)
        add(engine, 1)
        was_interrupted = interrupted(nth, engine.seal_all)
        engine.close()
        assert engine.is_empty
        if not was_interrupted:
            break


@pytest.fixture
def engine() -> Engine:
    return SendingEngine(CONFIG, "me", SendHandle)


def add(
    engine: Engine, size: int, now: float = 0.0, wanted: Partition | None = ONLY, view: TopicView = VIEW
) -> SendHandle:
    body = b"x" * size
    return engine.maybe_add("orders", wanted, 0, body) or engine.add_first(now, view, wanted, 0, body)


def connection() -> Connection:
    return cast(Connection, object())  # the engine only asks whether it is the same


def connect(engine: Engine, now: float = 0.0, *extensions: str, to: Connection | None = None) -> Connection:
    """Connect to the broker that the engine wants."""
    connecting = engine.maybe_connect()
    assert connecting is not None
    engine.connecting_ended(now, connecting[0], Connected(made := to or connection(), extensions or ("mput",)))
    return made


def sends(engine: Engine, now: float = 0.0) -> list[SendAttempt]:
    """Take all that may be sent now."""
    found = []
    while (send := engine.maybe_send(now)) is not None:
        found.append(send)
    return found


def numbers(found: list[SendAttempt]) -> list[int]:
    return [send.sequence.number for send in found if send.sequence is not None]


def answer(engine: Engine, send: SendAttempt, now: float = 0.0) -> None:
    """The broker has stored it."""
    reply = PendingReply(cast(Connection, send.connection), send.opaque)
    reply.succeed(Result(200, b"7 %d 1000" % send.partition.number, send.opaque))
    engine.answered(now, reply)


def test_a_batch_goes_when_it_is_full_or_has_waited(engine: Engine) -> None:
    add(engine, 20)
    add(engine, 20, 0.5)
    engine.advance(0.9)
    assert not engine.has_connects
    assert engine.next_due == 1.0
    add(engine, 30, 0.9)  # does not fit: the first is sealed
    connect(engine, 0.9)
    (first,) = sends(engine, 0.9)
    assert first.bodies == [b"x" * 20, b"x" * 20]
    engine.advance(1.9)
    (second,) = sends(engine, 1.9)
    assert numbers([first, second]) == [0, 1]


def test_a_message_larger_than_a_batch_goes_alone(engine: Engine) -> None:
    handle = add(engine, 500)
    assert engine.has_full
    connect(engine)
    (send,) = sends(engine)
    answer(engine, send)
    assert handle.result(0).offset == 1000
    assert engine.is_empty


def test_batches_of_a_topic_take_its_partitions_in_turn(engine: Engine) -> None:
    for _ in range(6):
        add(engine, 90, wanted=None)
    connect(engine)
    connect(engine)
    assert {str(send.partition): send.sequence for send in sends(engine)}.keys() == {"0-0", "0-1", "1-0"}
    with pytest.raises(NoPartition):
        engine.add_first(0.0, VIEW, Partition(0, 7), 0, b"")


def test_a_queue_has_a_few_in_flight_and_no_more(engine: Engine) -> None:
    for _ in range(IN_FLIGHT_MAX + 2):
        add(engine, 80)
    connect(engine)
    found = sends(engine)
    assert numbers(found) == list(range(IN_FLIGHT_MAX))
    answer(engine, found[1])
    assert numbers(sends(engine)) == [IN_FLIGHT_MAX]
    assert not engine.is_empty


def test_none_overtakes_those_in_flight_on_another_connection(engine: Engine) -> None:
    add(engine, 80)
    old = connect(engine)
    (first,) = sends(engine)
    add(engine, 80)
    second = engine.maybe_send(0.0)
    assert second is not None
    engine.unsent(0.0, second.opaque, NotConnected("it is lost"))  # noticed before the first one's reply
    assert not engine.has_connects
    engine.lost(0.0, first.opaque, NotConnected("it is lost"))
    engine.advance(5.0)
    assert connect(engine, 5.0) is not old
    assert numbers(sends(engine, 5.0)) == [0, 1]


@given(order=st.permutations(range(IN_FLIGHT_MAX)))
def test_whatever_fails_first_retries_keep_the_order(order: list[int]) -> None:
    engine = SendingEngine(CONFIG, "me", SendHandle)
    for _ in range(IN_FLIGHT_MAX + 1):
        add(engine, 80)
    connect(engine)
    found = sends(engine)
    for index in order:
        engine.lost(5.0, found[index].opaque, ReplyTimeout("10 s"))
    assert engine.overdue(5.0) == []
    assert sends(engine, 5.0) == []  # a back-off follows a failure
    due = engine.next_due
    assert 5.0 < due <= 6.0
    engine.advance(due)
    assert numbers(sends(engine, due)) == list(range(IN_FLIGHT_MAX))


def test_a_request_that_finds_the_connection_full_comes_again_later(engine: Engine) -> None:
    add(engine, 80)
    connect(engine)
    (send,) = sends(engine)
    engine.unsent(0.0, send.opaque, TooManyRequests("too many"))
    assert not engine.has_sends
    engine.advance(1.0)
    assert numbers(sends(engine, 1.0)) == [0]


def test_what_may_go_anywhere_moves_and_the_rest_stays(engine: Engine) -> None:
    staying = add(engine, 80, wanted=Partition(0, 0))
    moving = [add(engine, 80, wanted=None, view=ONE_BROKER) for _ in range(6)]
    engine.seal_all()
    connecting = engine.maybe_connect()
    assert connecting == (0, ("orders",))
    engine.connecting_ended(0.0, 0, ConnectFailed(NotConnected("down"), {"orders": ONE_BROKER}))
    assert not engine.has_connects, "it rests, and nowhere is better"
    engine.advance(engine.next_due)
    assert engine.maybe_connect() == (0, ("orders",))
    engine.connecting_ended(1.0, 0, ConnectFailed(NotConnected("down"), {"orders": VIEW}))
    connect(engine, 1.0)
    while found := sends(engine, 1.0):
        for send in found:
            answer(engine, send, 1.0)
    assert {str(handle.result(0).partition) for handle in moving} == {"1-0"}
    assert not staying.is_done
    assert engine.has_pending("orders", Partition(0, 0))


def test_what_may_have_arrived_does_not_move(engine: Engine) -> None:
    add(engine, 80, wanted=None, view=ONE_BROKER)
    connect(engine)
    (send,) = sends(engine)
    engine.lost(0.0, send.opaque, NotConnected("it is lost"))
    engine.advance(1.0)
    assert engine.maybe_connect() == (0, ("orders",))
    engine.connecting_ended(1.0, 0, ConnectFailed(NotConnected("down"), {"orders": VIEW}))
    assert not engine.has_connects
    engine.advance(2.0)
    connect(engine, 2.0)
    assert [(again.partition, again.sequence) for again in sends(engine, 2.0)] == [(send.partition, send.sequence)]


def test_what_a_broken_connection_did_not_take_may_move(engine: Engine) -> None:
    add(engine, 80, wanted=None, view=ONE_BROKER)
    connect(engine, 0.0, "status")
    (send,) = sends(engine)
    assert send.sequence is None
    engine.unsent(0.0, send.opaque, NotConnected("it is lost"))
    assert engine.maybe_connect() == (0, ("orders",)), "without a back-off"
    engine.connecting_ended(0.0, 0, ConnectFailed(NotConnected("down"), {"orders": VIEW}))
    connect(engine)
    assert [(moved.partition, moved.sequence is None) for moved in sends(engine)] == [(Partition(1, 0), False)]


def refuse(engine: Engine, send: SendAttempt, status: int, text: str, now: float) -> None:
    reply = PendingReply(cast(Connection, send.connection), send.opaque)
    reply.succeed(Result(status, text.encode(), send.opaque))
    engine.answered(now, reply)


def test_a_batch_that_is_refused_for_now_is_sent_again_under_its_number(engine: Engine) -> None:
    handle = add(engine, 100)
    connect(engine)
    (first,) = sends(engine)
    refuse(engine, first, 503, "no room", 0.0)
    assert sends(engine) == []
    engine.advance(1.0)
    (again,) = sends(engine, 1.0)
    assert numbers([again]) == numbers([first])
    answer(engine, again, 1.0)
    assert handle.result(0).partition == again.partition


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([(503, "no room"), (503, "no room")], TryAgain),
        ([(500, NOT_REPLICATED), (500, NOT_REPLICATED)], NotReplicated),
        ([(500, NOT_REPLICATED), (503, "nothing was done")], NotReplicated),  # what the master has stays there
    ],
)
def test_the_refusal_is_told_once_the_time_is_over(
    engine: Engine, answers: list[tuple[int, str]], failure: type[Exception]
) -> None:
    handle = add(engine, 100)
    connect(engine)
    for now, (status, text) in zip((0.0, 10.0), answers, strict=True):
        engine.advance(now)
        (send,) = sends(engine, now)
        refuse(engine, send, status, text, now)
    with pytest.raises(failure):
        handle.result(0)
    assert engine.is_empty


@pytest.mark.parametrize("extensions", ["mput", "status"])
@pytest.mark.parametrize(
    ("status", "text", "failure"),
    [(403, "closed", PartitionClosed), (500, "why?", SendRefused), (500, NOT_REPLICATED, NotReplicated)],
)
def test_a_refusal_means_the_same_in_a_batch_and_singly(
    engine: Engine, extensions: str, status: int, text: str, failure: type[SendFailed]
) -> None:
    handle = add(engine, 100)
    connect(engine, 0.0, extensions)
    (send,) = sends(engine)
    assert (send.sequence is None) == (extensions == "status")
    refuse(engine, send, status, text, 10.0)
    with pytest.raises(failure) as caught:
        handle.result(0)
    assert type(caught.value) is failure
    assert engine.is_empty


def test_a_broker_without_mput_that_takes_nothing_for_now_may_get_it_again(engine: Engine) -> None:
    handle = add(engine, 100)
    connect(engine, 0.0, "status")
    (send,) = sends(engine)
    refuse(engine, send, 503, "no room", 0.0)
    with pytest.raises(TryAgain, match="refused for now: no room"):
        handle.result(0)


def test_messages_for_a_broker_without_mput_go_one_by_one(engine: Engine) -> None:
    handles = [add(engine, 10) for _ in range(3)]
    add(engine, 80)
    connect(engine, 0.0, "status")
    for _ in handles:
        (send,) = sends(engine)
        assert (send.sequence, send.bodies) == (None, [b"x" * 10])
        answer(engine, send)
    assert all(handle.is_done for handle in handles)
    assert len(sends(engine)) == 1


def test_a_batch_that_is_begun_singly_is_not_overtaken_though_its_broker_learns_mput(engine: Engine) -> None:
    add(engine, 10)
    add(engine, 10)
    add(engine, 80)
    engine.seal_all()
    connect(engine, 0.0, "status")
    (single,) = sends(engine)
    engine.lost(0.0, single.opaque, NotConnected("it is lost"))
    engine.advance(1.0)
    connect(engine, 1.0)
    (other,) = sends(engine, 1.0)
    assert (other.sequence, other.bodies) == (None, [b"x" * 10])
    answer(engine, other, 1.0)
    assert numbers(sends(engine, 1.0)) == [1]


def test_a_backlog_for_a_broker_that_stays_away_is_given_up_together(engine: Engine) -> None:
    handles = [add(engine, 80) for _ in range(10)]
    engine.seal_all()
    engine.maybe_connect()
    engine.advance(11.0)
    engine.connecting_ended(11.0, 0, ConnectFailed(NoBroker("it is not up", Destination("orders")), {}))
    assert all(handle.is_done for handle in handles)
    with pytest.raises(NoBroker, match="delivery_timeout_s is over, given up after 0 attempts"):
        handles[9].result(0)


def test_an_overdue_answer_is_noticed_within_a_second(engine: Engine) -> None:
    add(engine, 80)
    link = connect(engine)
    (send,) = sends(engine)
    assert engine.next_due == 1.0
    assert engine.overdue(1.0) == []
    assert engine.overdue(10.5) == [(link, send.opaque, 10.5)]


def test_a_slow_answer_is_not_overdue_while_those_before_it_come() -> None:
    """A broker whose quota makes batches wait answers so."""
    engine = SendingEngine(BatchingConfig(batch_bytes=100, delivery_timeout_s=60.0), "me", SendHandle)
    for _ in range(4):
        add(engine, 500)
    link = connect(engine)
    first, second, third, fourth = sends(engine)
    answer(engine, first, 8.0)
    answer(engine, second, 16.0)
    assert engine.overdue(25.0) == []
    assert engine.overdue(26.5) == [(link, third.opaque, 26.5), (link, fourth.opaque, 26.5)]


def test_an_answer_is_overdue_that_later_ones_have_overtaken() -> None:
    engine = SendingEngine(BatchingConfig(batch_bytes=100, delivery_timeout_s=60.0), "me", SendHandle)
    add(engine, 500)
    link = connect(engine)
    (first,) = sends(engine)
    add(engine, 500, 5.0)
    (second,) = sends(engine, 5.0)
    answer(engine, second, 6.0)
    assert engine.overdue(10.5) == [(link, first.opaque, 10.5)]


def test_memory_is_bounded(engine: Engine) -> None:
    for _ in range(20):
        add(engine, 80)
    assert engine.must_wait("orders", HEADER_BYTES)
    strict = SendingEngine(BatchingConfig(batch_bytes=100, buffer_bytes_max=100, raise_when_full=True), "", SendHandle)
    add(strict, 200)  # one is taken, however large
    with pytest.raises(BufferFull):
        strict.must_wait("orders", HEADER_BYTES)


def test_closing_fails_what_is_left_and_takes_no_more(engine: Engine) -> None:
    sent, waiting = add(engine, 80), add(engine, 80, wanted=Partition(1, 0))
    connect(engine)
    (send,) = sends(engine)
    engine.close()
    with pytest.raises(SendUnknown, match="the client was closed"):
        sent.result(0)
    with pytest.raises(NoBroker, match="the client was closed"):
        waiting.result(0)
    answer(engine, send)  # too late
    engine.unsent(0.0, send.opaque, NotConnected("closed"))
    assert (engine.is_empty, engine.bytes) == (True, 0)
    with pytest.raises(ClientClosed):
        add(engine, 1)


def test_a_configuration_must_make_sense() -> None:
    for wrong in ({"batch_bytes": 0}, {"linger_s": -1.0}, {"delivery_timeout_s": 0.0}, {"buffer_bytes_max": 10}):
        with pytest.raises(ValueError):
            BatchingConfig(**wrong)
