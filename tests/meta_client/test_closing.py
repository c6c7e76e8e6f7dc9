"""Closing a client of threads, with a real broker, ends whatever waits for it."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import psycopg
import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.coordinator.errors import CoordinatorClosed
from meta_client.errors import (
    ClientClosed,
    ConsumerMisuse,
    SendFailed,
    SendUnknown,
    TransactionFailed,
    TransactionUnknown,
)
from meta_client.net.connection import Connection
from meta_client.producer import sender
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.errors import XaError
from meta_client.transactions import CommitStep, TransactionConfig
from meta_client.transactions.databases import init
from meta_client.transactions.table import KEEP_S
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.postgres import Database
from tests.fixtures.replicas import wait_until
from zk.embedded.chroot import Chroot

LONG_S = 600.0


@contextlib.contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


def test_closing_a_client_wakes_every_thread_that_waits_for_it(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "CLOSE_TIMEOUT_S", 0.3)
    waiting: dict[str, Future[object]] = {}
    with (
        _threads(20) as pool,
        Client(
            zookeeper.connect,
            batching=BatchingConfig(batch_bytes=1000, buffer_bytes_max=4000, delivery_timeout_s=LONG_S),
        ) as client,
    ):

        def wait_for(name: str, work: Callable[..., object], *arguments: Any, **named: Any) -> None:
            waiting[name] = pool.submit(work, *arguments, **named)

        def commit() -> None:
            local = client.producer()
            with local.transaction():
                local.send("orders", b"in a transaction")
                is_open.wait()
                broker_paused.wait()

        def prepare() -> None:
            branch = client.producer("closing")
            branch.tpc_begin(Xid(1, b"closing", b""), ["orders"])
            branch.send("orders", b"in a branch")
            is_open.wait()
            broker_paused.wait()
            branch.tpc_prepare()

        is_open, broker_paused = threading.Barrier(3), threading.Event()
        producer = client.producer()
        producer.send("orders", b"first", partition="0-0")
        consumer = client.consumer("reader")
        consumer.subscribe("orders")
        consumer.start()
        assert len(consumer.fetch(10, 60)) == 1
        wait_for("fetch", consumer.fetch, 10)
        wait_for("commit", commit)
        wait_for("prepare", prepare)
        is_open.wait()
        broker.pause()
        broker_paused.set()
        for number in range(4):
            handle = producer.send_async("orders", b"x" * 900, partition=f"0-{number}")
            wait_for(f"handle {number}", handle.result)
        wait_for("full", producer.send_async, "orders", b"x" * 3000)
        wait_for("flush", producer.flush)
        (connection,) = [slot.connection for slot in client.connections._slots.values()]
        assert isinstance(connection, Connection)
        # Four batches, COMMIT, PREPARE; the one put last.
        wait_until(lambda: connection.outstanding == 6, "all the others are sent")
        wait_for("send", producer.send, "orders", b"one", None, "0-1", timeout_s=LONG_S)
        wait_until(lambda: connection.outstanding == 7, "it is sent")
        assert [name for name, work in waiting.items() if work.done()] == []
        broker.kill()
        wait_for("send to nobody", client.producer().send, "orders", b"one", None, "0-2", timeout_s=LONG_S)
        time.sleep(0.2)
        began = time.monotonic()
        client.close()
        wait(waiting.values(), 60)
        assert time.monotonic() - began < LONG_S / 10
        assert [name for name, work in waiting.items() if not work.done()] == []
        outcomes = {name: work.exception() or work.result() for name, work in waiting.items()}
    documented = SendFailed | ClientClosed | TransactionUnknown | TransactionFailed | XaError
    assert outcomes.pop("fetch") == []
    assert [name for name, outcome in outcomes.items() if not isinstance(outcome, documented)] == []
    assert isinstance(outcomes["send"], SendUnknown)  # it had been sent


def test_a_listener_that_closes_its_client_leaves_it_open(zookeeper: Chroot, broker: BrokerProcess) -> None:
    refused: list[str] = []

    def on_message(message: ReceivedMessage) -> None:
        with pytest.raises(ConsumerMisuse) as caught:
            client.close()
        refused.append(str(caught.value))

    with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")
        consumer.subscribe("orders", on_message=on_message)
        consumer.start()
        client.producer().send("orders", b"one")
        wait_until(lambda: len(refused) == 1, "it is refused")
        client.producer().send("orders", b"two")
        wait_until(lambda: len(refused) == 2, "its client goes on")
    assert not _readers()


def test_every_consumer_is_closed_though_the_closing_of_one_is_interrupted(
    zookeeper: Chroot, broker: BrokerProcess
) -> None:
    is_here, may_return = threading.Event(), threading.Event()

    def wait_long(message: ReceivedMessage) -> None:
        is_here.set()
        may_return.wait(60)

    def interrupt(number: int, frame: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGALRM, interrupt)
    client = Client(zookeeper.connect)
    try:
        for group, listener in (("slow", wait_long), ("reader", lambda message: None)):
            consumer = client.consumer(group)
            consumer.subscribe("orders", on_message=listener)
            consumer.start()
        client.producer().send("orders", b"one")
        assert is_here.wait(60)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(InterruptedError):
            client.close()
        assert not _readers()
    finally:
        may_return.set()
        signal.signal(signal.SIGALRM, former)


def _readers() -> list[str]:
    """The threads of group "reader"."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("metaq reader")]


def test_closing_a_client_ends_a_listener_s_wait_for_a_broker(
    zookeeper: Chroot, broker: BrokerProcess, database: Database
) -> None:
    """The listener's transaction is already decided."""
    init(database.dsn, KEEP_S)
    raised: list[BaseException] = []

    def kill(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            broker.kill()

    def on_message(message: ReceivedMessage) -> None:
        try:
            with psycopg.connect(database.dsn) as connection, client.transaction(connection, wait=True) as transaction:
                transaction.send("invoices", message.payload)
        except BaseException as error:
            raised.append(error)
            raise

    with Client(zookeeper.connect, transactions=TransactionConfig(observer=kill)) as client:
        consumer = client.consumer("reader")
        consumer.subscribe("orders", on_message=on_message)
        consumer.start()
        client.producer().send("orders", b"one")
        wait_until(lambda: not broker.is_running, "it is decided")
        time.sleep(0.2)
        assert not raised
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(60)
        if is_stuck := closing.is_alive():
            broker.start()  # so that the test ends
        assert not is_stuck
    assert [type(error) for error in raised] == [CoordinatorClosed]
