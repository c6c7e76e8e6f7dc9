"""State that a slave shows, and saves, from its master's frames."""

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.records.topic_changes import TopicChange, TopicState
from journal.replica.follower import JournalFollower
from journal.state.checkpoint import encode_checkpoint
from journal.state.initial_sync import begin_initial_sync
from journal.state.wall_clock import wall_clock_ms
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity
from journal.wal.storage import DirectoryStorage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.replication.link_protocol import Accept, FullResync, Heartbeat, encode
from meta_broker.replication.replica.effects import Append, ReadProof, Resync, Save
from meta_broker.replication.replica.link import ReplicaLink
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.replication.replica.replica_state import STREAMS, S
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store import disk_space
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.status import Status
from tests.fixtures.loops import in_loop, until
from tests.fixtures.replica_links import shake, stream
from zk.tree.broker_url import BrokerUrl

SEGMENT_BYTES = 1 << 20
ORDERS = PartitionName("orders", 0)
MASTER = "meta://10.0.0.9:8123"
REPLACED = FullResync(
    epoch=1,
    start=0,
    checkpoint_bytes=0,
    reason="its master was replaced",
    heartbeat_ms=500,
    silence_ms=3000,
    master=MASTER,
)
FACTS = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1)
SECTION = BrokerSection(segment_bytes=SEGMENT_BYTES)


@dataclass
class Written:
    """A master's journal: its bytes, and where each of its puts ends."""

    data: bytes
    end: Lsn
    puts: list[Lsn] = field(default_factory=list)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Three puts of ten bytes, and then the topic is deleted."""
    config = BrokerConfig(data=tmp_path / "master", broker_id=0, port=0, broker=SECTION)
    store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
    try:
        puts = [store.transactions.put(ORDERS, [b"0123456789"], 10, 1).lsn for _ in range(3)]
        store.transactions.change_topic(TopicChange(topic="orders", state=TopicState.DELETED))
        end = store.journal.end
        store.journal.wait_flushed(end, 60)
        return Written(store.journal.segments.read(0, end), end, puts)
    finally:
        store.close()


@dataclass
class Stage:
    """A slave's store and its replica, driven by hand."""

    store: MessageStore
    follower: JournalFollower
    replica: ReplicaReceiver
    file: SlaveFile
    overs: list[object]
    topics: list[tuple[list[str], list[str]]]
    decided: list[str] = field(default_factory=list)

    def receive(self, written: Written, end: int | None = None) -> None:
        self.replica.carry_out([Append(self.follower.end, written.data[self.follower.end : end])])
        self.store.journal.wait_flushed(self.store.journal.end, 60)

    def on_heartbeat(self, high_watermark: int, end: int, *, in_sync: bool = False) -> None:
        replica = self.replica.replica
        if replica.state not in STREAMS:
            stream(replica, self.replica.journal(), MASTER)
            self.replica._link = ReplicaLink(self.replica, MASTER)
        beat = Heartbeat(Lsn(high_watermark), Lsn(end), 1, in_sync, "async")
        self.replica.carry_out(replica.frame(beat, self.replica.now_ms()))
        self.store.advance()
        self.decided += self.replica.progress()

    async def save(self, now_s: float) -> None:
        """Returns once what that began to write is on disk, or has failed."""
        self.replica.replica.heard(now_s)
        self.replica.carry_out(self.replica.replica.tick(now_s))
        await self.saved()

    async def saved(self) -> None:
        if self.replica._saving is not None:
            await asyncio.wait([self.replica._saving])

    @property
    def link(self) -> ReplicaLink:
        assert self.replica._link is not None
        return self.replica._link

    def reconnect(self, frame: Accept | FullResync) -> None:
        """The master answers another link with *frame*."""
        replica = self.replica.replica
        replica.closed(MASTER, "closed")
        shake(replica, self.replica.journal())
        effects = replica.frame(frame, 0)
        self.replica.carry_out(effects if isinstance(frame, FullResync) else replica.proof_read(frame.proof))

    @property
    def shown(self) -> int:
        """The end of the partition, for readers."""
        index = self.store.indexes.by_name.get(ORDERS)
        return index.end if index is not None else 0


