"""Reads of what is not in memory: right, in order, bounded, and nobody else waits for the disk."""

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.extents import Extent
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.wall_clock import wall_clock_ms
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.store.cold_read import IN_THREAD, LOOP_SPANS_MAX, ColdRead, PageCacheWindow
from meta_broker.store.cold_reader import IN_FLIGHT_MAX, ColdReader
from meta_broker.store.index_file import IndexCold
from meta_broker.store.index_layout import CHUNK_ENTRIES
from meta_broker.store.memory_limit import memory_bytes
from meta_broker.store.message_store import MessageStore
from meta_broker.store.partition_index import JournalSlice, PartitionIndex
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Fetch, Get, OffsetQuery, Put, Quit, Request, Version
from meta_client.protocol.responses import Data, Response, Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.filters import install_filters
from tests.fixtures.peers import MIB, PROMPT_S, anonymous_bytes, broker_with, wait_until_alone, worst_answer_s
from tests.fixtures.wire import WireClient

ORDERS, STOCK = PartitionName("orders", 0), PartitionName("stock", 0)
WAIT_S = 60.0


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
            put(opened, STOCK, rng.randbytes(rng.choice([21, 30, IN_THREAD.gap_bytes - 200, 2 * IN_THREAD.gap_bytes])))
        yield opened
    finally:
        opened.close()


def put(store: MessageStore, name: PartitionName, frame: bytes) -> None:
    result = store.transactions.put(name, [frame], len(frame), 1)
    store.journal.wait_flushed(store.journal.end, WAIT_S)
    store.publish(result.updates)


