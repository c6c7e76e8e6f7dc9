"""Partition indexes are derived data: lost or damaged while the broker is down, they come back, answers and all."""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.wal.flush_mode import FlushMode
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.store.index_layout import CHUNK_BYTES, CHUNK_ENTRIES, ENTRY_BYTES
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Count, Get, OffsetQuery, Put, TransactionVerb
from meta_client.protocol.responses import Result, Value
from meta_client.protocol.status import Status
from tests.crash.workload import CONFIG
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient

ORDERS = [PartitionName("orders", number) for number in range(4)]
MANY = 200_000  # runs: seconds of reading, so that what happens meanwhile can be seen
WAIT_S = 60.0  # for an end, on a machine that does much else


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


@pytest.mark.scenario("U24")
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
        want_each(broker)
        assert broker.log[seen:].count("rebuilt from the journal") == rebuilt
        wait_rebuilt(broker, seen, rebuilt)
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


def test_damage_in_an_old_chunk_is_noticed_by_a_reader_and_mended_while_the_broker_serves(tmp_path: Path) -> None:
    """A start does not read that chunk. Nobody is told a wrong offset or byte: its readers are refused for a moment."""
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    try:
        broker.start()
        write_many(broker, 2 * CHUNK_ENTRIES + 7)
        write(broker)
        before = answers(broker)
        assert broker.stop() == 0
        path = broker.data / "index" / "orders-0.index"
        content = bytearray(path.read_bytes())
        content[CHUNK_BYTES + 17 * ENTRY_BYTES + 8] ^= 0x10  # an LSN of the second chunk of three
        path.write_bytes(content)
        seen = len(broker.log)
        broker.start()
        assert "rebuilt" not in broker.log[seen:]
        with WireClient(broker.port) as client:
            offset = len(before_of(before)) // 2
            answer = client.result(OffsetQuery("orders", "g", 0, offset, 1))
            assert answer.status == Status.UNAVAILABLE
            assert "orders-0.index: chunk 1 at byte 16384 is damaged: it is being rebuilt" in answer.text
            client.put("orders", 0, b"goes on")
            deadline = time.monotonic() + 30
            while client.result(OffsetQuery("orders", "g", 0, offset, 1)).status == Status.UNAVAILABLE:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert "index rebuilt partition=orders-0" in broker.log[seen:]
        after = answers(broker)
        assert after != before  # by the one message
        assert before_of(after)[:-1] == before_of(before)
        assert broker.stop() == 0
        assert path.read_bytes()[: len(content)] != content
        seen = len(broker.log)
        broker.start()
        assert answers(broker) == after
        assert "rebuilt" not in broker.log[seen:]
        assert broker.stop() == 0
    finally:
        broker.kill()
    broker.audit()


def test_readers_are_told_when_a_corrupt_journal_ends_the_rebuilding(tmp_path: Path) -> None:
    """Nobody waits for what will not come."""
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    fill(broker.data, 200)
    (broker.data / "index" / "orders-0.index").unlink()
    segment = min(broker.data.glob("*.journal"))
    content = bytearray(segment.read_bytes())
    content[1000] ^= 1
    segment.write_bytes(content)
    try:
        broker.start()
        deadline = time.monotonic() + WAIT_S
        while "index not rebuilt" not in broker.log:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with WireClient(broker.port) as client:
            for request in (Get("orders", "g", 0, 0, 100, 1), Count("orders", 0, 0, 1)):
                answer = client.result(request)
                assert answer.status == Status.UNAVAILABLE
                assert answer.text == "orders-0.index: lost or damaged: it can't be rebuilt: run `metaq journal check`"
    finally:
        broker.kill()


def test_a_start_does_not_wait_until_a_lost_index_is_rebuilt(tmp_path: Path) -> None:
    """The broker serves new publications at once, and those of the lost index once it is rebuilt. It can be stopped
    meanwhile. A checkpoint follows the rebuild, so a kill repeats only the work in progress."""
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    fill(broker.data, MANY)
    (broker.data / "index" / "orders-0.index").unlink()
    try:
        broker.start()
        began = time.monotonic()
        with WireClient(broker.port) as client:
            answer = client.result(OffsetQuery("orders", "g", 0, 70, 1))
            assert answer.status == Status.UNAVAILABLE
            assert "orders-0.index: lost or damaged: it is being rebuilt, ask again later" in answer.text
            assert isinstance(client.ask(Get("orders", "g", 1, 0, 100, 1)), Value)  # others are as ever
            end = client.put("orders", 0, b"goes on").offset
            assert end is not None
            assert isinstance(client.ask(Get("orders", "g", 0, end, 100, 1)), Value)
        while "rebuilding indexes" not in broker.log:
            assert time.monotonic() < began + 30
            time.sleep(0.005)
        told = time.monotonic()
        assert broker.stop() == 0
        assert "index rebuilt" not in broker.log
        assert time.monotonic() - told < WAIT_S
        seen = len(broker.log)
        broker.start()
        wait_rebuilt(broker, seen, 1)
        while "checkpoint written" not in broker.log[broker.log.index("index rebuilt", seen) :]:
            assert time.monotonic() < began + 60
            time.sleep(0.01)
        broker.kill()
        seen = len(broker.log)
        broker.start()
        with WireClient(broker.port) as client:
            assert client.result(OffsetQuery("orders", "g", 0, 70, 1)).text == "70"
        assert broker.stop() == 0
        assert "rebuilt" not in broker.log[seen:]
    finally:
        broker.kill()
    broker.audit()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of its own: run as root")
