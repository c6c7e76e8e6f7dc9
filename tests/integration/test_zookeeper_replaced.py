"""Another ZooKeeper, or an earlier state of it, takes the place of the one that consumers had."""

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from tests.fixtures.broker import running_broker
from tests.fixtures.expiry import empty
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.server import EmbeddedZooKeeper
from zk.groups.listing import list_group
from zk.session.session import ZooKeeperSession

SESSION_MS = 2_000
LATEST = ConsumerConfig(start="latest", commit_period_s=0.1, backoff_s_max=0.2)

Replace = Callable[[EmbeddedZooKeeper, EmbeddedZooKeeper, TcpProxy], object]


def by_an_empty_one(server: EmbeddedZooKeeper, other: EmbeddedZooKeeper, proxy: TcpProxy) -> None:
    empty(server)
    server.start()


def by_another_with_more_changes(server: EmbeddedZooKeeper, other: EmbeddedZooKeeper, proxy: TcpProxy) -> None:
    with ZooKeeperSession(other.connect) as session:
        for number in range(1_000):
            session.write("/elsewhere", b"%d" % number)
    proxy.retarget(int(other.connect.rpartition(":")[2]))


def by_a_state_before_the_group(server: EmbeddedZooKeeper, other: EmbeddedZooKeeper, proxy: TcpProxy) -> None:
    server.kill()
    shutil.rmtree(server.data / "version-2")
    shutil.copytree(server.data / "earlier", server.data / "version-2")
    server.start()


def stored(connect: str) -> int:
    with ZooKeeperSession(connect) as session:
        return sum(it.stored is not None for it in list_group(session, "group").progress)


@contextlib.contextmanager
def restarted_with_a_copy(server: EmbeddedZooKeeper) -> Iterator[None]:
    """Keep the present state as "earlier", before there are sessions that the restart might end."""
    server.kill()
    shutil.copytree(server.data / "version-2", server.data / "earlier")
    server.restart()
    yield


@pytest.mark.parametrize("replace", [by_an_empty_one, by_another_with_more_changes, by_a_state_before_the_group])
def test_a_group_goes_on_where_its_members_were(
    tmp_path: Path, replace: Replace, caplog: pytest.LogCaptureFixture
) -> None:
    """By `start="latest"` alone it would pass over what is sent meanwhile, and say nothing."""
    inbox = Inbox()
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        EmbeddedZooKeeper(tmp_path / "other") as other,
        TcpProxy(int(server.connect.rpartition(":")[2])) as proxy,
        running_broker(tmp_path / "broker", proxy.connect),
        restarted_with_a_copy(server),
        Client(proxy.connect, session_timeout_ms=SESSION_MS) as first,
        Client(proxy.connect, session_timeout_ms=SESSION_MS) as second,
        caplog.at_level(logging.WARNING),
    ):
        producer = first.producer()
        consumers: list[Consumer] = [client.consumer("group", config=LATEST) for client in (first, second)]
        for consumer in consumers:
            consumer.subscribe("orders", inbox)
            consumer.start()
        wait_until(lambda: sorted(len(it.owned()) for it in consumers) == [2, 2])
        wait_until(lambda: all(it.is_caught_up() for it in consumers))
        sent = [b"before %d" % number for number in range(20)]
        for payload in sent:
            producer.send("orders", payload)
        wait_until(lambda: len(inbox.payloads) == len(sent))
        wait_until(lambda: stored(server.connect) == 4)
        proxy.refuse()
        meanwhile = [b"meanwhile %d" % number for number in range(20)]
        for payload in meanwhile:
            producer.send("orders", payload)
        wait_until(lambda: not any(client.session.lease.is_valid() for client in (first, second)))
        replace(server, other, proxy)
        proxy.heal()
        wait_until(lambda: inbox.payloads.keys() >= {*sent, *meanwhile})
        wait_until(lambda: sorted(len(it.owned()) for it in consumers) == [2, 2])
        for consumer in consumers:
            consumer.close()
    assert "going on at offsets from before" in caplog.text
    assert "another tree than before" in caplog.text or "it has lost data" in caplog.text


def test_what_a_member_knew_of_others_partitions_does_not_take_them_back(tmp_path: Path) -> None:
    """It owned them once, long before ZooKeeper was replaced: their owner, who knew more, has stored it."""
    inbox = Inbox()
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        TcpProxy(int(server.connect.rpartition(":")[2])) as proxy,
        running_broker(tmp_path / "broker", server.connect),
        Client(proxy.connect, session_timeout_ms=SESSION_MS) as first,
        Client(server.connect, session_timeout_ms=SESSION_MS) as second,
    ):
        producer = second.producer()

        def send(word: bytes) -> None:
            expected = len(inbox.messages) + 20
            for number in range(20):
                producer.send("orders", b"%s %d" % (word, number))
            wait_until(lambda: len(inbox.messages) >= expected)

        consumers: list[Consumer] = [client.consumer("group", config=LATEST) for client in (first, second)]
        for count, consumer in enumerate(consumers):
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(lambda: sum(len(it.owned()) for it in consumers[: count + 1]) == 4)  # noqa: B023 - at once
            wait_until(lambda: all(it.is_caught_up() for it in consumers[: count + 1]))  # noqa: B023 - at once
            send(b"to %d" % (count + 1))
            wait_until(lambda: stored(server.connect) == 4)
        wait_until(lambda: sorted(len(it.owned()) for it in consumers) == [2, 2])
        proxy.refuse()
        empty(server)
        server.start()
        wait_until(lambda: len(consumers[1].owned()) == 4)
        proxy.heal()
        wait_until(lambda: sorted(len(it.owned()) for it in consumers) == [2, 2])
        send(b"afterwards")
        consumers[1].close()
        wait_until(lambda: len(consumers[0].owned()) == 4)
        send(b"at the end")
        consumers[0].close()
    assert {count for payload, count in inbox.payloads.items() if payload.startswith(b"afterwards")} == {1}
