"""Calls that a consumer refuses, with the remedy; and those that have nothing to do. Against a cluster in memory."""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator

import pytest

from meta_broker.testing.memory.cluster import MemoryCluster
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import ClientClosed, ConsumerMisuse, NothingToRead
from zk.session.session import SessionEvent, SessionState
from zk.tree.nodes import Partition
from zk.tree.paths import InvalidName

CONFIG = ConsumerConfig(backoff_s_max=0.05)
FIRST = Partition(0, 0)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with MemoryCluster({"orders": 2, "stock": 1}) as cluster:
        client = cluster.client()
        for number in range(4):
            client.producer().send("orders", b"%d" % number, partition=FIRST)
        client.producer().send("stock", b"x")
        yield client


@pytest.fixture
def consumer(client: Client) -> Iterator[Consumer]:
    with client.consumer("billing", config=CONFIG) as consumer:
        yield consumer


def nothing(anything: object) -> None:
    del anything


Use = Callable[[Consumer], object]


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda it: it.subscribe("orders", nothing, on_message=nothing), "on_batch and on_message exclude each other"),
        (lambda it: it.subscribe("orders", acknowledge="later"), "'later' is neither 'auto' nor 'manual'"),
        (lambda it: it.subscribe("orders", retries_max=3), "retries_max needs a listener"),
        (lambda it: it.subscribe("orders", on_reject="dead_letter"), "needs ConsumerConfig.dead_letter_directory"),
        (lambda it: it.subscribe("new orders"), "'new orders' is no topic: a name holds no white space"),
        (lambda it: it.subscribe("orders", 5), "topic orders: listener 5 can't be called: give a function"),
        (
            lambda it: it.subscribe("orders", accept="all"),
            "orders: accept 'all' can't be called",
        ),
        (lambda it: it.start(), "subscribes to nothing: call subscribe\\(\\) first"),
        (lambda it: it.assign(), "names all its partitions, at once"),
        (lambda it: it.assign(("orders", "0-0")), "subscribe to orders before assign"),
        (lambda it: it.fetch(), "start\\(\\) it before asking for messages"),
        (lambda it: it.rollback("orders", FIRST), 'not subscribed to with acknowledge="manual"'),
    ],
)
def test_before_a_start(consumer: Consumer, use: Use, why: str) -> None:
    with pytest.raises((ConsumerMisuse, InvalidName, TypeError, ValueError), match=why):
        use(consumer)


def test_once_is_enough(consumer: Consumer) -> None:
    consumer.subscribe("orders")
    with pytest.raises(ConsumerMisuse, match="has been subscribed to already by this consumer"):
        consumer.subscribe("orders")
    consumer.assign(("orders", "0-0"))
    with pytest.raises(ConsumerMisuse, match="names all its partitions, at once"):
        consumer.assign(("orders", "0-1"))


def test_messages_that_are_none_of_its_own(client: Client, consumer: Consumer) -> None:
    consumer.subscribe("orders", acknowledge="manual")
    consumer.assign(("orders", FIRST))
    message = next(iter(client.browse("orders")))
    with pytest.raises(ConsumerMisuse, match="start\\(\\) it before rejecting messages"):
        consumer.reject(message, ValueError())
    consumer.start()
    with pytest.raises(ValueError, match="max_messages 0: ask for one at least"):
        consumer.fetch(0)
    for timeout_s in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"timeout_s is {timeout_s}: give seconds, 0 or more"):
            consumer.fetch(1, timeout_s)
    (first, *_) = consumer.fetch(1, 60)
    assert consumer.rollback("orders", FIRST)
    assert not consumer.acknowledge(first), "it comes again"
    assert not consumer.rollback("orders", Partition(0, 1))
    with pytest.raises(ConsumerMisuse, match="topic stock is not subscribed to by this consumer"):
        consumer.reject(next(iter(client.browse("stock"))), ValueError())
    consumer.reject(message, ValueError("stop"))
    assert consumer.paused() == [("orders", FIRST)]
    assert consumer.findings() == ()
    consumer.close()
    consumer.close()
    with pytest.raises(ConsumerMisuse, match="is closed: make another one"):
        consumer.start()


def test_without_a_group_partitions_are_named(client: Client) -> None:
    with client.consumer(None) as consumer:
        consumer.subscribe("orders")
        with pytest.raises(ConsumerMisuse, match="without a group needs assign"):
            consumer.start()


def test_a_topic_that_nobody_offers_is_not_read(client: Client) -> None:
    with pytest.raises(NothingToRead, match="no broker offers this topic"):
        next(iter(client.browse("none")))


def test_threads_and_sockets_are_not_copied(client: Client, consumer: Consumer) -> None:
    """Closures that Spark sends to its workers are pickled."""
    for thing in (client, client.producer(), consumer):
        kind = type(thing).__name__
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"a {kind} belongs to its process, and can't be pickled or copied"):
                copied(thing)


def test_a_client_that_is_closed_makes_nothing() -> None:
    with MemoryCluster({"orders": 1}) as cluster:
        client = cluster.client()
        client.close()
        client.close()
        for make in (client.producer, lambda: client.consumer("billing"), lambda: client.browse("orders")):
            with pytest.raises(ClientClosed):
                make()


def test_a_listener_can_not_close_its_consumer(client: Client) -> None:
    raised: list[Exception] = []
    done = threading.Event()
    mine = client.consumer("closing")  # others read from the beginning

    def listener(message: ReceivedMessage) -> None:
        del message
        try:
            mine.close()
        except ConsumerMisuse as error:
            raised.append(error)
        done.set()

    mine.subscribe("orders", on_message=listener)
    with mine:
        assert done.wait(60)
    assert "a listener can't close it, it would wait for itself" in str(raised[0])


def test_a_consumer_that_never_started_ends_with_its_session(client: Client) -> None:
    with client.consumer("never") as never:
        never.on_session_event(SessionEvent(SessionState.LOST, 1))
        assert never.owned() == []


def test_a_store_of_offsets_that_does_not_exist() -> None:
    with pytest.raises(ImportError, match="cannot import name 'RedisOffsetStore'"):
        from meta_client.consumer.offset_stores import RedisOffsetStore  # noqa: F401
