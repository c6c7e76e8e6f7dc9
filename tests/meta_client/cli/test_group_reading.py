"""`metaq consume --group` where a partition cannot be read: it ends, and names partition and reason."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import click
import pytest

from meta_broker.testing.memory.cluster import MemoryCluster
from meta_client.cli import group_reading
from meta_client.cli.group_reading import GroupReading
from meta_client.client import Client
from meta_client.consumer import watching
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import EARLIEST
from meta_client.operations import waiting
from meta_client.operations.waiting import Waiting
from zk.tree.nodes import OffsetNode

SOON = ConsumerConfig(watchdog_s=1.5, fetch_wait_s=0.1, fetch_timeout_s=0.1, backoff_s_max=0.05)


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with MemoryCluster({"orders": 2}) as memory:
        yield memory


def read(client: Client, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], str]:
    """Return the payloads that a member shows, and the error that ends it; blank: none."""
    monkeypatch.setattr(group_reading, "CONFIG", SOON)
    shown: list[bytes] = []
    reading = GroupReading(
        *(client, "orders", "audit", EARLIEST, lambda message: shown.append(message.payload), None),
        Waiting("orders", "memory", "audit"),
    )
    try:
        reading.run(follow=False)
    except click.ClickException as error:
        return shown, error.message
    return shown, ""


def test_an_offset_beyond_the_end(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.client()
    client.producer().send("orders", b"1", partition="0-0")
    client.session.write("/meta/consumers/audit/offsets/orders/0-1", OffsetNode(4096).encode())
    shown, error = read(client, monkeypatch)
    assert shown == [b"1"]
    assert error.startswith("incomplete: orders/0-1 stands at offset 4096 for ")
    assert "beyond" in error


def test_a_closed_partition(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cluster.client()
    client.producer().send("orders", b"1", partition="0-0")
    cluster.close_partition("orders", "0-1")
    shown, error = read(client, monkeypatch)
    assert shown == [b"1"]
    assert error.startswith("incomplete: orders/0-1 stands at offset 0 for ")
    assert "Partition[0-1] has been closed" in error
    cluster.close_partition("orders", "0-1", is_closed=False)
    assert read(client, monkeypatch) == ([], "")


def test_no_offset_of_its_share_can_be_read(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = cluster.client()
    monkeypatch.setattr(client.session, "session_timeout_s", 2.0)  # after which the watchdog reports an owner's lack
    monkeypatch.setattr(waiting, "OWNED_S", 0.1)
    for number in range(2):
        client.session.write(f"/meta/consumers/audit/offsets/orders/0-{number}", b"garbage")
    shown, error = read(client, monkeypatch)
    assert shown == []
    assert error.startswith("incomplete: orders/0-0 for ")
    assert "; orders/0-1 for " in error
    assert "nobody owns it, and it is this consumer's share" in error
    assert "waiting: nobody owns some partitions of orders" in capsys.readouterr().err


def test_its_share_is_held_by_a_member_with_a_slow_listener(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = cluster.client(), cluster.client()
    monkeypatch.setattr(client.session, "session_timeout_s", 0.1)
    monkeypatch.setattr(watching, "TAKEOVER_S", 0.1)
    for number in range(2):
        client.producer().send("orders", b"1", partition=f"0-{number}")
    ends, held = threading.Event(), threading.Semaphore(0)

    def listen(message: ReceivedMessage) -> None:
        held.release()
        ends.wait()

    with other.consumer("audit", config=SOON) as slow, ThreadPoolExecutor(1) as pool:
        slow.subscribe("orders", on_message=listen)
        slow.start()
        for _ in range(2):
            assert held.acquire(timeout=60)
        reading = pool.submit(read, client, monkeypatch)
        try:
            with pytest.raises(TimeoutError):
                reading.result(timeout=4)
        finally:
            ends.set()
        assert reading.result(timeout=60)[1] == ""
