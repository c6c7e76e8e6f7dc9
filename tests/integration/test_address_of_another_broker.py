"""A broker dies and is registered for a while yet, at an address that another broker has by then."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.console.broker_view import Told
from meta_client.console.brokers import ShownCluster, read_cluster
from meta_client.console.reads import Reads, Unknown
from meta_client.consumer.config import ConsumerConfig
from meta_client.errors import SendFailed
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import XaError
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

LASTING = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 60000")
ALONE = """
[topics.alone]
partitions = 1
"""
DEAD, HEIR = Partition(0, 0), Partition(1, 0)


@pytest.fixture
def dead(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "dead", zookeeper.connect, config=LASTING + ALONE) as process:
        yield process


@pytest.fixture
def heir(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "heir", zookeeper.connect, broker_id=1, config=LASTING) as process:
        yield process


def inherit(dead: BrokerProcess, heir: BrokerProcess) -> None:
    """Kill *dead* and start *heir* anew at its address; *dead* may come back at another one."""
    heir.stop()
    dead.kill()
    heir.port, dead.port = dead.port, 0
    heir.start()


def send(producer: Producer, partition: Partition, first: int, count: int) -> list[bytes]:
    payloads = [b"%s %03d" % (str(partition).encode(), number) for number in range(first, first + count)]
    for payload in payloads:
        producer.send("orders", payload, partition=partition)
    return payloads


def test_a_group_goes_on_where_it_was(dead: BrokerProcess, heir: BrokerProcess, zookeeper: Chroot) -> None:
    """It would store the other broker's offsets, and pass over what was acknowledged."""
    inbox = Inbox()
    with (
        Client(zookeeper.connect) as client,
        client.consumer("group", config=ConsumerConfig(backoff_s_max=0.2, commit_period_s=0.1)) as consumer,
    ):
        consumer.subscribe("orders", inbox)
        consumer.start()
        producer = client.producer()
        sent = send(producer, HEIR, 0, 30) + send(producer, DEAD, 0, 10)
        wait_until(lambda: len(inbox.messages) == 40)
        consumer.pause(("orders", DEAD))
        sent += send(producer, DEAD, 10, 100)
        inherit(dead, heir)
        consumer.resume(("orders", DEAD))
        sent += (later := send(producer, HEIR, 30, 30))
        wait_until(lambda: inbox.payloads.keys() >= set(later))
        dead.start()
        sent += send(producer, DEAD, 110, 10)
        wait_until(lambda: len(inbox.payloads) == len(sent))
        assert {str(it.partition) for it in inbox.messages if it.payload.startswith(b"1-")} == {"1-0"}
        assert sorted(inbox.payloads) == sorted(sent)
        assert set(inbox.payloads.values()) == {1}


def test_nothing_meant_for_one_is_done_at_the_other(
    dead: BrokerProcess, heir: BrokerProcess, zookeeper: Chroot
) -> None:
    with Client(zookeeper.connect) as client:
        producer = client.producer()
        send(producer, DEAD, 0, 1)
        preparing = client.producer()
        preparing.tpc_begin(Xid(1, b"x", b"y"), topics=("alone",))
        preparing.send("alone", b"prepared")
        preparing.tpc_prepare()
        inherit(dead, heir)
        with pytest.raises(SendFailed, match=r"broker 1 answers at .*, where broker 0 is registered"):
            producer.send("orders", b"single", partition=DEAD)
        waiting = producer.send_async("orders", b"batch", partition=DEAD)
        with pytest.raises(XaError, match="broker 1 answers at"):
            preparing.tpc_commit()
        listed = run_metaq("txn", "list", "--zk", zookeeper.connect)
        assert listed.returncode == 1
        assert "broker 1 answers at" in listed.stderr
        for words in (["find", "orders", "--key", "k"], ["offsets", "orders"], ["brokers"]):
            done = run_metaq(*words, "--zk", zookeeper.connect)
            assert done.returncode != 0, words
            assert "broker 1 answers at" in done.stderr, words
        shown = asyncio.run(read_cluster(client, Reads()))
        assert isinstance(shown, ShownCluster)
        gone, at_home = (view.master for view in shown.brokers)
        assert isinstance(gone, Unknown)
        assert "broker 1 answers at" in gone.why
        assert isinstance(at_home, Told)
        assert not waiting.is_done
        dead.start()
        assert waiting.result(timeout_s=60).partition == DEAD
        preparing.tpc_commit()
        assert [it.payload for it in client.browse("orders") if it.partition == HEIR] == []
        assert [it.payload for it in client.browse("alone")] == [b"prepared"]
