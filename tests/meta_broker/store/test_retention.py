"""Retention on a real directory: segments dropped and kept, effects on readers, and restarts."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from journal.archive.manifest import decode_archive_manifest
from journal.records.record import PartitionName
from journal.records.xid import XaKey, Xid
from journal.repair.check import check
from journal.replica.follower import JournalFollower
from journal.state.inspection import read_checkpoints
from journal.state.live_branch import AppendResult
from journal.wal.open_journal import JournalConfig
from journal.wal.scan import EndVerdict
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage, Storage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.sections import RetentionSection
from meta_broker.store import partition_index
from meta_broker.store.checkpoint_job import NoCheckpoint
from meta_broker.store.clock import CONFIRM_MS
from meta_broker.store.clock import Clock as BelievingClock
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.indexes import Indexes
from meta_broker.store.message_store import MessageStore
from meta_broker.store.relocation_job import RelocationJob
from meta_client.protocol.answers import CheckpointTaken
from tests.fixtures.warm import warm_places

ORDERS, STOCK = PartitionName("orders", 0), PartitionName("stock", 1)
SEGMENT_BYTES = 4096
HOUR_MS = 3_600_000
MESSAGE = 500  # bytes; seven to a segment
WAIT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms

    def ns(self) -> int:
        return self.ms * 1_000_000


class Stage:
    """A store that is fed by hand, its clock, and everything that was ever published."""

    def __init__(self, store: MessageStore, clock: Clock, worker: ThreadPoolExecutor) -> None:
        self.store = store
        self.relocation = RelocationJob(store.transactions, store.high_watermark, after_segments=4)
        self.clock = clock
        self._worker = worker

    def put(self, name: PartitionName, number: int) -> None:
        frame = message(number)
        self.publish_done(self.store.transactions.put(name, [frame], len(frame), 1))

    def publish_done(self, result: AppendResult) -> None:
        store = self.store
        store.journal.wait_flushed(store.journal.end, WAIT_S)
        store.high_watermark.run_after(result.lsn, store.publish, result.updates)
        store.advance()

    async def ticks(self, count: int = 3) -> None:
        """Tick as the broker does until nothing is under way: choosing, and deleting with the next checkpoint."""
        for _ in range(count):
            self.store.journal.wait_flushed(self.store.journal.end, WAIT_S)
            self.store.advance()
            self.store.checkpoints.maybe_begin(self._worker)
            await self.store.stop_jobs()

    async def checkpoint(self) -> None:
        """Have a checkpoint taken, while everything else goes on."""
        told: list[CheckpointTaken | NoCheckpoint] = []
        self.store.journal.wait_flushed(self.store.journal.end, WAIT_S)
        self.store.checkpoints.request(told.append)
        deadline = time.monotonic() + WAIT_S
        while not told:
            assert time.monotonic() < deadline
            self.store.advance()
            self.store.checkpoints.maybe_begin(self._worker)
            await asyncio.sleep(0.01)
        assert isinstance(told[0], CheckpointTaken), told

    async def mended(self) -> None:
        """Until every index that was damaged is rebuilt, which ticks begin."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while self.store.indexes.damaged:
            assert loop.time() < deadline
            self.store.checkpoints.maybe_begin(self._worker)
            await asyncio.sleep(0.01)

    def read_all(self, name: PartitionName) -> bytes:
        index = self.store.indexes.by_name[name]
        data, offset = b"", index.start
        while offset < index.end:
            places = warm_places(index, offset, 1000)
            data += (found := ColdRead(self.store.journal, places).run())
            offset += len(found)
        return data

    @property
    def segments(self) -> int:
        return len(self.store.journal.segments)


def message(number: int) -> bytes:
    return (b"<%d>" % number).ljust(MESSAGE, b".")


@asynccontextmanager
async def stage(path: Path, section: RetentionSection, clock: Clock | None = None) -> AsyncIterator[Stage]:
    clock = clock or Clock()
    broker = BrokerSection(segment_bytes=SEGMENT_BYTES, checkpoint_seconds=3600.0)
    config = BrokerConfig(data=path, broker_id=0, port=0, broker=broker, retention=section)
    store = MessageStore.open(config, "test", lambda: None, clock, clock=BelievingClock(clock.ns, clock))
    try:
        with ThreadPoolExecutor(1) as worker:
            yield Stage(store, clock, worker)
    finally:
        store.close()