def test_a_cold_index_is_read_beside_the_loop_and_answers_keep_their_order(tmp_path: Path) -> None:
    runs = 5 * CHUNK_ENTRIES
    with running_broker(tmp_path / "broker", None) as broker:
        with WireClient(broker.port) as client:
            client.send(*(Put("orders", 0, 0, None, None, number, b"%06d" % number) for number in range(runs)))
            for _ in range(runs):
                assert getattr(client.receive(), "status", None) == 200
        assert broker.stop() == 0
        broker.start()  # which lets go of what the page cache has of the index files
        step = client_frame_bytes(broker)
        with WireClient(broker.port) as client:
            asked: list[Request] = []
            for number in range(runs - 1, 0, -CHUNK_ENTRIES // 3):
                asked.append(OffsetQuery("orders", "g", 0, number * step + 1, len(asked)))
                asked.append(Get("orders", "g", 0, number * step, step, len(asked)))
                asked.append(Version(len(asked)))
            client.send(*asked)
            answers = [client.receive() for _ in asked]
            assert [answer.opaque for answer in answers] == list(range(len(asked)))
            for request, answer in zip(asked, answers, strict=True):
                if isinstance(request, OffsetQuery):
                    assert isinstance(answer, Result)
                    assert answer.text == str(request.offset - 1)
                elif isinstance(request, Get):
                    assert isinstance(answer, Value)
                    assert bytes(answer.body).endswith(b"%06d" % (request.offset // step))
            gets = sum(isinstance(request, Get) for request in asked)
            assert f"cmd_get {gets}" in client.stats()  # each counted once, however often its index was cold
            assert f"cmd_offset {gets}" in client.stats()


def client_frame_bytes(broker: BrokerProcess) -> int:
    """Return the frame size of each message in orders-0, which are alike."""
    with WireClient(broker.port) as client:
        return int(client.stats("offsets")[1].split()[-1]) // (5 * CHUNK_ENTRIES)


def test_what_is_not_in_the_page_cache_of_an_index_is_never_waited_for(tmp_path: Path) -> None:
    path, entries = tmp_path / "orders-0.index", 100 * CHUNK_ENTRIES
    index = PartitionIndex(path)
    for number in range(entries):
        index.publish(IndexUpdate(ORDERS, Offset(number), Extent(Lsn(1000 + number), 1, 1, number)))
    spill = index.spill()
    assert spill is not None
    entry = index.write(spill).mark
    again = PartitionIndex(path)
    assert again.restore(0, entries, entry)
    offset, cold, found = 30_000, 0, list[JournalSlice]()
    while not found:
        try:
            found = list(again.places(offset, 5))
        except IndexCold as error:
            cold += 1
            thread = threading.Thread(target=error.run)
            thread.start()
            thread.join()
    if not cold:
        pytest.skip("a file system that keeps everything in memory")
    assert found == [(1000 + offset + number, 1, 1) for number in range(5)]
    assert 3 <= cold <= 12  # a bisect's worth
    assert list(again.places(offset, 5)) == found


def test_at_once_or_by_a_worker_the_bytes_are_those_of_the_records(store: MessageStore) -> None:
    rng = random.Random(8)
    for name in (ORDERS, STOCK):
        index = store.indexes.by_name[name]
        for _ in range(200):
            offset = rng.randrange(index.end)
            places = list(index.places(offset, rng.choice([1, 1000, 100_000, 4 * MIB])))
            expected = b"".join(store.journal.segments.read(place.lsn, place.bytes) for place in places)
            read = ColdRead(store.journal, places)
            assert read.run() == expected
            assert b"".join(read.cached() or []) == expected
    places = list(store.indexes.by_name[ORDERS].places(0, 4 * MIB))
    there_and_back = [place for _ in range(LOOP_SPANS_MAX) for place in (places[0], places[-1])]
    assert ColdRead(store.journal, there_and_back).cached() is None  # so many system calls are for the worker
    assert ColdRead(store.journal, there_and_back[:20]).cached() is not None


def test_distance_says_what_is_hot_and_the_read_what_is_in_memory(store: MessageStore, tmp_path: Path) -> None:
    index, journal = store.indexes.by_name[ORDERS], store.journal
    oldest, newest = list(index.places(0, 1)), list(index.places(index.end - 20, 20))
    distance = journal.end - oldest[0].lsn
    assert store.page_cache.is_hot(oldest)
    assert not PageCacheWindow(journal, distance - 1).is_hot(oldest)
    assert PageCacheWindow(journal, distance - 1).is_hot(newest)
    data = ColdRead(journal, oldest).run()
    assert ColdRead(journal, oldest).cached() == [data]
    deadline = time.monotonic() + WAIT_S
    while ColdRead(journal, oldest).cached() is not None:
        assert time.monotonic() < deadline, "the file system of the temporary directory does not let go, as ext4 does"
        for path in tmp_path.glob("*.journal"):
            with path.open("rb") as file:
                os.fsync(file.fileno())  # a page that waits for the disk stays, as does the large one around it
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert ColdRead(journal, oldest).run() == data
    assert ColdRead(journal, oldest).cached() == [data]


class BlockedRead(ColdRead):
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


def test_cold_reads_run_in_order_few_at_a_time_and_skip_the_cancelled() -> None:
    async def story() -> None:
        reader, done = ColdReader(), list[int]()
        reads = [BlockedRead(number, done) for number in range(6)]
        futures = [reader.read(read) for read in reads]
        assert await asyncio.to_thread(reads[0].begun.wait, WAIT_S)
        for number in (1, 4):
            futures[number].cancel()  # one is in hand already, the other is not
        reads[0].may_end.set()
        assert await asyncio.wait_for(futures[0], WAIT_S) == b"0"
        assert await asyncio.to_thread(reads[1].begun.wait, WAIT_S)  # and is held: nothing goes on behind its back
        assert len(reader) == 5
        assert not any(read.begun.is_set() for read in reads[IN_FLIGHT_MAX:])
        for read in reads[1:]:
            read.may_end.set()
        assert [await asyncio.wait_for(futures[number], WAIT_S) for number in (2, 3, 5)] == [b"2", b"3", b"5"]
        assert done == [0, 1, 2, 3, 5]
        reads = [BlockedRead(number, done) for number in range(10, 14)]
        futures = [reader.read(read) for read in reads]
        for read in reads[:IN_FLIGHT_MAX]:
            read.may_end.set()
        await asyncio.wait_for(reader.close(), WAIT_S)  # those that wait are given up
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
    with broker_with(tmp_path, hot_read_memory_ratio=0) as broker, WireClient(broker.port) as client:
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
    with broker_with(tmp_path, hot_read_memory_ratio=0) as broker, WireClient(broker.port) as client:
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
    with broker_with(tmp_path, hot_read_memory_ratio=0) as broker, WireClient(broker.port) as client:
        fill(client, 4, 900_000)
        client.socket.sendall(encode_request(Get("orders", "g", 0, 0, 4 * MIB, 7))[0] + b"put orders\r\n")
        assert isinstance(answer := client.receive(), Value)
        assert len(answer.body) > 3 * 900_000
        with pytest.raises(ConnectionError):
            client.receive()


def test_connections_that_end_are_not_read_for_and_those_that_do_not_read_are_bounded(tmp_path: Path) -> None:
    with broker_with(tmp_path, hot_read_memory_ratio=0) as broker, WireClient(broker.port) as client:
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


def test_unreadable_bytes_are_reported_and_harm_no_other_reader(tmp_path: Path) -> None:
    with broker_with(tmp_path, hot_read_memory_ratio=0) as broker, WireClient(broker.port) as client:
        bodies = fill(client, 20, 900_000)
        first = broker.data / f"{0:020d}.journal"
        content = first.read_bytes()
        assert len(list(broker.data.glob("*.journal"))) > 2
        os.truncate(first, 4096)
        answer = client.get("orders", 0, 0)
        assert isinstance(answer, Result)
        assert answer.status == 500
        assert answer.text == (
            f"cannot read orders-0 at offset 0: {first}: it ends at byte 4096, it was truncated: "
            "check the disk, then run `metaq journal check` and `repair`"
        )
        assert "messages unreadable partition=orders-0 offset=0 error=" in broker.log
        assert isinstance(client.get("orders", 0, 19 * (20 + len(bodies[0]))), Value)
        first.write_bytes(content)
        assert client.read_all("orders", 0)[0][1].payload == bodies[0]


def test_a_filter_reads_cold_data_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_filters(tmp_path / "site", monkeypatch)
    config = CONFIG.replace("[broker]\n", "[broker]\nhot_read_memory_ratio = 0\n")
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