Open = Callable[[SlaveFacts], Stage]


@pytest.fixture
def open_stage(tmp_path: Path) -> Iterator[Open]:
    """Opens the one slave's directory, and closes what was open of it before."""
    data = tmp_path / "slave"
    config = BrokerConfig(data=data, broker_id=0, port=0, broker=SECTION)
    opened: list[Stage] = []

    def close() -> None:
        while opened:
            opened.pop().store.close()

    def open_it(facts: SlaveFacts) -> Stage:
        close()
        store = MessageStore.open_over(
            config,
            lambda storage, indexes: JournalFollower.open(
                storage,
                JournalIdentity("metaq", 0),
                JournalConfig(segment_bytes=SEGMENT_BYTES),
                sink=indexes,
                publish_below=Lsn(facts.high_watermark),
            ),
            Lsn(facts.high_watermark),
        )
        assert isinstance(store.source, JournalFollower)
        overs: list[object] = []
        topics: list[tuple[list[str], list[str]]] = []
        file = SlaveFile(data)

        async def find_master(facts: SlaveFacts) -> BrokerUrl | None:
            del facts
            return None

        def announce(used: Sequence[str], decided: Sequence[str]) -> None:
            topics.append((list(used), list(decided)))

        replica = ReplicaReceiver(
            *(facts, file, store, store.source, find_master, announce, lambda: None, overs.append, lambda: 5_000),
            serves=True,
        )
        opened.append(Stage(store, store.source, replica, file, overs, topics))
        return opened[-1]

    yield open_it
    close()


@in_loop
async def test_only_what_the_master_has_acknowledged_is_shown(open_stage: Open, written: Written) -> None:
    on = open_stage(FACTS)
    assert not on.replica.is_readable
    on.receive(written, written.puts[2])
    on.on_heartbeat(written.puts[0], written.puts[2])
    assert on.replica.is_readable
    assert on.shown == 10
    assert on.replica.lag() == (written.puts[2] - written.puts[0], 0)
    on.on_heartbeat(written.puts[1] + 1, written.puts[2])
    assert on.shown == 20
    on.on_heartbeat(written.puts[2], written.puts[2])
    assert on.shown == 30
    assert on.replica.lag() == (0, 0)
    assert on.topics == [(["orders"], [])]


@in_loop
async def test_what_a_start_finds_beyond_that_is_not_shown_until_it_is_acknowledged(
    open_stage: Open, written: Written
) -> None:
    on = open_stage(FACTS)
    on.receive(written)
    on.on_heartbeat(written.puts[0], written.end)
    on = open_stage(on.replica.facts)
    assert on.replica.is_readable  # with no master at all
    assert on.shown == 10
    on.on_heartbeat(written.puts[1], written.end)
    assert on.shown == 20
    on.on_heartbeat(written.end, written.end)
    assert on.shown == on.store.indexes.by_name[ORDERS].start == 30
    assert on.topics == [([], ["orders"])]
    on = open_stage(on.replica.facts)
    assert on.shown == on.store.indexes.by_name[ORDERS].start == 30


@in_loop
async def test_a_decision_about_a_topic_is_told_at_its_place(open_stage: Open, written: Written) -> None:
    on = open_stage(FACTS)
    on.receive(written)
    on.on_heartbeat(written.puts[2], written.end)
    assert on.store.indexes.by_name[ORDERS].start == 0
    on.on_heartbeat(written.end, written.end)
    assert on.store.indexes.by_name[ORDERS].start == on.shown == 30
    assert on.topics == [(["orders"], []), ([], ["orders"])]


