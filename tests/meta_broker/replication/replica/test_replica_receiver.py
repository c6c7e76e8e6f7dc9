"""A slave's end of the link with a real copy, against a real master, through a proxy that cuts, delays and swallows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.state.replay import PendingUpdates
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity
from journal.wal.storage import DirectoryStorage
from meta_broker.errors import BrokerError
from meta_broker.replication.replica.receiver import ReplicaReceiver
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.loops import in_uvloop
from tests.fixtures.replicas import check_identical, wait_until
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.wire import WireClient
from zk.tree.broker_url import BrokerUrl

# No records by itself, so that a copy is whole once it has what was put.
PATIENT = CONFIG.replace("segment_bytes = 4194304", "segment_bytes = 131072\nmessage_bytes_max = 65536").replace(
    "checkpoint_seconds = 2.0", "checkpoint_seconds = 3600.0"
) + ("[replication]\nheartbeat_ms = 50\nsilence_ms = 60000\nlag_ms = 60000\n")
FAST = PATIENT.replace("60000", "500")
BODY = b"x" * 1000
WAIT_S = 60.0


class Copy:
    """Owns a copy, as a slave does, and writes down what its link tells."""

    slave_id = 1
    serves = False

    def __init__(self, directory: Path, port: int) -> None:
        self.port = port
        self.told: list[str] = []
        self.high_watermark = self.master_end = Lsn(0)
        self.changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.storage = DirectoryStorage.open_for_writing(directory)

        def wake() -> None:  # on the writer thread
            loop.call_soon_threadsafe(self.progress)

        self.follower = JournalFollower.open(
            self.storage,
            JournalIdentity("metaq", 0),
            JournalConfig(segment_bytes=1 << 20),
            on_progress=wake,
        )
        self.link = ReplicaReceiver(self)

    def progress(self) -> None:
        self.link.progress()
        self.changed.set()

    async def find_master(self) -> BrokerUrl | None:
        return BrokerUrl("127.0.0.1", self.port)

    def on_heartbeat(self, **said: Any) -> None:
        assert said["epoch"] == 1
        self.high_watermark, self.master_end = said["high_watermark"], said["end"]
        self.changed.set()

    def on_records(self, received: Sequence[PendingUpdates]) -> None:
        assert received

    def on_disconnected(self) -> None:
        self.told.append("lost")
        self.changed.set()

    def must_truncate(self, lsn: Lsn) -> None:
        self.told.append(f"cut {lsn}")

    def must_resync(self, start: Lsn, checkpoint: bytes, reason: str) -> None:
        self.told.append(f"anew {start} {len(checkpoint)} {reason}")

    def must_stop(self, error: BrokerError) -> None:
        self.told.append(f"stop {error}")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def has_all(self) -> None:
        """Wait until everything that the master has acknowledged is fsynced here."""
        await self.until(lambda: 0 < self.high_watermark == self.master_end == self.follower.journal.flushed)


@contextlib.asynccontextmanager
async def replica(directory: Path, port: int) -> AsyncIterator[Copy]:
    copy = Copy(directory, port)
    task = asyncio.create_task(copy.link.run())
    try:
        yield copy
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        copy.follower.close()
        copy.storage.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "master", None, config=PATIENT) as process:
        yield process


def put(master: BrokerProcess, count: int, body: bytes = BODY) -> None:
    with WireClient(master.port) as client:
        for _ in range(count):
            client.put("orders", 0, body)


def test_a_copy_is_the_same_byte_by_byte_through_cuts_and_restarts(master: BrokerProcess, tmp_path: Path) -> None:
    async def story(link: TcpProxy) -> None:
        async with replica(tmp_path / "slave", link.port) as copy:
            await copy.until(lambda: copy.master_end > 128)
            for count in (1, 200, 7):
                await asyncio.to_thread(put, master, count)
                link.refuse()
                await copy.until(lambda: "lost" in copy.told)
                link.heal()
                await copy.until(lambda: copy.follower.end > 0)
                copy.told.clear()
            await asyncio.to_thread(put, master, 3, b"y" * 60_000)
            end = await asyncio.to_thread(end_of, master)
            await copy.until(lambda: copy.follower.journal.flushed >= end)
            await copy.has_all()
        await asyncio.to_thread(put, master, 100)
        async with replica(tmp_path / "slave", link.port) as copy:  # opened again: goes on where it ended
            end = await asyncio.to_thread(end_of, master)
            await copy.until(lambda: copy.follower.journal.flushed >= end)
            assert copy.told == []

    with TcpProxy(master.port) as link:
        asyncio.run(story(link))
    assert len(list((tmp_path / "slave").glob("*.journal"))) >= 3
    check_identical(master.data, tmp_path / "slave")


def end_of(master: BrokerProcess) -> int:
    with WireClient(master.port) as client:
        words = client.stats("replication")[1].split()
        return int(words[words.index("end") + 1])


def test_a_half_open_link_is_left_and_dialled_again(tmp_path: Path) -> None:
    async def story(master: BrokerProcess, link: TcpProxy) -> None:
        async with replica(tmp_path / "slave", link.port) as copy:
            await copy.until(lambda: copy.master_end > 128)
            link.swallow()
            await copy.until(lambda: "lost" in copy.told)
            link.heal()
            await asyncio.to_thread(put, master, 1)
            end = await asyncio.to_thread(end_of, master)
            await copy.until(lambda: copy.follower.journal.flushed >= end)

    with running_broker(tmp_path / "master", None, config=FAST) as master:
        with TcpProxy(master.port) as link:
            asyncio.run(story(master, link))
        wait_until(lambda: "slave gone" in master.log, "the master has seen it, too")


def test_a_tail_the_master_never_had_is_truncated(master: BrokerProcess, tmp_path: Path) -> None:
    async def story() -> None:
        async with replica(tmp_path / "slave", master.port) as copy:
            await copy.has_all()
            common = copy.follower.end
            put(master, 5)
            end = end_of(master)
            await copy.until(lambda: copy.follower.journal.flushed >= end)
        master.kill()
        forget_from(master.data, common)
        master.start()
        async with replica(tmp_path / "slave", master.port) as copy:
            await copy.until(lambda: copy.told != [])
            assert copy.told[0] == f"cut {common}"

    asyncio.run(story())


def forget_from(directory: Path, lsn: int) -> None:
    """Zero everything from *lsn* on in the one segment, like a power cut that took unsynced bytes."""
    for checkpoint in directory.glob("checkpoint.*"):
        checkpoint.unlink()
    (segment,) = directory.glob("*.journal")
    with segment.open("r+b") as file:
        file.seek(lsn)
        file.write(bytes(131072 - lsn))


def test_an_empty_directory_and_a_foreign_master(master: BrokerProcess, tmp_path: Path) -> None:
    async def story(port: int) -> None:
        copy = Copy(tmp_path / "slave", port)
        copy.follower.close()
        copy.storage.close()
        copy.storage = DirectoryStorage.open_for_writing(tmp_path / "other")
        copy.follower = JournalFollower.open(
            copy.storage, JournalIdentity("another", 0), JournalConfig(segment_bytes=1 << 20)
        )
        task = asyncio.create_task(copy.link.run())
        await copy.until(lambda: len(copy.told) >= 2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        copy.follower.close()
        copy.storage.close()
        assert set(copy.told) == {"lost"}
        assert list((tmp_path / "other").glob("*.journal")) == []

    asyncio.run(story(master.port))
    assert "is of broker 0 of cluster 'another'" in master.log


@in_uvloop
async def test_it_ends_in_whatever_turn_of_the_loop_it_is_cancelled(tmp_path: Path) -> None:
    """Also between the connection and its report to the caller, where uvloop calls no connection_lost."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    copy = Copy(tmp_path, server.sockets[0].getsockname()[1])
    try:
        for turns in range(20):
            task = asyncio.create_task(ReplicaReceiver(copy).run())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=10)
            assert done, f"after {turns} turns"
    finally:
        server.close()
        copy.follower.close()
        copy.storage.close()
