"""A disk that fills under a broker: new messages are refused, everything else goes on, and it passes by itself."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.open_journal import JournalConfig
from journal.wal.reserve import NAME as RESERVE
from journal.wal.segments import JournalIdentity
from journal.wal.storage import DirectoryStorage
from meta_broker.store.disk_space import CHECK_S
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.requests import Get, Put, TopicVerb, TransactionVerb
from meta_client.protocol.responses import Result
from meta_client.protocol.status import Status
from tests.fixtures.broker import BrokerProcess, wait_with
from tests.fixtures.small_disk import enlarge, fill_up, small_disk
from tests.fixtures.topic_commands import command
from tests.fixtures.wire import Refused, WireClient

CONFIG = """
[broker]
segment_bytes = 524288
message_bytes_max = 65536
checkpoint_bytes = 262144
checkpoint_seconds = 1.0

[topics.orders]
partitions = 1

[topics.invoices]
partitions = 1
"""
RETENTION = """
[retention]
bytes = 1048576
when = 3600
"""
SIZE = "6m"
V = TransactionVerb
REFUSED = "the disk is full ("


@contextmanager
def broker_on(disk: Path, config: str = CONFIG) -> Iterator[BrokerProcess]:
    with small_disk(disk, SIZE):
        broker = BrokerProcess(disk, None, config=config)  # whose log is on another one
        try:
            yield broker.start()
        finally:
            broker.kill()
        broker.audit()


def body(number: int) -> bytes:
    return (b"%d." % number).ljust(10_000, b".")


def try_put(client: WireClient, number: int) -> str:
    """Put message *number*; why it was refused, if so."""
    answer = client.result(Put("orders", 0, 0, None, None, client.opaque(), body(number)))
    if answer.status == Status.SUCCESS:
        return ""
    assert answer.status == Status.UNAVAILABLE, answer
    return answer.text


def fill(client: WireClient, first: int = 0) -> int:
    """Put until it is refused; how many messages are stored then."""
    for number in range(first, 10_000):
        if why := try_put(client, number):
            assert REFUSED in why
            return number
    raise AssertionError("a disk without end")


def stored(client: WireClient) -> list[bytes]:
    return [message.payload for _, message in client.read_all("orders", 0)]


def test_new_messages_are_refused_and_everything_else_goes_on(tmp_path: Path) -> None:
    keys = [XaKey(Xid.of("in", str(number)), "uq") for number in range(4)]
    disk = tmp_path / "disk"
    with broker_on(disk) as broker:
        with WireClient(broker.port) as client:
            for key in keys:
                client.verb(V.BEGIN, key)
                client.put("invoices", 0, b"before", key)
            client.verb(V.PREPARE, keys[0])
            client.verb(V.PREPARE, keys[3])
            count = fill(client)
            assert count > 200
            with pytest.raises(Refused, match=r"the disk is full \("):
                client.put("invoices", 0, b"more", keys[1])
            with pytest.raises(Refused, match=r"XAException:code=-7,msg=the disk is full \("):
                client.verb(V.BEGIN, XaKey(Xid.of("new", "one"), "uq"))
            client.verb(V.COMMIT_TWO_PHASE, keys[0])
            client.verb(V.ROLLBACK, keys[1])
            client.verb(V.PREPARE, keys[2])
            assert stored(client) == list(map(body, range(count)))
        for end in (broker.kill, broker.stop):  # a restart on the full disk, after a crash and after a stop
            end()
            broker.start()
            with WireClient(broker.port) as client:
                assert stored(client) == list(map(body, range(count)))
                count = fill(client, count)  # what is left of a segment is taken before a start looks for room
                assert parse_keys(client.verb(V.RECOVER, None)) == [keys[2], keys[3]]
        with WireClient(broker.port) as client:
            client.verb(V.COMMIT_TWO_PHASE, keys[3])
            assert [message.payload for _, message in client.read_all("invoices", 0)] == [b"before"] * 2
            enlarge(disk, "16m")
            wait_with(lambda: not try_put(client, count), broker)
            client.verb(V.BEGIN, keys[0])
            assert stored(client) == list(map(body, range(count + 1)))
        assert broker.log.count("disk full, new messages are refused until there is room") >= 1
        assert "disk has room, new messages are taken again" in broker.log
        assert broker.stop() == 0


def test_a_disk_without_inodes_is_full_until_it_has_some(tmp_path: Path) -> None:
    """Though it has bytes enough."""
    disk = tmp_path / "disk"
    with small_disk(disk, "64m,nr_inodes=14"):
        broker = BrokerProcess(disk, None, config=CONFIG)
        try:
            broker.start()
            with WireClient(broker.port) as client:
                count = fill(client)
                assert "it has no inode left, for any file: delete some" in broker.log
                ends = time.monotonic() + 3 * CHECK_S
                while time.monotonic() < ends:
                    assert REFUSED in try_put(client, count)
                    time.sleep(0.1)
                assert "disk has room" not in broker.log
                enlarge(disk, "64m,nr_inodes=100")
                wait_with(lambda: not try_put(client, count), broker)
                assert stored(client) == list(map(body, range(count + 1)))
            assert broker.stop() == 0
        finally:
            broker.kill()
        broker.audit()


@pytest.mark.parametrize("flush", ["sync", "interval:20"])
@pytest.mark.parametrize("size", [1_000, 20_000])
def test_messages_that_come_faster_than_they_are_written_are_refused_all_the_same(
    tmp_path: Path, flush: str, size: int
) -> None:
    """More of them are on their way at once than the reserve has room for."""
    disk = tmp_path / "disk"
    with small_disk(disk, SIZE):
        broker = BrokerProcess(disk, None, config=CONFIG)
        broker.flush = flush
        try:
            broker.start()
            stored_bodies, refusals = 0, list[str]()
            with WireClient(broker.port) as client:
                while len(refusals) < 1_000:
                    client.send(*(Put("orders", 0, 0, None, None, number, b"x" * size) for number in range(250)))
                    for _ in range(250):
                        answer = client.receive()
                        assert isinstance(answer, Result)
                        stored_bodies += answer.is_success
                        refusals += [] if answer.is_success else [answer.text]
                assert all(REFUSED in text for text in refusals), set(refusals)
                assert len(stored(client)) == stored_bodies > 0
            assert broker.stop() == 0
        finally:
            broker.kill()
        broker.audit()


def test_retention_makes_room_whatever_its_schedule(tmp_path: Path) -> None:
    """Several times what the disk takes goes through it."""
    with broker_on(tmp_path / "disk", CONFIG + RETENTION) as broker, WireClient(broker.port) as client:
        number = 0
        while number < 1_000:
            count = fill(client, number)
            wait_with(lambda: not try_put(client, count), broker)  # noqa: B023 - called at once
            number = count + 1
        assert broker.log.count("segments dropped") > 1


def test_retention_makes_room_on_a_disk_that_a_stranger_has_filled(tmp_path: Path) -> None:
    """The reserve is given up for the checkpoint, which finds no other byte free, and made again."""
    disk = tmp_path / "disk"
    with broker_on(disk, CONFIG + RETENTION) as broker, WireClient(broker.port) as client:
        for number in range(200):
            assert not try_put(client, number)
        wait_with(lambda: (broker.data / RESERVE).exists(), broker)
        fill_up(disk)
        count = fill(client, 200)
        wait_with(lambda: "reserve given up" in broker.log, broker)
        wait_with(lambda: not try_put(client, count), broker)
        assert "segments dropped" in broker.log
        wait_with(lambda: (broker.data / RESERVE).exists(), broker)
        start = client.get("orders", 0, 0)
        assert getattr(start, "status", None) == Status.MOVED


def test_a_start_on_a_disk_without_a_byte_left(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with broker_on(disk) as broker:
        with WireClient(broker.port) as client:
            for number in range(100):
                assert not try_put(client, number)
            wait_with(lambda: (broker.data / RESERVE).exists(), broker)
        assert broker.stop() == 0
        stranger = fill_up(disk)
        broker.start()
        with WireClient(broker.port) as client:
            count = fill(client, 100)
            assert stored(client) == list(map(body, range(count)))
        broker.kill()
        stranger.unlink()
        broker.start()
        with WireClient(broker.port) as client:
            wait_with(lambda: not try_put(client, count), broker)
        assert broker.stop() == 0


def test_a_start_in_mode_sync_on_a_disk_without_a_byte_left(tmp_path: Path) -> None:
    """Such a master writes a file before its first record."""
    disk = tmp_path / "disk"
    with broker_on(disk, CONFIG + "[replication]\nmode = 'sync'\n") as broker:
        wait_with(lambda: (broker.data / RESERVE).exists(), broker)
        assert broker.stop() == 0
        fill_up(disk)
        broker.start()
        assert "reserve given up" in broker.log
        assert broker.stop() == 0


def test_the_last_room_is_for_the_next_start(tmp_path: Path) -> None:
    """Operators' decisions take the rest of the segment and the reserve; then they are refused, too."""
    disk = tmp_path / "disk"
    small = CONFIG.replace("segment_bytes = 524288", "segment_bytes = 135168")
    with broker_on(disk, small) as broker:
        with WireClient(broker.port) as client:
            wait_with(lambda: (broker.data / RESERVE).exists(), broker)
            fill_up(disk)
            count = fill(client)
            verbs = itertools.cycle((TopicVerb.CLOSE, TopicVerb.OPEN))
            answers = (command(client, next(verbs), "invoices", partitions="0") for _ in range(20_000))
            assert REFUSED in next(answer.text for answer in answers if not answer.is_success)
            assert "reserve given up" in broker.log
            assert stored(client) == list(map(body, range(count)))
        broker.kill()
        broker.start()
        with WireClient(broker.port) as client:
            assert stored(client) == list(map(body, range(count)))
        assert broker.stop() == 0


