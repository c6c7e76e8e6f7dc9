"""Consumers read what retention archived, through the broker: the same bytes as before, whatever happens meanwhile.

A plain reader takes everything as it comes, and records each offset and payload. It judges what is read later.
"""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from journal.archive.manifest import ArchiveManifest, decode_archive_manifest
from journal.records.header import RecordType
from journal.records.xid import XaKey, Xid
from journal.wal.scan import Scanner
from journal.wal.segments import Segments, segment_name
from journal.wal.storage import DirectoryStorage
from meta_client.client import Client
from meta_client.protocol.answers import parse_counted, parse_offset_range
from meta_client.protocol.messages import iter_frames
from meta_client.protocol.requests import Count, Fetch, Get, OffsetQuery, Offsets, Request, TransactionVerb
from meta_client.protocol.responses import READ_FROM_MASTER, Data, Result, Value
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.filters import install_filters
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import Replicas
from tests.fixtures.s3_server import S3Server
from tests.fixtures.wire import WireClient
from tests.integration.conftest import Inbox, wait_until
from tests.meta_broker.store.test_object_archive import bucket
from zk.embedded.chroot import Chroot

SEGMENT = 256 * 1024
CONFIG = """
[topics.orders]
partitions = 2

[topics.stock]
partitions = 1

[broker]
segment_bytes = {segment}
message_bytes_max = 65536
relocate_after_segments = 2
checkpoint_seconds = 1.0

[retention]
bytes = {kept}
when = 0.2
policy = "archive"
archive = "{archive}"
{cache}
"""
PARTITIONS = [("orders", 0), ("orders", 1), ("stock", 0)]
Log = dict[int, bytes]  # payload of each offset


def started(
    data: Path,
    archive: str,
    *,
    is_read: bool = True,
    cache: int = 2 * SEGMENT,
    zookeeper: str | None = None,
    more: str = "",
) -> BrokerProcess:
    line = f"archive_cache_bytes = {cache}" if is_read else ""
    config = CONFIG.format(segment=SEGMENT, kept=2 * SEGMENT, archive=archive, cache=line) + more
    broker = BrokerProcess(data, zookeeper, config=config)
    broker.flush = "interval:50"
    return broker.start()


def read(wire: WireClient, topic: str, partition: int, offset: int, log: Log, end: int | None = None) -> int:
    """Read until there is nothing, or to *end*; returns the next offset. Asks again when it is told to, as clients
    do."""
    deadline = time.monotonic() + 60
    while end is None or offset < end:
        answer = wire.get(topic, partition, offset, 100_000)
        assert isinstance(answer, Value | Result)
        if isinstance(answer, Value):
            for at, after, message in iter_frames(answer.body, offset):
                assert log.setdefault(at, message.payload) == message.payload
                offset = after
            deadline = time.monotonic() + 60
        elif answer.status == 404:
            return offset
        else:
            assert answer.status == 503, answer  # never moved
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)
    return offset


class Recorder(threading.Thread):
    """Reads a partition from its beginning on while it is written."""

    def __init__(self, port: int, topic: str, partition: int) -> None:
        super().__init__()
        self._at = (topic, partition)
        self._port = port
        self._is_over = threading.Event()
        self.log: Log = {}
        self.start()

    def run(self) -> None:
        with WireClient(self._port) as wire:
            offset, is_last = 0, False
            while not is_last:
                is_last = self._is_over.wait(0.02)
                offset = read(wire, *self._at, offset, self.log)

    def finish(self) -> Log:
        self._is_over.set()
        self.join()
        return self.log


