"""Old messages go from a broker that serves: what a reader of them is told, and what is left of everything else."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.archive.manifest import decode_archive_manifest
from meta_client.client import Client
from meta_client.protocol.messages import iter_frames
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.chroot import Chroot

KEPT = 1024 * 1024
CONFIG = """
[topics.orders]
partitions = 2

[broker]
segment_bytes = 524288
message_bytes_max = 65536

[retention]
bytes = {kept}
when = 0.2
{more}
"""


def started(path: Path, zookeeper: str, more: str = "") -> BrokerProcess:
    return BrokerProcess(path / "data", zookeeper, config=CONFIG.format(kept=KEPT, more=more)).start()


@pytest.fixture
def keeping(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    broker = started(tmp_path, zookeeper.connect)
    try:
        yield broker
    finally:
        broker.kill()


def send(client: Client, first: int, count: int) -> None:
    producer = client.producer()
    for number in range(first, first + count):
        producer.send_async("orders", (b"%d " % number).ljust(1000, b"."), partition=f"0-{number % 2}")
        if number % 100 == 99:  # lest all of one partition come to lie before the other's, and be gone
            producer.flush()
    producer.flush()


def start_of(broker: BrokerProcess, partition: int) -> int:
    """Return the start offset as a reader at 0 learns it."""
    with WireClient(broker.port) as wire:
        answer = wire.get("orders", partition, 0)
    return int(answer.message) if isinstance(answer, Result) and answer.status == 301 else 0


def numbers_left(broker: BrokerProcess, partition: int) -> list[int]:
    with WireClient(broker.port) as wire:
        while True:
            start = start_of(broker, partition)
            try:
                found = wire.read_all("orders", partition, start)
            except AssertionError:
                if start_of(broker, partition) == start:
                    raise
            else:
                return [int(message.payload.split()[0]) for _, message in found]


def test_readers_of_what_is_gone_are_moved_and_the_rest_is_whole(keeping: BrokerProcess, zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client, WireClient(keeping.port) as slow:
        send(client, 0, 400)
        value = slow.get("orders", 0, 0, 60_000)
        send(client, 400, 2_000)
        wait_until(lambda: start_of(keeping, 0) > 0 and start_of(keeping, 1) > 0)
        wait_until(lambda: not (keeping.data / f"{0:020d}.journal").exists())
        assert isinstance(value, Value)
        payloads = [message.payload for _, _, message in iter_frames(value.body)]
        assert [int(payload.split()[0]) for payload in payloads] == list(range(0, 2 * len(payloads), 2))
        inbox = Inbox()
        with client.consumer("late") as consumer:
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(lambda: len(inbox.messages) > 0 and consumer.is_caught_up())
            wait_until(lambda: max(int(m.payload.split()[0]) for m in inbox.messages) == 2_399)
    kept = 0
    for partition in (0, 1):
        left = numbers_left(keeping, partition)
        assert left == list(range(left[0], 2_400, 2))
        kept += len(left)
    assert kept * 1_000 > KEPT * 0.8
    keeping.kill()
    keeping.start()
    for partition in (0, 1):
        assert numbers_left(keeping, partition)[-1] == 2_398 + partition


def test_an_archive_and_what_is_left_make_the_whole(tmp_path: Path, zookeeper: Chroot) -> None:
    archive = tmp_path / "archive"
    broker = started(tmp_path, zookeeper.connect, f'policy = "archive"\narchive = "{archive}"')
    try:
        with Client(zookeeper.connect) as client:
            send(client, 0, 5_000)
            wait_until(lambda: start_of(broker, 0) > 0 and archive.exists() and len(list(archive.iterdir())) > 3)
        assert broker.stop() == 0
    finally:
        broker.kill()
    manifest = decode_archive_manifest((archive / "manifest.jsonl").read_bytes())
    assert [entry.base for entry in manifest.entries] == sorted(int(path.stem) for path in archive.glob("*.journal"))
    assert not {path.name for path in archive.iterdir()} & {path.name for path in broker.data.iterdir()}
    stored = b"".join(path.read_bytes() for where in (archive, broker.data) for path in where.glob("*.journal"))
    assert {int(found) for found in re.findall(rb"(\d+) \.\.\.", stored)} == set(range(5_000))
    broker.audit()
    done = run_metaq("journal", "dump", str(archive), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PUT") > 3


def test_it_is_killed_while_it_deletes_and_loses_nothing_that_should_stay(
    keeping: BrokerProcess, zookeeper: Chroot
) -> None:
    number = 0
    with Client(zookeeper.connect) as client:
        for _ in range(4):
            before = start_of(keeping, 0)
            send(client, number, 3_000)
            number += 3_000
            wait_until(lambda: start_of(keeping, 0) > before)  # noqa: B023 - called at once
            keeping.kill()  # between the choice and the deletion, or in it
            keeping.start()
            for partition in (0, 1):
                left = numbers_left(keeping, partition)
                assert left == list(range(left[0], number, 2))
    assert keeping.stop() == 0
    keeping.audit()