@in_loop
async def test_a_topic_that_was_deleted_twice_is_shown_as_it_was_in_between(open_stage: Open, tmp_path: Path) -> None:
    """A slave that catches up has both deletions, and what was put between them, before it may show the first."""
    config = BrokerConfig(data=tmp_path / "master", broker_id=0, port=0, broker=SECTION)
    deleted = TopicChange(topic="orders", state=TopicState.DELETED)
    store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
    try:
        ends = [store.transactions.put(ORDERS, [b"0123456789"], 10, 1).lsn, store.transactions.change_topic(deleted)]
        ends += [store.transactions.put(ORDERS, [b"0123456789"], 10, 1).lsn, store.transactions.change_topic(deleted)]
        store.journal.wait_flushed(ends[-1], 60)
        written = Written(store.journal.segments.read(0, ends[-1]), ends[-1])
    finally:
        store.close()
    on = open_stage(FACTS)
    on.receive(written)
    seen = []
    for end in ends:
        on.on_heartbeat(end, written.end)
        seen.append((on.store.indexes.by_name[ORDERS].start, on.shown))
    assert seen == [(0, 10), (10, 10), (10, 20), (20, 20)]
    assert on.topics == [(["orders"], []), ([], ["orders"]), ([], ["orders"])]


@in_loop
async def test_a_high_watermark_beyond_the_copy_shows_only_what_is_here(open_stage: Open, written: Written) -> None:
    on = open_stage(FACTS)
    on.receive(written, written.puts[0])
    on.on_heartbeat(written.puts[2], written.puts[2])
    assert on.shown == 10
    assert on.replica.lag().bytes == written.puts[2] - written.puts[0]


@in_loop
async def test_slave_json_follows_at_most_once_a_second_and_at_the_end(open_stage: Open, written: Written) -> None:
    on = open_stage(FACTS)
    on.receive(written)
    on.on_heartbeat(0, written.end)
    await on.saved()  # the first one is written at once
    assert on.file.read() == on.replica.facts
    on.on_heartbeat(written.puts[0], written.end)
    await on.save(100.0)
    first = on.file.read()
    assert first is not None
    assert first == on.replica.facts
    assert (first.high_watermark, first.end, first.heard_ms, first.master) == (
        written.puts[0],
        written.end,
        5_000,
        MASTER,
    )
    on.on_heartbeat(written.puts[1], written.end)
    await on.save(100.5)
    assert on.file.read() == first
    await on.save(101.0)
    assert on.file.read() == on.replica.facts != first
    on.on_heartbeat(written.puts[1], written.end, in_sync=True)  # what a promotion goes by is written at once
    await on.saved()
    assert on.file.read() == on.replica.facts
    assert on.replica.facts.in_sync
    on.on_heartbeat(written.end, written.end)
    on.replica.on_closed(on.link, "closed")
    await on.replica.close()
    await on.replica.close()
    last = on.file.read()
    assert last is not None
    assert (last.high_watermark, last.in_sync) == (written.end, False)
    assert on.overs == []