def load(port: int, seed: int, count: int) -> None:
    """Puts, and branches over all partitions: short ones, rolled back ones, and some that last for segments."""
    random = Random(seed)
    waiting: list[tuple[int, XaKey]] = []
    with WireClient(port) as wire:
        for number in range(count):
            topic, partition = random.choice(PARTITIONS)
            body = (b"%d-%d " % (seed, number)).ljust(random.randrange(10, 8_000), b".")
            if number % 5:
                wire.put(topic, partition, body)
                continue
            key = XaKey(Xid.of(f"order-{seed}-{number}", "mq"), "test")
            wire.verb(TransactionVerb.BEGIN, key, qualifier="test")
            for name in random.sample(PARTITIONS, 2):
                wire.put(*name, body, key)
                wire.put(*name, b"again " + body, key)
            wire.verb(TransactionVerb.PREPARE, key)
            waiting.append((number + random.choice([0, 0, 3, 150]), key))
            for due, ended in [each for each in waiting if each[0] <= number]:
                waiting.remove((due, ended))
                is_committed = random.random() < 0.8
                wire.verb(TransactionVerb.COMMIT_TWO_PHASE if is_committed else TransactionVerb.ROLLBACK, ended)
        for _, key in waiting:
            wire.verb(TransactionVerb.COMMIT_TWO_PHASE, key)


def recorded(broker: BrokerProcess, seed: int, count: int = 1_000) -> dict[tuple[str, int], Log]:
    """Put the load; return what a plain reader got of each partition meanwhile."""
    recorders = {name: Recorder(broker.port, *name) for name in PARTITIONS}
    load(broker.port, seed, count)
    return {name: recorder.finish() for name, recorder in recorders.items()}


def read_again(broker: BrokerProcess) -> dict[tuple[str, int], Log]:
    found: dict[tuple[str, int], Log] = {name: {} for name in PARTITIONS}
    with WireClient(broker.port) as wire:
        for name, log in found.items():
            read(wire, *name, 0, log)
    return found


def listed(archive: Path) -> ArchiveManifest:
    return decode_archive_manifest((archive / "manifest.jsonl").read_bytes())


def record_types(archive: Path) -> set[int]:
    segments = Segments.open(DirectoryStorage.open_for_reading(archive), None, SEGMENT, writable=False)
    try:
        return {entry.header.record_type for entry in Scanner(segments, segments.start)}
    finally:
        segments.close()


def wait_archived(broker: BrokerProcess) -> None:
    wait_until(lambda: len(list(broker.data.glob("*.journal"))) <= 4, 60)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@contextmanager