def test_a_sector_of_an_index_that_cannot_be_read_is_damage_and_no_signal(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None, config=CONFIG)
    try:
        fill(broker.data, 40 * CHUNK_ENTRIES)
        broker.start()
        before = before_of(answers(broker))
        assert broker.stop() == 0
        with FailingDisk(tmp_path) as disk:
            shutil.copytree(broker.data / "index", disk.path / "index")
            shutil.rmtree(broker.data / "index")
            (broker.data / "index").symlink_to(disk.path / "index")
            seen = len(broker.log)
            broker.start()
            assert "rebuilt" not in broker.log[seen:]
            disk.fail(broker.data / "index" / "orders-0.index")
            with WireClient(broker.port) as client:
                answer = client.result(OffsetQuery("orders", "g", 0, 70, 1))
                assert answer.status == Status.UNAVAILABLE
                assert "cannot be read" in answer.text
                assert "Input/output error" in answer.text
            wait_rebuilt(broker, seen, 1)
            assert before_of(answers(broker)) == before
            disk.heal()
            assert broker.stop() == 0
    finally:
        broker.kill()


class FailingDisk:
    """An ext4 in a file, of which nothing can be read behind the first bytes of one of its files once it fails."""

    BYTES = 16 << 20

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk"
        self.path = directory / "mounted"

    def __enter__(self) -> "FailingDisk":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("there is no command mkfs.ext4 on PATH")
        self._image.write_bytes(b"")
        os.truncate(self._image, self.BYTES)
        self.path.mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", self._image], check=True)
        done = subprocess.run(["mount", "-o", "loop", self._image, self.path], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"no loop device: {done.stderr!r}")
        return self

    def __exit__(self, *error: object) -> None:
        self.heal()
        subprocess.run(["umount", "--lazy", self.path], check=True)

    def fail(self, path: Path) -> None:
        """Make *path* unreadable, except for bytes already in memory."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
            block = bytearray(struct.pack("i", 0))
            fcntl.ioctl(file, 1, block)  # FIBMAP
            block_bytes = os.statvfs(path).f_bsize
            os.truncate(self._image, struct.unpack("i", block)[0] * block_bytes)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def heal(self) -> None:
        os.truncate(self._image, self.BYTES)


def fill(data: Path, count: int) -> None:
    """A stopped broker's directory, with *count* runs of one message in orders-0, and one in orders-1."""
    broker = BrokerSection(segment_bytes=4 << 20)
    config = BrokerConfig(data=data, broker_id=0, port=0, broker=broker, flush=FlushMode(1000))
    store = MessageStore.open(config, "test", lambda: None, lambda: 1_700_000_000_000)
    for number in range(count + 1):
        frame = encode_frame(number, 0, b"x" * 50)
        result = store.transactions.put(ORDERS[int(number == count)], [frame], len(frame), 1)
        store.publish(result.updates)
    store.last_checkpoint()
    store.close()


def want_each(broker: BrokerProcess) -> None:
    """Ask something of each index: what a start does not see, it notices now."""
    with WireClient(broker.port) as client:
        for topic, number in ORDERS:
            assert client.result(OffsetQuery(topic, "g", number, 1, 1)).status in (Status.SUCCESS, Status.UNAVAILABLE)


def wait_rebuilt(broker: BrokerProcess, seen: int, count: int) -> None:
    """Until the broker says that *count* indexes are."""
    deadline = time.monotonic() + 30
    while broker.log.count("index rebuilt", seen) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def before_of(found: list[object]) -> list[object]:
    """All messages of orders-0."""
    messages = found[0]
    assert isinstance(messages, list)
    return messages


def write_many(broker: BrokerProcess, count: int) -> None:
    """Write as many extents of one message to orders-0."""
    with WireClient(broker.port) as client:
        client.send(*(Put("orders", 0, 0, None, None, number, b"%d" % number) for number in range(1, count + 1)))
        for _ in range(count):
            answer = client.receive()
            assert isinstance(answer, Result)
            assert answer.is_success


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
    """Return the broker's answers for every partition: all messages, and gets and offset queries at odd places."""
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
