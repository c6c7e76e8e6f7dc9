"""A slave's end of the link with a real copy, against a real master, through a proxy that cuts, delays and swallows."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.replication.replica.effects import Resync
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.message_store import MessageStore
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.loops import in_uvloop
from tests.fixtures.replica_links import facts_of
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
    """A slave without a broker around it."""

    def __init__(self, directory: Path, port: int, identity: JournalIdentity = JournalIdentity("metaq", 0)) -> None:  # noqa: B008
        self.port = port
        self.sought = 0  # how often it looked for its master: once more after each link
        self.ended: list[object] = []
        self.changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        facts = facts_of(identity, 1)
        journal = JournalConfig(segment_bytes=1 << 20)
        config = BrokerConfig(data=directory, broker_id=0, port=0)

        def wake() -> None:  # on the writer thread, too
            loop.call_soon_threadsafe(self.progress)

        self.store = MessageStore.open_over(
            config,
            lambda storage, indexes: JournalFollower.open(storage, identity, journal, sink=indexes, on_progress=wake),
            Lsn(0),
        )
        assert isinstance(self.store.source, JournalFollower)
        self.follower = self.store.source
        self.receiver = ReplicaReceiver(
            *(facts, SlaveFile(directory), self.store, self.follower, self.find_master),
            *(lambda used, decided: None, wake, self.end, lambda: 1),
            serves=False,
        )

    def progress(self) -> None:
        self.store.advance()
        self.receiver.progress()
        self.changed.set()

    async def find_master(self, facts: SlaveFacts) -> BrokerUrl | None:
        assert facts.epoch <= 1
        self.sought += 1
        self.changed.set()
        return BrokerUrl("127.0.0.1", self.port)

    def end(self, why: object) -> None:
        self.ended.append(why)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def has_heard(self) -> None:
        """Wait until the master has told its end."""
        await self.until(lambda: self.receiver.facts.end > 128)

    async def has_all(self) -> None:
        """Wait until everything that the master has acknowledged is fsynced here."""
        await self.until(
            lambda: (facts := self.receiver.facts).high_watermark == facts.end == self.follower.journal.flushed > 0
        )

    async def close(self) -> None:
        await self.receiver.close()
        self.store.close()


@contextlib.asynccontextmanager
async def replica(
    directory: Path,
    port: int,
    identity: JournalIdentity = JournalIdentity("metaq", 0),  # noqa: B008
) -> AsyncIterator[Copy]:
    copy = Copy(directory, port, identity)
    copy.receiver.begin()
    try:
        yield copy
    finally:
        await copy.close()


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
            await copy.has_heard()
            for count in (1, 200, 7):
                await asyncio.to_thread(put, master, count)
                sought = copy.sought
                link.refuse()
                await copy.until(lambda sought=sought: copy.sought > sought)  # type: ignore[misc]
                link.heal()
                await copy.until(lambda: copy.follower.end > 0)
            await asyncio.to_thread(put, master, 3, b"y" * 60_000)
            end = await asyncio.to_thread(end_of, master)
            await copy.until(lambda: copy.follower.journal.flushed >= end)
            await copy.has_all()
        await asyncio.to_thread(put, master, 100)
        async with replica(tmp_path / "slave", link.port) as copy:  # opened again: goes on where it ended
            end = await asyncio.to_thread(end_of, master)
            await copy.until(lambda: copy.follower.journal.flushed >= end)
            assert (copy.sought, copy.ended) == (1, [])

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
            await copy.has_heard()
            link.swallow()
            await copy.until(lambda: copy.sought > 1)
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
            await copy.until(lambda: copy.ended != [])
            assert copy.ended == [Resync(common, "the master never had it")]

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
        async with replica(tmp_path / "other", port, JournalIdentity("another", 0)) as copy:
            await copy.until(lambda: copy.sought > 2)
            assert copy.ended == []
        assert list((tmp_path / "other").glob("*.journal")) == []

    asyncio.run(story(master.port))
    assert "is of broker 0 of cluster 'another'" in master.log


@in_uvloop
async def test_it_ends_in_whatever_turn_of_the_loop_it_is_cancelled(tmp_path: Path) -> None:
    """Also between the connection and its report to the caller, where uvloop calls no connection_lost."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        for turns in range(20):
            async with asyncio.timeout(10):
                async with replica(tmp_path, port):
                    for _ in range(turns):
                        await asyncio.sleep(0)
    finally:
        server.close()
