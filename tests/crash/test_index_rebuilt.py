"""Partition indexes are derived data: lost or damaged while the broker is down, they come back, answers and all."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from journal.records import PartitionName
from journal.xid import XaKey, Xid
from meta_client.protocol.requests import Get, OffsetQuery, TransactionVerb
from tests.crash.workload import CONFIG
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient

ORDERS = [PartitionName("orders", number) for number in range(4)]


def lose(index: Path) -> None:
    (index / "orders-0.index").unlink()


def lose_all(index: Path) -> None:
    shutil.rmtree(index)


def shorten(index: Path) -> None:
    with (index / "orders-0.index").open("r+b") as file:
        file.truncate((index / "orders-0.index").stat().st_size - 1)


def flip(index: Path) -> None:
    content = bytearray((index / "orders-0.index").read_bytes())
    content[len(content) // 2 | 8] ^= 0x10  # somewhere in an LSN: the wrong bytes would be read
    (index / "orders-0.index").write_bytes(content)


def swap(index: Path) -> None:
    (index / "orders-0.index").rename(index / "x")
    (index / "orders-1.index").rename(index / "orders-0.index")
    (index / "x").rename(index / "orders-1.index")


def lengthen(index: Path) -> None:
    with (index / "orders-0.index").open("ab") as file:
        file.write(b"\xff" * 100)


@pytest.mark.parametrize(
    ("damage", "rebuilt"), [(lose, 1), (lose_all, 4), (shorten, 1), (flip, 1), (swap, 2), (lengthen, 0)]
)
def test_the_same_answers_before_and_after(damage: Callable[[Path], None], rebuilt: int, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    try:
        broker.start()
        write(broker)
        assert broker.stop() == 0
        broker.start()
        write(broker)  # the files grow by a second checkpoint
        before = answers(broker)
        assert broker.stop() == 0
        damage(broker.data / "index")
        seen = len(broker.log)
        broker.start()
        assert broker.log[seen:].count("rebuilt from the journal") == rebuilt
        assert answers(broker) == before
        write(broker)
        longer = answers(broker)
        assert longer[: len(before)] != longer
        assert broker.stop() == 0
        seen = len(broker.log)
        broker.start()
        assert "rebuilt" not in broker.log[seen:]  # the files are whole again
        assert answers(broker) == longer
    finally:
        broker.kill()
    broker.audit()


def write(broker: BrokerProcess) -> None:
    """Plain messages and a committed branch over all partitions."""
    random = Random(5)
    with WireClient(broker.port) as client:
        for number in range(80):
            client.put("orders", number % 4, b"%d." % number + bytes(random.randrange(200)))
        key = XaKey(Xid.of("g", "b"), "uq")
        client.verb(TransactionVerb.BEGIN, key)
        for number in range(20):
            client.put("orders", number % 4, b"tx-%d" % number, key)
        client.verb(TransactionVerb.PREPARE, key)
        client.put("orders", 0, b"between")
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, key)


def answers(broker: BrokerProcess) -> list[object]:
    """What the broker says about every partition: all messages, and gets and offset queries at odd places."""
    found: list[object] = []
    with WireClient(broker.port) as client:
        for name in ORDERS:
            messages = client.read_all(*name)
            found.append(messages)
            for offset in [*range(0, 400, 37), *(offset for offset, _ in messages[::9])]:
                found.append(client.ask(Get(*name[:1], "g", name.partition, offset, 333, 1)))
                found.append(client.ask(OffsetQuery(name.topic, "g", name.partition, offset, 1)))
            found.append(client.ask(Get(name.topic, "g", name.partition, 2**63 - 1, 333, 1)))
    return found
