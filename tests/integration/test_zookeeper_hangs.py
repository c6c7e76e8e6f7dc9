"""ZooKeeper hangs (SIGSTOP) under a consumer: what it can't know is not told as known."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from meta_client import aio
from meta_client.cli import group_reading
from meta_client.cli.consumer_admin import ready
from meta_client.cli.group_reading import GroupReading
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import EARLIEST
from meta_client.metrics import LAG_BYTES, LAG_MESSAGES, samples
from meta_client.operations.waiting import Waiting
from tests.fixtures.broker import running_broker
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.server import EmbeddedZooKeeper


class Hanging(EmbeddedZooKeeper):
    """A server that can be stopped: its port accepts connections, and nothing is answered."""

    def hang(self) -> None:
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        self.go_on()
        super().stop()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)


@pytest.fixture
def zookeeper_of_its_own(tmp_path: Path) -> Iterator[Hanging]:
    """With a broker."""
    with Hanging(tmp_path / "zookeeper") as server, running_broker(tmp_path / "broker", server.connect):
        yield server


@pytest.fixture
def client(zookeeper_of_its_own: Hanging) -> Iterator[Client]:
    with Client(zookeeper_of_its_own.connect, session_timeout_ms=4_000) as client:
        yield client
        zookeeper_of_its_own.go_on()


def test_no_member_is_caught_up(zookeeper_of_its_own: Hanging, client: Client) -> None:
    with client.consumer("audit") as consumer:
        consumer.subscribe("orders", Inbox())
        consumer.start()
        wait_until(consumer.is_caught_up)
        zookeeper_of_its_own.hang()
        wait_until(lambda: not client.session.lease.is_valid())
        assert not consumer.is_caught_up()
        wait_until(lambda: not client.session.is_connected)
        assert not consumer.is_caught_up()
        zookeeper_of_its_own.go_on()
        wait_until(consumer.is_caught_up)
        assert len(consumer.owned()) == 4


def test_no_member_that_delivers_nothing_is_ready_or_tells_a_lag(zookeeper_of_its_own: Hanging, client: Client) -> None:
    def lag() -> list[object]:
        return [sample.value for sample in samples(client.consumers) if sample.family in (LAG_BYTES, LAG_MESSAGES)]

    with client.consumer("audit") as consumer:
        consumer.subscribe("orders", inbox := Inbox())
        consumer.start()
        client.producer().send("orders", b"1", partition="0-0")
        wait_until(lambda: len(inbox.messages) == 1 and consumer.is_caught_up())
        assert (lag(), ready(client).why_not) == ([0, 0], ())
        zookeeper_of_its_own.hang()
        wait_until(lambda: not client.session.lease.is_valid())
        client.producer().send("orders", b"2", partition="0-0")
        assert f"ZooKeeper {zookeeper_of_its_own.connect} does not answer" in ready(client).why_not[0]
        assert (lag(), len(inbox.messages)) == ([None, None], 1)
        zookeeper_of_its_own.go_on()
        wait_until(lambda: len(inbox.messages) == 2 and lag() == [0, 0])
        assert ready(client).why_not == ()


def test_no_member_of_tasks_is_caught_up(zookeeper_of_its_own: Hanging) -> None:
    async def consume() -> None:
        async with (
            aio.Client(zookeeper_of_its_own.connect, session_timeout_ms=4_000) as client,
            client.consumer("audit") as consumer,
        ):
            consumer.subscribe("orders")
            await consumer.start()
            await asyncio.to_thread(wait_until, consumer.is_caught_up)
            zookeeper_of_its_own.hang()
            await asyncio.to_thread(wait_until, lambda: not client.session.lease.is_valid())
            assert (consumer.is_caught_up(), consumer.has_whole_share()) == (False, False)
            zookeeper_of_its_own.go_on()
            await asyncio.to_thread(wait_until, lambda: consumer.is_caught_up() and consumer.has_whole_share())

    asyncio.run(consume())


def test_a_consumer_of_given_partitions_needs_no_zookeeper(zookeeper_of_its_own: Hanging, client: Client) -> None:
    with client.consumer(None) as consumer:
        consumer.subscribe("orders", Inbox())
        consumer.assign(("orders", "0-1"))
        consumer.start()
        wait_until(consumer.is_caught_up)
        zookeeper_of_its_own.hang()
        wait_until(lambda: not client.session.is_connected)
        assert consumer.is_caught_up()


def test_reading_as_a_member_waits_and_says_for_what(
    zookeeper_of_its_own: Hanging, client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    client.producer().send("orders", b"1", partition="0-0")
    shown = threading.Event()

    def show(message: ReceivedMessage) -> None:
        del message
        zookeeper_of_its_own.hang()
        wait_until(lambda: not client.session.lease.is_valid())
        shown.set()

    waiting = Waiting("orders", zookeeper_of_its_own.connect, "audit")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(GroupReading(client, "orders", "audit", EARLIEST, show, None, waiting).run, follow=False)
        try:
            assert shown.wait(60)
            with pytest.raises(TimeoutError):
                reading.result(timeout=3 * group_reading.LOOK_S)
            assert f"waiting: ZooKeeper {zookeeper_of_its_own.connect} does not answer" in capfd.readouterr().err
        finally:
            zookeeper_of_its_own.go_on()


def test_reading_as_a_member_waits_for_a_zookeeper_that_starts_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease outlives it for a while, in which this member has its partitions and gets nothing."""
    monkeypatch.setattr(group_reading, "CONFIG", ConsumerConfig(watchdog_s=1.0))
    killed = threading.Event()
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        running_broker(tmp_path / "broker", server.connect),
        Client(server.connect, session_timeout_ms=20_000) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.producer().send("orders", b"1", partition="0-0")

        def show(message: ReceivedMessage) -> None:
            del message
            server.kill()
            killed.set()

        waiting = Waiting("orders", server.connect, "audit")
        reading = pool.submit(GroupReading(client, "orders", "audit", EARLIEST, show, None, waiting).run, follow=False)
        assert killed.wait(60)
        with pytest.raises(TimeoutError):
            reading.result(timeout=3.0)
        assert client.session.lease.is_valid()
        assert f"waiting: ZooKeeper {server.connect} does not answer" in capfd.readouterr().err
        server.restart()
        reading.result(60)


def test_reading_as_a_member_tells_that_nothing_was_stored(zookeeper_of_its_own: Hanging, client: Client) -> None:
    client.producer().send("orders", b"1", partition="0-0")
    waiting = Waiting("orders", zookeeper_of_its_own.connect, "audit")
    reading = GroupReading(client, "orders", "audit", EARLIEST, lambda message: zookeeper_of_its_own.hang(), 1, waiting)
    with pytest.raises(click.ClickException, match=r"not known to be stored: .* orders/0-0; the log says why"):
        reading.run(follow=False)
