"""A disk that fills under a broker: new messages are refused, everything else goes on, and it passes by itself."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
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
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.requests import Get, Put, TopicVerb, TransactionVerb
from meta_client.protocol.status import Status
from tests.fixtures.broker import BrokerProcess
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


def wait_until(condition: Callable[[], bool], broker: BrokerProcess) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.05)


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
            wait_until(lambda: not try_put(client, count), broker)
            client.verb(V.BEGIN, keys[0])
            assert stored(client) == list(map(body, range(count + 1)))
        assert broker.log.count("disk full, new messages are refused until there is room") >= 1
        assert "disk has room, new messages are taken again" in broker.log
        assert broker.stop() == 0


def test_retention_makes_room_whatever_its_schedule(tmp_path: Path) -> None:
    """Several times what the disk takes goes through it."""
    with broker_on(tmp_path / "disk", CONFIG + RETENTION) as broker, WireClient(broker.port) as client:
        number = 0
        while number < 1_000:
            count = fill(client, number)
            wait_until(lambda: not try_put(client, count), broker)  # noqa: B023 - called at once
            number = count + 1
        assert broker.log.count("segments dropped") > 1


def test_retention_makes_room_on_a_disk_that_a_stranger_has_filled(tmp_path: Path) -> None:
    """The reserve is given up for the checkpoint, which finds no other byte free, and made again."""
    disk = tmp_path / "disk"
    with broker_on(disk, CONFIG + RETENTION) as broker, WireClient(broker.port) as client:
        for number in range(200):
            assert not try_put(client, number)
        wait_until(lambda: (broker.data / RESERVE).exists(), broker)
        fill_up(disk)
        count = fill(client, 200)
        wait_until(lambda: "reserve given up" in broker.log, broker)
        wait_until(lambda: not try_put(client, count), broker)
        assert "segments dropped" in broker.log
        wait_until(lambda: (broker.data / RESERVE).exists(), broker)
        start = client.get("orders", 0, 0)
        assert getattr(start, "status", None) == Status.MOVED


def test_a_start_on_a_disk_without_a_byte_left(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with broker_on(disk) as broker:
        with WireClient(broker.port) as client:
            for number in range(100):
                assert not try_put(client, number)
            wait_until(lambda: (broker.data / RESERVE).exists(), broker)
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
            wait_until(lambda: not try_put(client, count), broker)
        assert broker.stop() == 0


def test_a_start_in_mode_sync_on_a_disk_without_a_byte_left(tmp_path: Path) -> None:
    """Such a master writes a file before its first record."""
    disk = tmp_path / "disk"
    with broker_on(disk, CONFIG + "[replication]\nmode = 'sync'\n") as broker:
        wait_until(lambda: (broker.data / RESERVE).exists(), broker)
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
            wait_until(lambda: (broker.data / RESERVE).exists(), broker)
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
            wait_until(lambda: not try_put(client, 300), broker)
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
