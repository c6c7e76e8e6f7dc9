"""The load: producers, transactions, groups, short connections, each at a steady rate, and an account of every
message."""

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.peer import Peer
from meta_client import Batch, Client, Xid
from meta_client.protocol.answers import parse_offset_range
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Get, OffsetQuery, Offsets, TopicCommand, TopicVerb, Version

TOPICS = ("soak", "branches")
PAST = "past"  # without a reader
PAST_BRANCHES = 30_000  # more than a broker remembers the outcomes of
PAST_THREADS = 16
SIZES = (100, 100, 1_000, 1_000, 1_000, 4_000, 16_000)
ASYNC_RATE = 500  # messages a second
ASYNC_TURN_S = 0.1
SEND_RATE = 40
BRANCH_RATE = 10
LOCAL_RATE = 5
VISIT_RATE = 5
COLD_RATE = 2  # reads of what only the disk has, a second
COLD_BYTES = 256 * 1024
TOPIC_PERIOD_S = 20.0
RESTART_PERIOD_S = 45.0
_HEAD = struct.Struct(">BQq")  # source, number, when it was sent


@dataclass
class Account:
    """Messages sent, and their fate. Sources count their messages from 0."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    acknowledged: Counter[int] = field(default_factory=Counter)  # by source: so many, from 0 on
    undone: set[tuple[int, int]] = field(default_factory=set)  # of rolled back transactions
    seen: dict[int, bytearray] = field(default_factory=dict)  # by source: how often each number came
    delays_ms: list[float] = field(default_factory=list)  # since they were last taken
    consumed: int = 0
    failures: list[str] = field(default_factory=list)

    def hear(self, batch: Batch) -> None:
        """Record a batch. The listener of the group that must get everything."""
        now = time.monotonic_ns()
        with self.lock:
            for message in batch.messages:
                source, number, sent_ns = _HEAD.unpack_from(message.payload)
                counts = self.seen.setdefault(source, bytearray())
                if number >= len(counts):
                    counts.extend(bytes(number + 1024 - len(counts)))
                counts[number] = min(counts[number] + 1, 255)
                self.delays_ms.append((now - sent_ns) / 1e6)
            self.consumed += len(batch.messages)

    def take_delays(self) -> list[float]:
        with self.lock:
            delays, self.delays_ms = self.delays_ms, []
        return delays

    def missing(self) -> int:
        """Count messages acknowledged, not rolled back and not seen."""
        with self.lock:
            return sum(
                (source, number) not in self.undone and not self._times(source, number)
                for source, count in self.acknowledged.items()
                for number in range(count)
            )

    def undone_seen(self) -> int:
        with self.lock:
            return sum(self._times(source, number) > 0 for source, number in self.undone)

    def doubled(self) -> int:
        with self.lock:
            return sum(count > 1 for counts in self.seen.values() for count in counts)

    def _times(self, source: int, number: int) -> int:
        counts = self.seen.get(source, b"")
        return counts[number] if number < len(counts) else 0


class Load:
    """The whole load, in threads of this process, until `stop`."""

    def __init__(self, zookeeper: str, address: tuple[str, int], data: Path, seed: int) -> None:
        self.account = Account()
        self._client = Client(zookeeper)
        self._address = address
        self._data = data
        self._seed = seed
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def fill(self) -> None:
        """Fill the broker's history, which is bounded, so that any growth after that is a leak."""

        def end_branches(number: int) -> None:
            producer = self._client.producer(qualifier=f"past-{number}")
            for count in range(PAST_BRANCHES // PAST_THREADS):
                producer.tpc_begin(Xid.of(f"past-{number}-{count}", "b"), topics=(PAST,))
                producer.send_async(PAST, b"")
                assert producer.tpc_prepare()
                producer.tpc_commit()

        with ThreadPoolExecutor(PAST_THREADS) as threads:
            for done in threads.map(end_branches, range(PAST_THREADS)):
                assert done is None

    def start(self) -> None:
        self._consumer = self._client.consumer("everything")
        for topic in TOPICS:
            self._consumer.subscribe(topic, self.account.hear)
        self._consumer.start()
        jobs: list[tuple[float, Callable[[random.Random], Callable[[], None]]]] = [
            (1 / ASYNC_TURN_S, self._send_async),
            (SEND_RATE, self._send),
            (BRANCH_RATE, self._branch),
            (LOCAL_RATE, self._local),
            (VISIT_RATE, self._visit),
            (COLD_RATE, self._cold_read),
            (1 / TOPIC_PERIOD_S, self._topic),
            (1 / RESTART_PERIOD_S, self._restarting_group),
        ]
        for number, (rate, make) in enumerate(jobs):
            one = make(random.Random(f"{self._seed}-{number}"))
            thread = threading.Thread(target=self._repeat, args=(rate, one), name=make.__name__)
            self._threads.append(thread)
            thread.start()

    def stop_sending(self) -> None:
        """Stop every producer; the consumer continues."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        self.stop_sending()
        self._client.close()

    def _repeat(self, rate: float, one: Callable[[], None]) -> None:
        due = time.monotonic()
        try:
            while not self._stopping.wait(max(0.0, due - time.monotonic())):
                one()
                due = max(due + 1 / rate, time.monotonic() - 1)  # catch up by a second at most
        except Exception as error:  # the verdict reports it
            self.account.failures.append(f"{threading.current_thread().name}: {error!r}")

    def _payload(self, source: int, number: int, random: random.Random) -> bytes:
        size = random.choice(SIZES)
        return _HEAD.pack(source, number, time.monotonic_ns()).ljust(size, b".")

    def _send_async(self, random: random.Random) -> Callable[[], None]:
        producer, account = self._client.producer(), self.account

        def one() -> None:
            first = account.acknowledged[0]
            count = int(ASYNC_RATE * ASYNC_TURN_S)
            for number in range(first, first + count):
                producer.send_async("soak", self._payload(0, number, random))
            producer.flush(30)
            account.acknowledged[0] += count

        return one

    def _send(self, random: random.Random) -> Callable[[], None]:
        producer, account = self._client.producer(), self.account

        def one() -> None:
            producer.send("soak", self._payload(1, account.acknowledged[1], random))
            account.acknowledged[1] += 1

        return one

    def _branch(self, random: random.Random) -> Callable[[], None]:
        producer, account = self._client.producer(qualifier="soak"), self.account

        def one() -> None:
            first, count = account.acknowledged[2], random.randint(1, 4)
            numbers = range(first, first + count)
            is_undone = random.random() < 0.2
            if is_undone:
                with account.lock:
                    account.undone |= {(2, number) for number in numbers}
            producer.tpc_begin(Xid.of(f"soak-{self._seed}-{first}", "b"), topics=("branches",))
            for number in numbers:
                producer.send("branches", self._payload(2, number, random))
            assert producer.tpc_prepare()
            if is_undone:
                producer.tpc_rollback()
            else:
                producer.tpc_commit()
            account.acknowledged[2] += count

        return one

    def _local(self, random: random.Random) -> Callable[[], None]:
        producer, account = self._client.producer(), self.account

        def one() -> None:
            first = account.acknowledged[3]
            with producer.transaction():
                for number in (first, first + 1):
                    producer.send("branches", self._payload(3, number, random))
            account.acknowledged[3] += 2

        return one

    def _visit(self, random: random.Random) -> Callable[[], None]:
        """Connect, request the version, and disconnect, cleanly or not."""

        def one() -> None:
            with socket.create_connection(self._address, timeout=10) as connection:
                connection.sendall(b"".join(encode_request(Version(1))))
                if random.random() < 0.7:
                    assert connection.recv(4096)
                if random.random() < 0.5:
                    connection.sendall(b"quit\r\n")

        return one

    def _cold_read(self, random: random.Random) -> Callable[[], None]:
        """Read from anywhere in a partition, with neither messages nor index in the page cache."""

        def one() -> None:
            for path in (*sorted(self._data.glob("*.journal"))[:-1], *(self._data / "index").glob("*.index")):
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # retention deletes some
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            partition = random.randrange(8)
            with contextlib.closing(Peer(self._address)) as peer:
                (answer,) = peer.ask(Offsets("soak", partition, int(time.time() * 1000) - random.randrange(60_000), 1))
                first, end, _ = parse_offset_range(answer.message)
                if first < end:
                    (answer,) = peer.ask(OffsetQuery("soak", "cold", partition, random.randrange(first, end), 2))
                    peer.exchange(Get("soak", "cold", partition, int(answer.text), COLD_BYTES, 3))

        return one

    def _topic(self, random: random.Random) -> Callable[[], None]:
        """Make a topic, put a message, and delete it."""
        number = 0

        def one() -> None:
            nonlocal number
            number += 1
            name = f"passing-{number % 10}"
            with socket.create_connection(self._address, timeout=10) as connection:
                for verb, settings in ((TopicVerb.CREATE, (("partitions", "2"),)), (TopicVerb.DELETE, ())):
                    connection.sendall(b"".join(encode_request(TopicCommand(verb, name, settings, 1))))
                    assert connection.recv(4096).startswith(b"result 200"), verb

        return one

    def _restarting_group(self, random: random.Random) -> Callable[[], None]:
        """Restart the only member of a second group; its messages are not accounted for."""
        opened = contextlib.ExitStack()

        def one() -> None:
            opened.close()
            consumer = self._client.consumer("coming-and-going")
            consumer.subscribe("soak", lambda batch: None)
            opened.enter_context(consumer)

        return one