def running(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    try:
        yield broker
    finally:
        broker.end()
    broker.audit()


def test_the_archive_gives_what_the_log_gave(tmp_path: Path, archive: Path) -> None:
    with running(started(tmp_path / "data", str(archive))) as broker:
        recorders = {name: Recorder(broker.port, *name) for name in PARTITIONS}
        with WireClient(broker.port) as wire:
            old = XaKey(Xid.of("old", "mq"), "test")
            wire.verb(TransactionVerb.BEGIN, old, qualifier="test")
            for number, name in enumerate(PARTITIONS * 3):
                wire.put(*name, b"old %d" % number, old)
            wire.verb(TransactionVerb.PREPARE, old)
            load(broker.port, 1, 500)
            wait_until(lambda: "branch relocated" in broker.log)
            wire.verb(TransactionVerb.COMMIT_TWO_PHASE, old)
            load(broker.port, 2, 500)
        before = {name: recorder.finish() for name, recorder in recorders.items()}
        assert [sum(payload.startswith(b"old") for payload in log.values()) for log in before.values()] == [3, 3, 3]
        wait_archived(broker)
        assert len(listed(archive).entries) > 10
        assert {RecordType.COMMIT, RecordType.ROLLBACK, RecordType.CARRY} <= record_types(archive)
        assert read_again(broker) == before
        assert sum(path.stat().st_size for path in (broker.data / "archive-cache").iterdir()) <= 2 * SEGMENT
        broker.kill()
        broker.start()
        assert read_again(broker) == before, "after a restart"


def counted_from(wire: WireClient, topic: str, partition: int, offset: int) -> int:
    """Return how many messages there are from *offset* to the end, over as many answers as that takes."""
    messages = 0
    while True:
        start, offset, end, more = parse_counted(ask(wire, Count(topic, partition, offset, wire.opaque())).message)
        assert start <= offset
        messages += more
        if offset == end:
            return messages


def test_each_verb_knows_the_archive(tmp_path: Path, archive: Path) -> None:
    with running(started(tmp_path / "data", str(archive))) as broker:
        before = recorded(broker, seed=2)
        wait_archived(broker)
        with WireClient(broker.port) as wire:
            for (topic, partition), log in before.items():
                offsets = sorted(log)
                end = offsets[-1] + 20 + len(log[offsets[-1]])
                found = parse_offset_range(ask(wire, Offsets(topic, partition, 0, wire.opaque())).message)
                assert (found.start, found.end, found.at) == (0, end, 0)
                late = parse_offset_range(ask(wire, Offsets(topic, partition, 1 << 50, wire.opaque())).message)
                assert late.at == end
                assert counted_from(wire, topic, partition, 0) == len(log)
                assert counted_from(wire, topic, partition, offsets[7]) == len(log) - 7
                nearest = ask(wire, OffsetQuery(topic, "g", partition, offsets[3], wire.opaque())).message
                assert int(nearest) in offsets[:4]
                middle = offsets[len(offsets) // 3]
                fetch = Fetch(topic, "g", partition, middle, 100_000, 1, 30_000, wire.opaque())
                while not isinstance(answer := wire.ask(fetch), Data):
                    assert isinstance(answer, Result)
                    assert answer.status == 503, answer
                frames = list(iter_frames(answer.body, middle))
                assert frames[0][2].payload == log[middle]
                assert (answer.log_end, answer.read_from) == (end, READ_FROM_MASTER)
        assert counted(broker, "reads") > 0
        assert counted(broker, "downloads") > 0


def test_a_consumer_of_a_new_group_gets_everything(tmp_path: Path, archive: Path, zookeeper: Chroot) -> None:
    """By long polls, over partitions that share a connection, from the archive into the log."""
    with running(started(tmp_path / "data", str(archive), zookeeper=zookeeper.connect)) as broker:
        load(broker.port, 10, 400)
        wait_archived(broker)
        log = read_again(broker)
        expected = Counter(payload for name in PARTITIONS[:2] for payload in log[name].values())
        load(broker.port, 11, 10)
        inbox = Inbox()
        with Client(zookeeper.connect) as client, client.consumer("late") as consumer:
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(lambda: len(inbox.messages) >= expected.total() and consumer.is_caught_up())
        got = Counter(message.payload for message in inbox.messages if b"11-" not in message.payload[:9])
        assert got == expected


def test_a_group_with_a_filter_reads_through_it(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_filters(tmp_path / "site", monkeypatch)
    more = '[filters.stock]\ng = "test-even"\n'
    with running(started(tmp_path / "data", str(archive), more=more)) as broker, WireClient(broker.port) as wire:
        for number in range(400):
            wire.put("stock", 0, b"%d:".ljust(4_000, b".") % number)
        wait_archived(broker)
        found: list[int] = []
        offset, deadline = 0, time.monotonic() + 60
        while len(found) < 200:
            answer = wire.get("stock", 0, offset, 100_000)
            if isinstance(answer, Value):
                for _, after, message in iter_frames(answer.body, offset):
                    found.append(int(message.payload.split(b":")[0]))
                    offset = after
            elif isinstance(answer, Result) and answer.status == 301:
                assert int(answer.message) > offset
                offset = int(answer.message)  # behind messages that the filter left out
            assert time.monotonic() < deadline, answer
        assert found == list(range(0, 400, 2))
        assert counted(broker, "reads") > 0


def test_messages_by_time_are_found_in_the_archive(tmp_path: Path, archive: Path) -> None:
    with running(started(tmp_path / "data", str(archive))) as broker:
        load(broker.port, 3, 150)
        between = time.time_ns() // 1_000_000 + 1
        wait_until(lambda: time.time_ns() // 1_000_000 > between)
        load(broker.port, 4, 500)
        wait_archived(broker)
        log = read_again(broker)["orders", 0]
        first = min(at for at, payload in log.items() if b"4-" in payload[:8])
        with WireClient(broker.port) as wire:
            found = parse_offset_range(ask(wire, Offsets("orders", 0, between, wire.opaque())).message)
        assert found.at == first


@pytest.mark.parametrize("is_object_store", [False, True])
def test_damaged_missing_and_pruned_files_are_named_and_never_passed_over(
    tmp_path: Path, archive: Path, s3: S3Server, is_object_store: bool
) -> None:
    place: FilesystemArchive | ObjectArchive
    place = ObjectArchive("tiered/b0") if is_object_store else FilesystemArchive(archive)
    with running(started(tmp_path / "data", place.url)) as broker:
        before = recorded(broker, seed=5, count=500)
        wait_archived(broker)
        broker.kill()
        third = segment_name(2 * SEGMENT)
        whole = place.read(third)
        with WireClient(broker.start().port) as wire:
            place.write(third, whole[:-1] + b"!")
            name, offset, text = first_refused(wire, before)
            assert f"{third} is damaged" in text
            place.write(third, whole[:100])
            assert f"{third} is damaged" in eventually_refused(wire, name, offset, "100 bytes")
            place.remove(third)
            assert f"{third} is missing" in eventually_refused(wire, name, offset, "is missing")
            place.write(third, whole)
            wait_until(lambda: isinstance(wire.get(*name, offset), Value))
            assert read_again(broker) == before
            # Removed from the front, it is a decision: readers go on where the rest begins.
            for number in range(3):
                place.remove(segment_name(number * SEGMENT))
            broker.kill()
            broker.start()
        with WireClient(broker.port) as wire:
            for name, log in before.items():
                start = wait_moved(wire, name)
                offsets = [at for at in sorted(log) if at >= start]
                assert 0 < start == offsets[0]
                rest: Log = {}
                read(wire, *name, start, rest)
                assert rest == {at: log[at] for at in offsets}
                found = parse_offset_range(ask(wire, Offsets(*name, 0, wire.opaque())).message)
                assert (found.start, found.at) == (start, start)


def test_killed_while_it_archives_and_while_it_downloads_it_goes_on(tmp_path: Path, archive: Path) -> None:
    random, log = Random(6), {name: Log() for name in PARTITIONS}
    broker = started(tmp_path / "data", str(archive))
    try:
        for seed in range(60, 66):
            recorders = {name: Recorder(broker.port, *name) for name in PARTITIONS}
            load(broker.port, seed, 120)
            for name, recorder in recorders.items():
                for at, payload in recorder.finish().items():
                    assert log[name].setdefault(at, payload) == payload
            with WireClient(broker.port) as wire:
                for name in PARTITIONS:
                    wire.send(Get(name[0], "g", name[1], 0, 1000, wire.opaque()))
                time.sleep(random.random() / 2)  # wherever it is now
                broker.kill()
            broker.start()
        wait_archived(broker)
        assert read_again(broker) == log
        assert {path.suffix for path in (broker.data / "archive-cache").iterdir()} <= {".journal", ".index"}
    finally:
        broker.end()
    broker.audit()


def test_a_store_that_hangs_delays_nobody_else(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ObjectArchive("hanging/b0")
    broker = started(tmp_path / "data", place.url)
    with running(broker):
        before = recorded(broker, seed=7, count=400)
        wait_archived(broker)
        broker.kill()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            broker.start()
            with WireClient(broker.port) as archived, WireClient(broker.port) as live:
                archived.send(*[Get("orders", "g", 0, 0, 1000, archived.opaque()) for _ in range(3)])
                end = live.put("orders", 0, b"live").offset
                assert end is not None
                assert isinstance(live.get("orders", 0, end), Value)
                for _ in range(3):
                    answer = archived.receive()
                    assert isinstance(answer, Result)
                    assert answer.status == 503
                    assert b"ask again later" in answer.message
            assert broker.stop() == 0, "a stop does not wait for it"
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        broker.start()
        again = read_again(broker)
        assert again["orders", 0].pop(max(again["orders", 0])) == b"live"
        assert again == before


def test_many_readers_of_one_segment_download_it_once(tmp_path: Path, archive: Path) -> None:
    with running(started(tmp_path / "data", str(archive), cache=64 * SEGMENT)) as broker:
        before = recorded(broker, seed=8, count=500)
        wait_archived(broker)
        logs = [Log() for _ in range(8)]

        def read_it(log: Log) -> None:
            with WireClient(broker.port) as wire:
                read(wire, "orders", 0, 0, log)

        threads = [threading.Thread(target=read_it, args=(log,)) for log in logs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert logs == [before["orders", 0]] * 8
        files = len(list((broker.data / "archive-cache").iterdir()))
        assert counted(broker, "downloads") == files


@pytest.mark.parametrize("cuts", [1, 2])
def test_another_place_begins_where_its_first_segment_does(tmp_path: Path, archive: Path, cuts: int) -> None:
    """Until it has one nobody is moved past what the former place has, be its last index still here or not."""
    second = tmp_path / "second"
    with running(started(tmp_path / "data", str(archive))) as broker:
        for _ in range(cuts):
            recorded(broker, 1, 300)
            wait_archived(broker)
        assert broker.stop() == 0
        broker.config_path.write_text(broker.config_path.read_text().replace(str(archive), str(second)))
        broker.start()
        with WireClient(broker.port) as wire:
            answer = wire.get("orders", 0, 0)
            assert isinstance(answer, Result)
            assert answer.status == 500
            assert b"name the archive that has it" in answer.message
            wait_until(lambda: "name the archive that has it" in broker.log)
            load(broker.port, 2, 300)
            wait_until(second.exists, 60)
            begin = wait_moved(wire, ("orders", 0))
            assert parse_offset_range(ask(wire, Offsets("orders", 0, 0, wire.opaque())).message).start == begin
            assert read(wire, "orders", 0, begin, {}) > begin


def test_without_a_cache_readers_are_moved_as_ever(tmp_path: Path, archive: Path) -> None:
    with running(started(tmp_path / "data", str(archive), is_read=False)) as broker:
        load(broker.port, 9, 500)
        with WireClient(broker.port) as wire:
            assert wait_moved(wire, ("orders", 0)) > 0
        wait_until(lambda: (archive / "manifest.jsonl").exists())
        assert not listed(archive).indexes


# -- helpers --------------------------------------------------------------------------------------------------


class FilesystemArchive:
    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._path = path

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        (self._path / name).unlink(missing_ok=True)
        (self._path / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self._path / name).unlink()


class ObjectArchive:
    def __init__(self, root: str) -> None:
        self.url = f"s3://{root}"
        self._root = root
        self._files = bucket(root.partition("/")[0])

    def read(self, name: str) -> bytes:
        data = self._files.cat_file(f"{self._root}/{name}")
        assert isinstance(data, bytes)
        return data

    def write(self, name: str, data: bytes) -> None:
        self._files.pipe_file(f"{self._root}/{name}", data)

    def remove(self, name: str) -> None:
        self._files.rm_file(f"{self._root}/{name}")


def ask(wire: WireClient, request: Request) -> Result:
    """Ask until the archive has been read."""
    deadline = time.monotonic() + 60
    while not (answer := wire.result(request)).is_success:
        assert answer.status == 503, answer
        assert time.monotonic() < deadline, answer
    return answer


def first_refused(wire: WireClient, logs: dict[tuple[str, int], Log]) -> tuple[tuple[str, int], int, str]:
    """Return the first offset that is refused for good, and the text."""
    for name, log in logs.items():
        for offset in sorted(log):
            while isinstance(answer := wire.get(*name, offset, 1), Result) and answer.status == 503:
                time.sleep(0.02)
            if isinstance(answer, Result):
                assert answer.status == 500, answer
                return name, offset, answer.text
    raise AssertionError("everything was read")


def eventually_refused(wire: WireClient, name: tuple[str, int], offset: int, text: str) -> str:
    """Return the refusal once it says *text*: a failed download is not repeated at once."""
    deadline = time.monotonic() + 60
    while not isinstance(answer := wire.get(*name, offset), Result) or text not in answer.text:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    return answer.text


def wait_moved(wire: WireClient, name: tuple[str, int]) -> int:
    """Return where a reader at 0 is moved to."""
    deadline = time.monotonic() + 60
    while not isinstance(answer := wire.get(*name, 0), Result) or answer.status != 301:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    return int(answer.message)


def counted(broker: BrokerProcess, key: str) -> int:
    """Return a number that `stats journal` tells of the archive."""
    with WireClient(broker.port) as wire:
        (words,) = [line.split() for line in wire.stats("journal") if line.startswith("archive ")]
    return int(words[words.index(key) + 1])


def test_a_restored_broker_gets_an_archive_of_its_own(tmp_path: Path, archive: Path) -> None:
    """The old one has other segments at the same LSNs, and would take none: nothing would go until the disk is full."""
    backup, fresh = tmp_path / "backup", tmp_path / "fresh"
    broker = started(tmp_path / "data", str(archive))
    with running(broker):
        load(broker.port, 10, 200)
        wait_archived(broker)
        end = json.loads(run_metaq("backup", str(broker.data), str(backup), "--json").stdout)["end"]
        load(broker.port, 11, 300)
        wait_until(lambda: listed(archive).end > end, 60)
    words = ["restore", str(backup), str(fresh), "--accept-loss", "--yes", "--config", str(broker.config_path)]
    refused = run_metaq(*words)
    assert refused.returncode == 1, refused
    assert f"stop: {archive} has segments of the lost journal up to LSN {listed(archive).end}" in refused.stdout
    assert not fresh.exists()

    before, text = listed(archive), broker.config_path.read_text()
    broker.config_path.write_text(text.replace(str(archive), str(tmp_path / "second")))
    done = run_metaq(*words)
    assert done.returncode == 0, done
    with running(started(fresh, str(tmp_path / "second"))) as successor:
        load(successor.port, 12, 300)
        wait_archived(successor)
        assert listed(tmp_path / "second").end > end
    assert listed(archive) == before


@pytest.mark.parametrize("is_emptied", [False, True], ids=["full_resync", "emptied"])
def test_a_copy_that_began_again_reads_nothing_of_a_history_that_was_given_up(
    tmp_path: Path, archive: Path, zookeeper: Chroot, *, is_emptied: bool
) -> None:
    """Its archive has other records at the same LSNs: what is found there by an old index is no message at all."""
    config = CONFIG.format(
        segment=SEGMENT, kept=2 * SEGMENT, archive=archive, cache=f"archive_cache_bytes = {SEGMENT * 2}"
    )
    plain = config[: config.index("[retention]")]
    with Replicas(tmp_path / "pair", zookeeper.connect, plain) as pair:
        (slave,) = pair.slaves
        assert pair.master.stop() == 0
        pair.master.config_path.write_text(config + "\n[slave]\nfull_resync = true\n")
        pair.master.start()
        assert slave.link is not None
        slave.link.lead_to(pair.master)
        load(pair.master.port, 1, 20)
        wait_until(lambda: pair.is_in_sync(slave), 60)
        slave.link.refuse()
        load(pair.master.port, 2, 300)
        wait_until(lambda: (archive / "manifest.jsonl").exists() and len(listed(archive).entries) > 4, 60)
        slave.kill()
        pair.master.kill()
        former = pair.promote(slave, accept_loss=True)
        load(pair.master.port, 3, 500)
        expected = read_again(pair.master)
        if is_emptied:
            former.kill_and_lose()
        former.slave_id = former.number
        former.start()
        pair.slaves.append(former)
        wait_until(lambda: pair.is_in_sync(former), 60)
        told = ("of a history that was given up", "segments not archived")  # the latter once retention has run
        wait_until(lambda: any(each in former.log for each in told), 60)
        time.sleep(1)
        assert read_again(former) == expected
        assert told[0] in former.log
