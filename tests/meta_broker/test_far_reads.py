"""Reads of what is not in memory: right, in order, bounded, and nobody else waits for the disk."""

import asyncio
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records import PartitionName
from journal.transaction_store import wall_clock_ms
from meta_broker.config import BrokerConfig, BrokerSection
from meta_broker.memory import memory_bytes
from meta_broker.store.far_read import GAP_BYTES, FarRead
from meta_broker.store.far_reads import IN_HAND, FarReads
from meta_broker.store.horizon import HOT_BYTES, Horizon
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Fetch, Get, Put, Quit, Request, Version
from meta_client.protocol.responses import Data, Response, Result, Value
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.filters import install_filters
from tests.fixtures.peers import MIB, PROMPT_S, anonymous_bytes, broker_with, wait_until_alone, worst_answer_s
from tests.fixtures.wire import WireClient

ORDERS, STOCK = PartitionName("orders", 0), PartitionName("stock", 0)
WAIT_S = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Messages of two partitions, of all sizes, in many segments."""
    section = BrokerSection(segment_bytes=1 << 20, message_bytes_max=1 << 19)
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=section)
    opened = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
    try:
        rng = random.Random(7)
        for _ in range(200):
            put(opened, ORDERS, rng.randbytes(rng.choice([21, 100, 3000, 60_000])))
            put(opened, STOCK, rng.randbytes(rng.choice([21, 30, GAP_BYTES - 200, 2 * GAP_BYTES])))
        yield opened
    finally:
        opened.close()


def put(store: MessageStore, name: PartitionName, frame: bytes) -> None:
    done = store.transactions.put(name, [frame], len(frame), 1)
    store.journal.wait_flushed(store.journal.end, WAIT_S)
    store.publish(done.publications)


def test_a_far_read_is_the_bytes_that_a_near_one_is(store: MessageStore) -> None:
    rng = random.Random(8)
    for name in (ORDERS, STOCK):
        index = store.indexes.by_name[name]
        for _ in range(200):
            offset = rng.randrange(index.end)
            places = list(index.places(offset, rng.choice([1, 1000, 100_000, 4 * MIB])))
            near = b"".join(store.slices(places, sum(place.bytes for place in places)))
            assert FarRead(store.journal, places).run() == near


def test_what_is_near_is_told_by_distance_by_age_and_by_a_look(store: MessageStore, tmp_path: Path) -> None:
    index, journal = store.indexes.by_name[ORDERS], store.journal
    oldest, newest = list(index.places(0, 2 * MIB)), list(index.places(index.end - 20, 20))
    distance = journal.end - oldest[0].lsn
    assert distance < HOT_BYTES
    assert store.horizon.is_near(oldest)  # written by this process, just now
    assert not Horizon(journal, distance - 1).is_near(oldest)
    assert Horizon(journal, distance - 1).is_near(newest)
    reopened = Horizon(journal, distance)  # as after a start: somebody must look
    assert reopened.is_near(oldest)
    data = FarRead(journal, oldest).run()
    journal.release()  # mapped pages do not leave memory
    for path in tmp_path.glob("*.journal"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    assert not reopened.is_near(oldest), "the file system of the temporary directory does not let go, as ext4 does"
    assert FarRead(journal, oldest).run() == data
    assert reopened.is_near(oldest)


class Held(FarRead):
    """A disk that takes its time."""

    def __init__(self, number: int, done: list[int]) -> None:
        self._number = number
        self._done = done
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def run(self) -> bytes:
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        self._done.append(self._number)
        return b"%d" % self._number


def test_far_reads_are_done_in_order_few_in_hand_and_none_that_nobody_wants() -> None:
    async def story() -> None:
        far, done = FarReads(), list[int]()
        reads = [Held(number, done) for number in range(6)]
        futures = [far.read(read) for read in reads]
        assert await asyncio.to_thread(reads[0].begun.wait, WAIT_S)
        for number in (1, 4):
            futures[number].cancel()  # one is in hand already, the other is not
        reads[0].may_end.set()
        assert await asyncio.wait_for(futures[0], WAIT_S) == b"0"
        assert await asyncio.to_thread(reads[1].begun.wait, WAIT_S)  # and is held: nothing goes on behind its back
        assert len(far) == 5
        assert not any(read.begun.is_set() for read in reads[IN_HAND:])
        for read in reads[1:]:
            read.may_end.set()
        assert [await asyncio.wait_for(futures[number], WAIT_S) for number in (2, 3, 5)] == [b"2", b"3", b"5"]
        assert done == [0, 1, 2, 3, 5]
        reads = [Held(number, done) for number in range(10, 14)]
        futures = [far.read(read) for read in reads]
        for read in reads[:IN_HAND]:
            read.may_end.set()
        await asyncio.wait_for(far.close(), WAIT_S)  # those that wait are given up
        assert not futures[0].cancelled()
        assert futures[3].cancelled()
        assert not reads[3].begun.is_set()

    asyncio.run(story())


# A broker that reads everything by way of the disk.


def fill(client: WireClient, count: int, size: int) -> list[bytes]:
    """*count* messages of *size* bytes in orders-0, each between two of another partition."""
    bodies = [b"%d:" % number + bytes(size) for number in range(count)]
    for start in range(0, count, 100):
        some = bodies[start : start + 100]
        client.send(*(Put("orders", each, 0, None, None, 1, body) for body in some for each in (0, 1)))
        for _ in range(2 * len(some)):
            assert getattr(client.receive(), "status", None) == 200
    return bodies


@pytest.mark.parametrize(("count", "size"), [(3000, 10), (300, 20_000), (12, 900_000)])
def test_everything_is_read_as_it_was_put(tmp_path: Path, count: int, size: int) -> None:
    with broker_with(tmp_path, memory_ratio=0) as broker, WireClient(broker.port) as client:
        bodies = fill(client, count, size)
        read = client.read_all("orders", 0)
        assert [message.payload for _, message in read] == bodies
        middle = read[count // 2][0]
        got, fetched = client.get("orders", 0, middle), client.ask(Fetch("orders", "g", 0, middle, MIB, 1, 0, 7))
        assert isinstance(got, Value)
        assert isinstance(fetched, Data)
        assert fetched.body == got.body
        assert fetched.log_end > middle


def test_answers_keep_their_order_and_a_goodbye_is_last(tmp_path: Path) -> None:
    with broker_with(tmp_path, memory_ratio=0) as broker, WireClient(broker.port) as client:
        fill(client, 8, 900_000)
        asked: list[Request] = []
        for number in range(0, 90, 3):
            asked += [Get("orders", "g", 0, 0, 4 * MIB, number), Version(number + 1)]
            asked.append(Fetch("orders", "g", 1, number, MIB, 1, 0, number + 2))
        client.send(*asked, Quit(), Version(99))
        answers: list[Response] = [client.receive() for _ in asked]
        assert [answer.opaque for answer in answers] == list(range(90))
        assert {type(answer) for answer in answers} == {Value, Result, Data}
        with pytest.raises(ConnectionError):
            client.receive()


def test_what_was_asked_before_garbage_is_read_and_answered(tmp_path: Path) -> None:
    with broker_with(tmp_path, memory_ratio=0) as broker, WireClient(broker.port) as client:
        fill(client, 4, 900_000)
        client.socket.sendall(encode_request(Get("orders", "g", 0, 0, 4 * MIB, 7))[0] + b"put orders\r\n")
        assert isinstance(answer := client.receive(), Value)
        assert len(answer.body) > 3 * 900_000
        with pytest.raises(ConnectionError):
            client.receive()


def test_connections_that_end_are_not_read_for_and_those_that_do_not_read_are_bounded(tmp_path: Path) -> None:
    with broker_with(tmp_path, memory_ratio=0) as broker, WireClient(broker.port) as client:
        fill(client, 16, 900_000)
        get = encode_request(Get("orders", "g", 0, 0, MIB, 7))[0]
        before = anonymous_bytes(broker.pid)
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", broker.port)) as fickle:
                fickle.sendall(get * 100)
        slow = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(10)]
        for one in slow:
            one.sendall(get * 192)
        assert worst_answer_s(client, 1.0) < PROMPT_S
        assert anonymous_bytes(broker.pid) - before < 100 * MIB
        for one in slow:
            assert one.recv(100).startswith(b"value 1048576 7\r\n")
            one.close()
        wait_until_alone(client)
        client.socket.sendall(get * 1000)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log, broker.log


def test_what_the_disk_does_not_give_back_is_told_and_harms_nobody_else(tmp_path: Path) -> None:
    with broker_with(tmp_path, memory_ratio=0) as broker, WireClient(broker.port) as client:
        bodies = fill(client, 20, 900_000)
        first = broker.data / f"{0:020d}.journal"
        content = first.read_bytes()
        assert len(list(broker.data.glob("*.journal"))) > 2
        os.truncate(first, 4096)
        answer = client.get("orders", 0, 0)
        assert isinstance(answer, Result)
        assert answer.status == 500
        assert answer.text == (
            f"cannot read orders-0 at offset 0: {first}: it ends at byte 4096, somebody cut it: "
            "look after the disk, then run `metaq journal check`"
        )
        assert "messages unreadable partition=orders-0 offset=0 error=" in broker.log
        assert isinstance(client.get("orders", 0, 19 * (20 + len(bodies[0]))), Value)
        first.write_bytes(content)
        assert client.read_all("orders", 0)[0][1].payload == bodies[0]


def test_a_filter_reads_far_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_filters(tmp_path / "site", monkeypatch)
    config = CONFIG.replace("[broker]\n", "[broker]\nmemory_ratio = 0\n")
    config += '\n[filters.orders]\neven = "test-even"\n'
    with running_broker(tmp_path / "broker", None, config=config) as broker, WireClient(broker.port) as client:
        fill(client, 4, 1000)
        answer = client.ask(Get("orders", "even", 0, 0, MIB, 1))
        assert isinstance(answer, Value)
        assert client.ask(Get("orders", "even", 0, len(answer.body), MIB, 2)) == Result(301, b"%d" % (2 * 1022), 2)


def test_memory_is_what_the_control_group_may_use(tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "root"
    physical = memory_bytes(tmp_path / "no file", root)
    assert physical > 1 << 20
    proc.write_text("4:memory:/a/b\n3:cpu,cpuacct:/a\n0::/c/d\n")
    assert memory_bytes(proc, root) == physical
    (root / "c/d").mkdir(parents=True)
    (root / "c/d/memory.max").write_text("max\n")
    (root / "c/memory.max").write_text("900000\n")
    assert memory_bytes(proc, root) == 900_000
    (root / "memory").mkdir()
    (root / "memory/memory.limit_in_bytes").write_text("800000\n")
    assert memory_bytes(proc, root) == 800_000