def judged(path: Path) -> Iterator[str]:
    """Return the faults an independent check finds."""
    storage = DirectoryStorage.open_for_reading(path)
    checkpoints = read_checkpoints(storage)
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=False)
    try:
        report = check(segments, checkpoints)
        assert report.verdict is EndVerdict.WHOLE
        if not report.is_sound:
            yield str(report)
    finally:
        segments.close()


def damage_newest_checkpoint(path: Path) -> None:
    newest = max(path.glob("checkpoint.*"), key=lambda found: int(found.suffix[1:]))
    newest.write_bytes(b"damaged")


BY_BYTES = RetentionSection(bytes=2 * SEGMENT_BYTES, when=0.1)
BY_HOURS = RetentionSection(hours=1.0, when=0.1)


def test_by_bytes_the_newest_stay_and_the_partition_begins_at_the_first_that_is_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(70):
                on.put(ORDERS, number)
            before, end = on.segments, on.store.journal.end
            await on.ticks()
            index = on.store.indexes.by_name[ORDERS]
            assert on.segments < before
            assert end - on.store.journal.start_lsn < 4 * SEGMENT_BYTES
            assert end - on.store.journal.start_lsn >= 2 * SEGMENT_BYTES
            assert index.start == on.store.transactions.state.offset_ranges[ORDERS].start > 0
            assert on.read_all(ORDERS) == b"".join(map(message, range(index.start // MESSAGE, 70)))
            start = index.start
        assert list(judged(tmp_path)) == []
        async with stage(tmp_path, BY_BYTES) as on:
            assert on.store.indexes.by_name[ORDERS].start == start
            assert not on.store.indexes.damaged
            on.put(ORDERS, 70)
            assert on.read_all(ORDERS) == b"".join(map(message, range(start // MESSAGE, 71)))

    asyncio.run(story())


def test_by_hours_nothing_younger_goes_and_everything_older_may(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_HOURS) as on:
            for number in range(30):
                on.put(ORDERS, number)
            on.clock.ms += HOUR_MS - 1
            await on.ticks()
            assert on.store.indexes.by_name[ORDERS].start == 0
            on.put(ORDERS, 30)
            on.clock.ms += 1
            await asyncio.sleep(0.15)
            await on.ticks()
            start = on.store.indexes.by_name[ORDERS].start
            assert 0 < start <= 30 * MESSAGE
            assert on.read_all(ORDERS) == b"".join(map(message, range(start // MESSAGE, 31)))
        assert list(judged(tmp_path)) == []

    asyncio.run(story())


def test_without_a_section_nothing_ever_goes(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, RetentionSection(when=0.1)) as on:
            for number in range(40):
                on.put(ORDERS, number)
            on.clock.ms += 1000 * HOUR_MS
            before = on.segments
            await on.ticks()
            assert on.segments == before
            assert on.read_all(ORDERS) == b"".join(map(message, range(40)))

    asyncio.run(story())


@pytest.mark.parametrize("section", [BY_BYTES, BY_HOURS])
def test_a_copy_that_waits_for_its_first_bytes_has_nothing_to_drop(tmp_path: Path, section: RetentionSection) -> None:
    """A slave's tick and stop drop nothing before its first contact with a master."""

    async def story(worker: ThreadPoolExecutor) -> None:
        broker = BrokerSection(segment_bytes=SEGMENT_BYTES, checkpoint_seconds=0.0)
        config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=broker, retention=section)
        store = MessageStore.open_over(config, open_copy)
        try:
            for _ in range(3):
                store.advance()
                store.checkpoints.maybe_begin(worker)
                await store.stop_jobs()
            store.last_checkpoint()
        finally:
            store.close()

    with ThreadPoolExecutor(1) as worker:
        asyncio.run(story(worker))
    assert list(tmp_path.glob("checkpoint.*")) == []


def test_a_copy_whose_own_clock_is_ahead_keeps_what_its_master_keeps(tmp_path: Path) -> None:
    """The slave drops segments by the master's clock, here those older than an hour."""
    wall, steady = Clock(), Clock()

    async def master() -> None:
        async with stage(tmp_path, RetentionSection(when=0.1)) as on:
            for number in range(30):
                on.put(ORDERS, number)

    async def copy(worker: ThreadPoolExecutor) -> None:
        broker = BrokerSection(segment_bytes=SEGMENT_BYTES, checkpoint_seconds=0.0)
        config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=broker, retention=BY_HOURS)
        store = MessageStore.open_over(config, open_copy, clock=BelievingClock(wall.ns, steady))

        async def pass_(ms: int) -> None:
            wall.ms += ms
            steady.ms += ms
            for _ in range(3):
                await asyncio.sleep(0.15)
                store.advance()
                store.checkpoints.maybe_begin(worker)
                await store.stop_jobs()

        try:
            before = len(store.journal.segments)
            await pass_(CONFIRM_MS)
            assert len(store.journal.segments) == before > 3
            await pass_(HOUR_MS)
            assert len(store.journal.segments) == 1
        finally:
            store.close()

    asyncio.run(master())
    wall.ms += 48 * HOUR_MS
    with ThreadPoolExecutor(1) as worker:
        asyncio.run(copy(worker))


def open_copy(storage: Storage, indexes: Indexes) -> JournalFollower:
    config = JournalConfig(segment_bytes=SEGMENT_BYTES)
    return JournalFollower.open(storage, JournalIdentity("metaq", 0), config, sink=indexes)


def test_a_branch_in_doubt_keeps_what_it_put_and_everything_behind_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(10):
                on.put(ORDERS, number)
            transactions = on.store.transactions
            branch = transactions.begin(XaKey(Xid.of("order-1", "mq"), "test"))
            frame = message(999)
            transactions.transactional_put(branch, STOCK, [frame], MESSAGE, 1)
            transactions.prepare(branch)
            assert branch.branch is not None
            first = branch.branch.first_lsn
            for number in range(10, 80):
                on.put(ORDERS, number)
            await on.ticks()
            assert 128 < on.store.journal.start_lsn <= first
            on.publish_done(transactions.commit(branch, one_phase=False))
            # Committed, it is among the newest of its partition: that alone does not make it older.
            await asyncio.sleep(0.15)
            await on.ticks()
            assert on.read_all(STOCK) in (frame, b"")
            assert on.read_all(ORDERS).endswith(message(79))
        assert list(judged(tmp_path)) == []

    asyncio.run(story())


def test_messages_that_were_put_early_and_committed_late_take_no_younger_ones_with_them(tmp_path: Path) -> None:
    """Offsets in [0, n) younger than the promise stand before a committed one that is older."""

    async def story() -> None:
        async with stage(tmp_path, BY_HOURS) as on:
            transactions = on.store.transactions
            branch = transactions.begin(XaKey(Xid.of("order-1", "mq"), "test"))
            transactions.transactional_put(branch, ORDERS, [message(999)], MESSAGE, 1)
            transactions.prepare(branch)
            for number in range(20):
                on.put(STOCK, number)
            on.clock.ms += 2 * HOUR_MS
            for number in range(20):
                on.put(ORDERS, number)
            on.publish_done(transactions.commit(branch, one_phase=False))
            await on.ticks()
            expected = b"".join(map(message, [*range(20), 999]))
            assert on.read_all(ORDERS) == expected, "a young message went because an old one stands behind it"
            for number in range(20, 40):  # so that a segment's base parts ORDERS from what stays
                on.put(STOCK, number)
            on.clock.ms += 2 * HOUR_MS
            on.put(STOCK, 40)
            await asyncio.sleep(0.15)
            await on.ticks()
            assert on.store.journal.start_lsn > 128
            assert on.read_all(ORDERS) == expected[on.store.indexes.by_name[ORDERS].start :]
        assert list(judged(tmp_path)) == []

    asyncio.run(story())


def test_a_read_in_flight_finishes_on_a_segment_that_is_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(70):
                on.put(ORDERS, number)
            places = list(on.store.indexes.by_name[ORDERS].places(0, 5 * MESSAGE))
            read = ColdRead(on.store.journal, places)
            await on.ticks()
            assert on.store.indexes.by_name[ORDERS].start > 5 * MESSAGE
            assert not (tmp_path / f"{0:020d}.journal").exists()
            assert b"".join(read.cached() or []) == read.run() == b"".join(map(message, range(5)))

    asyncio.run(story())


def test_a_lost_index_is_rebuilt_from_what_is_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            transactions = on.store.transactions
            for number in range(80):
                if number % 10 == 5:
                    branch = transactions.begin(XaKey(Xid.of(f"order-{number}", "mq"), "test"))
                    for name in (ORDERS, STOCK, ORDERS):
                        transactions.transactional_put(branch, name, [message(number)], MESSAGE, 1)
                        on.put(ORDERS, number)
                    on.publish_done(transactions.commit(branch, one_phase=True))
                else:
                    on.put(ORDERS, number)
            await on.ticks()
            assert on.store.journal.start_lsn > 128
            expected = {name: on.read_all(name) for name in (ORDERS, STOCK)}
        for file in (tmp_path / "index").iterdir():
            file.unlink()
        async with stage(tmp_path, BY_BYTES) as on:
            assert on.store.indexes.damaged.keys() == {ORDERS, STOCK}
            await on.mended()
            assert {name: on.read_all(name) for name in (ORDERS, STOCK)} == expected

    asyncio.run(story())


def test_an_index_file_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_index, "RENEWED_ENTRIES_MIN", 8)

    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(300):
                on.put(ORDERS, number)
                if number % 30 == 29:
                    await asyncio.sleep(0.15)  # until retention looks again
                    await on.ticks()
            expected = on.read_all(ORDERS)
            assert len(expected) > MESSAGE
            assert (tmp_path / "index" / "orders-0.index").stat().st_size < 150 * 32
        async with stage(tmp_path, BY_BYTES) as on:
            assert not on.store.indexes.damaged
            assert on.read_all(ORDERS) == expected
        assert list(judged(tmp_path)) == []

    asyncio.run(story())


def test_a_damaged_newest_checkpoint_costs_nothing_after_segments_went(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(70):
                on.put(ORDERS, number)
            await on.ticks()
            assert on.store.journal.start_lsn > 128
            expected = on.read_all(ORDERS)
        damage_newest_checkpoint(tmp_path)
        async with stage(tmp_path, BY_BYTES) as on:
            assert on.read_all(ORDERS) == expected

    asyncio.run(story())


def test_an_archive_takes_the_segments_and_reads_back(tmp_path: Path) -> None:
    async def story() -> None:
        archive = tmp_path / "archive"
        section = RetentionSection(bytes=2 * SEGMENT_BYTES, policy="archive", archive=str(archive), when=0.1)
        async with stage(tmp_path / "data", section) as on:
            for number in range(70):
                on.put(ORDERS, number)
            await on.ticks()
            left = on.read_all(ORDERS)
            start = on.store.journal.start_lsn
        assert list(judged(tmp_path / "data")) == []
        segments = Segments.open(DirectoryStorage.open_for_reading(archive), None, SEGMENT_BYTES, writable=False)
        try:
            report = check(segments, {})
            assert report.is_sound
            assert (report.start, report.end) == (128, start - 128)
        finally:
            segments.close()
        manifest = decode_archive_manifest((archive / "manifest.jsonl").read_bytes())
        files = {int(path.stem): path.read_bytes() for path in archive.glob("*.journal")}
        assert {entry.base: entry.sha256 for entry in manifest.entries} == {
            base: hashlib.sha256(data).hexdigest() for base, data in files.items()
        }
        stored = b"".join(data for _, data in sorted(files.items()))
        gone = 70 - len(left) // MESSAGE
        assert gone > 0
        assert all(stored.count(message(number)) == 1 for number in range(gone))

    asyncio.run(story())


def test_an_archive_that_cannot_take_a_segment_loses_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        archive = tmp_path / "archive"
        archive.mkdir()
        (archive / f"{0:020d}.journal").write_bytes(b"another broker's")
        section = RetentionSection(bytes=2 * SEGMENT_BYTES, policy="archive", archive=str(archive), when=0.1)
        async with stage(tmp_path / "data", section) as on:
            for number in range(70):
                on.put(ORDERS, number)
            await on.ticks()
            assert "give every broker an archive of its own" in caplog.text
            assert on.store.journal.start_lsn == 128
            (archive / f"{0:020d}.journal").unlink()
            await asyncio.sleep(0.15)
            await on.ticks()
            assert on.store.journal.start_lsn > 128
        assert list(judged(tmp_path / "data")) == []

    asyncio.run(story())