def test_a_start_that_has_no_room_for_its_first_record_applies_retention_first(tmp_path: Path) -> None:
    """The directory of a broker that kept no reserve, full to the last record, and less than a segment left."""
    disk = tmp_path / "disk"
    with broker_on(disk) as broker:
        with WireClient(broker.port) as client:
            for number in range(300):
                assert not try_put(client, number)
        assert broker.stop() == 0
        fill_last_segment(disk)
        (disk / RESERVE).unlink()
        os.truncate(stranger := fill_up(disk), stranger.stat().st_size - 100_000)
        before = broker.launch()
        assert broker.wait() == 2
        assert "No space left on device: make room there" in broker.log_from(before)
        broker.config_path.write_text(CONFIG + RETENTION)
        broker.start()
        assert "segments dropped" in broker.log
        with WireClient(broker.port) as client:
            moved = client.result(Get("orders", "g", 0, 0, 1 << 20, client.opaque()))
            assert moved.status == Status.MOVED
            found = [message.payload for _, message in client.read_all("orders", 0, int(moved.text))]
            assert found == list(map(body, range(300)))[-len(found) :] != []
            wait_with(lambda: not try_put(client, 300), broker)
        assert broker.stop() == 0


def fill_last_segment(directory: Path) -> None:
    storage = DirectoryStorage.open_for_writing(directory)
    store = JournalTransactionStore.open(
        storage, JournalIdentity("metaq", 0), JournalConfig(segment_bytes=524_288), version="test"
    )
    while (left := store.journal.segments.end - store.journal.end) > 96:
        size = min(left - 96, 60_000)
        store.put(PartitionName("invoices", 0), [bytes(size)], size, 1)
    store.close()
    storage.close()