@in_loop
async def test_a_slave_json_that_cannot_be_written_ends_it(
    open_stage: Open, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(file: SlaveFile, facts: SlaveFacts) -> None:
        del file, facts
        raise StorageFailed("no space")

    on = open_stage(FACTS)
    on.receive(written)
    monkeypatch.setattr(SlaveFile, "write", fails)
    on.on_heartbeat(written.end, written.end)
    await on.saved()
    assert list(map(str, on.overs)) == ["no space"]


@in_loop
async def test_a_proof_that_cannot_be_read_any_more_ends_the_link(open_stage: Open, written: Written) -> None:
    """Retention has taken what it covers since the handshake."""
    on = open_stage(FACTS)
    on.receive(written)
    replica = on.replica.replica
    shake(replica, on.replica.journal())
    on.replica._link = ReplicaLink(on.replica, MASTER)
    replica.frame(
        Accept(
            epoch=1,
            divergence_lsn=written.end,
            proof_bytes=8,
            proof=0,
            heartbeat_ms=500,
            silence_ms=3000,
            master=MASTER,
        ),
        0,
    )
    on.replica.carry_out([ReadProof(Lsn(0), 8)])  # below what is stored
    await until(lambda: replica.state is S.CLOSING)


@in_loop
async def test_a_truncation_takes_back_what_counted_as_acknowledged(open_stage: Open, written: Written) -> None:
    on = open_stage(FACTS)
    on.receive(written)
    on.on_heartbeat(written.end, written.end)
    divergence_lsn = written.puts[0]
    on.reconnect(
        Accept(
            epoch=1,
            divergence_lsn=divergence_lsn,
            proof_bytes=0,
            proof=0,
            heartbeat_ms=500,
            silence_ms=3000,
            master=MASTER,
        )
    )
    assert on.overs == [Resync(divergence_lsn, "the master never had it")]
    assert on.replica.facts.high_watermark == divergence_lsn


@in_loop
async def test_an_incomplete_copy_that_starts_over_has_no_master_contact(
    open_stage: Open, written: Written, tmp_path: Path
) -> None:
    on = open_stage(FACTS)
    on.receive(written)
    on.on_heartbeat(written.end, written.end)
    on.reconnect(REPLACED)
    assert on.replica.is_readable  # it is whole: an operator decides, and may promote it as it is
    assert (on.replica.facts.heard_ms, on.replica.facts.high_watermark) == (5_000, written.end)
    checkpoint = bytes(
        encode_checkpoint(msgspec.structs.replace(on.follower.snapshot(), lsn=Lsn(SEGMENT_BYTES + 4096)))
    )
    on.store.close()
    shutil.rmtree(tmp_path / "slave")
    (tmp_path / "slave").mkdir()
    storage = DirectoryStorage.open_for_writing(tmp_path / "slave")
    begin_initial_sync(storage, SEGMENT_BYTES, checkpoint)
    storage.close()
    on = open_stage(FACTS)
    on.on_heartbeat(written.end, written.end, in_sync=True)
    assert not on.replica.is_readable
    on.reconnect(REPLACED)
    assert on.overs == [Resync(Lsn(0), "its master was replaced", b"")]
    assert on.replica.facts == msgspec.structs.replace(FACTS, master=MASTER, epoch=1)


class Wire(asyncio.Transport):
    """A transport that keeps what happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def abort(self) -> None:
        self.done.append("abort")

    def is_closing(self) -> bool:
        return "abort" in self.done

    def is_reading(self) -> bool:
        return not self.done or self.done[-1] != "pause"

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")

    def writelines(self, list_of_data: object) -> None:
        self.done.append("write")


@in_loop
async def test_a_link_that_was_given_up_is_not_listened_to(open_stage: Open) -> None:
    on = open_stage(FACTS)
    given_up = ReplicaLink(on.replica, MASTER)
    on.replica.on_closed(given_up, "no connection within 5 s")
    assert on.replica._link is None
    wire = Wire()
    given_up.connection_made(wire)
    given_up.data_received(b"result 200 0 1\r\n")
    assert (wire.done, on.replica.replica.state) == (["abort"], S.SEEKING)


@in_loop
async def test_answers_behind_a_refusal_are_passed_over(open_stage: Open) -> None:
    on = open_stage(FACTS)
    link = on.replica._link = ReplicaLink(on.replica, MASTER)
    wire = Wire()
    link.connection_made(wire)
    refused = encode_result(Status.BAD_REQUEST, b"no", 1)
    link.data_received(refused + encode_result(Status.SUCCESS, b"1.4.6 metaq/1 replicate", 2))
    assert (wire.done, on.replica.replica.state) == (["write", "abort"], S.CLOSING)


@in_loop
async def test_the_newest_facts_are_saved_while_older_ones_are_written(open_stage: Open, written: Written) -> None:
    on = open_stage(FACTS)
    on.receive(written)
    for high_watermark in (7, 8, 9):
        on.replica.carry_out([Save(msgspec.structs.replace(FACTS, high_watermark=high_watermark))])
    await on.saved()
    last = on.file.read()
    assert last is not None
    assert last.high_watermark == 9


@in_loop
async def test_a_copy_that_had_no_room_goes_on_with_what_was_received(
    open_stage: Open, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 0
    monkeypatch.setattr(disk_space, "_free_bytes", lambda path: free)
    on = open_stage(FACTS)
    on.receive(written)
    on.on_heartbeat(0, written.end)
    assert not on.replica.replica.has_room
    on.link.transport = Wire()
    on.link.data_received(encode(Heartbeat(written.end, written.end, 1, False, "async")))
    on.replica._tick()
    assert on.replica.facts.high_watermark == 0
    free = 1 << 40
    on.replica._tick()
    assert on.replica.replica.has_room
    assert on.replica.facts.high_watermark == written.end
    on.link.connection_lost(None)
    await on.replica.close()