def test_below_the_watermark_new_messages_are_refused_and_everything_else_goes_on(tmp_path: Path) -> None:
    """Long before the disk is full: a stranger takes the room, and gives it back in two steps."""
    keys = [XaKey(Xid.of("in", str(number)), "uq") for number in range(2)]
    disk, stranger = tmp_path / "disk", tmp_path / "disk/stranger"
    low = CONFIG.replace("[broker]\n", "[broker]\ndisk_free_bytes_min = 2097152\n")
    with broker_on(disk, low) as broker:
        with WireClient(broker.port) as client:
            for key in keys:
                client.verb(V.BEGIN, key)
                client.put("invoices", 0, b"before", key)
                client.verb(V.PREPARE, key)
            assert not try_put(client, 0)
            found = os.statvfs(disk)
            stranger.write_bytes(bytes(found.f_bfree * found.f_frsize - (1 << 20)))
            wait_with(lambda: bool(try_put(client, 1)), broker)
            assert "broker.disk_free_bytes_min is 2097152" in try_put(client, 1)
            with pytest.raises(Refused, match=r"XAException:code=-7,msg=the disk has"):
                client.verb(V.BEGIN, XaKey(Xid.of("new", "one"), "uq"))
            client.verb(V.COMMIT_TWO_PHASE, keys[0])
            client.verb(V.ROLLBACK, keys[1])
            count = len(stored(client))
            assert [message.payload for _, message in client.read_all("invoices", 0)] == [b"before"]
        assert broker.stop() == 0
        broker.start()  # below it from the first message on
        with WireClient(broker.port) as client:
            assert "broker.disk_free_bytes_min is 2097152" in try_put(client, count)
            free = os.statvfs(disk).f_bfree * os.statvfs(disk).f_frsize
            os.truncate(stranger, stranger.stat().st_size - (2_200_000 - free))  # above it, and not by an eighth
            time.sleep(2 * CHECK_S)
            assert try_put(client, count)
            stranger.unlink()
            wait_with(lambda: not try_put(client, count), broker)
        assert "disk low, new messages are refused until more is free" in broker.log
        assert "disk has room above the watermark again" in broker.log
        assert "disk full" not in broker.log
        assert broker.stop() == 0


def test_retention_goes_on_below_the_watermark_and_ends_it(tmp_path: Path) -> None:
    low = CONFIG.replace("[broker]\n", "[broker]\ndisk_free_bytes_min = 2097152\n") + RETENTION
    with broker_on(tmp_path / "disk", low) as broker, WireClient(broker.port) as client:
        number = 0
        while "disk has room above the watermark again" not in broker.log:
            if try_put(client, number):
                time.sleep(0.05)
            number += 1
        assert "segments dropped" in broker.log
