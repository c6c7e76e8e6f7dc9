"""A slave against a master that is too simple to be wrong (tests/fixtures/replica_world.py), in every order of steps.

The clock, the connections and the threads are the test's (tests/fixtures/virtual_loop.py); the copy, its indexes and
`slave.json` are real. Bytes arrive in any pieces, links break, either side stops, the master breaks the rules, loses
its tail, is replaced, or drops what the slave has not got. Whatever happened: the slave reports only what it has
fsynced, shows only what was acknowledged, leaves a link only for a reason and never stays on a silent one; and once
nothing fails any more, it has everything, shows it, and `slave.json` says so. The seed of a run is its parameter.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.wal.open_journal import JournalConfig, OpenJournal
from journal.wal.segments import segment_base
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.sections import SlaveSection
from meta_broker.replication.replica.effects import Resync
from meta_broker.replication.replica.receiver import ReplicaReceiver
from meta_broker.replication.replica.resync import resync
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.message_store import MessageStore
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES
from tests.fixtures.replica_world import BEAT_S, HANDSHAKE_S, MasterJournals, MasterLink
from tests.fixtures.virtual_loop import VirtualLoop
from zk.tree.broker_url import BrokerUrl

SEEDS = max(60, 5 * int(os.environ.get("METAQ_CRASH_ROUNDS", "0")))
STEPS = 150
SLICE_S = 0.05
HEARTBEAT_S = 0.5  # until the master has sent its own
QUEUE_FULL = 17 * 1024 * 1024


class Slave:
    """One opening of the slave's directory."""

    def __init__(self, loop: VirtualLoop, config: BrokerConfig) -> None:
        self.loop = loop
        self.file = SlaveFile(config.data)
        facts = self.file.read() or SlaveFacts(cluster=IDENTITY.cluster, broker_id=IDENTITY.broker_id, slave_id=1)
        self.store = MessageStore.open_over(
            config,
            lambda storage, indexes: JournalFollower.open(
                *(storage, IDENTITY, JournalConfig(segment_bytes=SEGMENT_BYTES)),
                sink=indexes,
                publish_below=Lsn(facts.high_watermark),
            ),
            Lsn(facts.high_watermark),
        )
        assert isinstance(self.store.source, JournalFollower)
        self.follower = self.store.source
        self.ended: list[object] = []
        self.is_master_known = True
        self.file.write(facts)
        loop.run_now(self.begin)

    def begin(self) -> None:
        facts, now_ms = self.file.read(), lambda: int(self.loop.now * 1000)
        assert facts is not None
        self.replica = ReplicaReceiver(
            *(facts, self.file, self.store, self.follower, self.find_master),
            *(lambda used, decided: None, lambda: None, self.ended.append, now_ms),
            serves=False,
        )
        self.replica.begin()

    async def find_master(self, facts: SlaveFacts) -> BrokerUrl | None:
        del facts
        return BrokerUrl("127.0.0.1", 1) if self.is_master_known else None

    def progress(self) -> None:
        """Advance like the broker's loop when the writer has made progress."""
        while not self.store.advance():
            pass
        self.replica.progress()

    @property
    def facts(self) -> SlaveFacts:
        return self.replica.facts

    @property
    def shown(self) -> int:
        index = self.store.indexes.by_name.get(ORDERS)
        return index.end if index is not None else 0


class World:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.loop = VirtualLoop()
        self.master = MasterJournals(self.random)
        self.config = BrokerConfig(
            data=directory,
            broker_id=IDENTITY.broker_id,
            port=0,
            zookeeper="127.0.0.1:1",
            role="slave",
            broker=BrokerSection(cluster=IDENTITY.cluster, segment_bytes=1 << 20),
            slave=SlaveSection(id=1, full_resync=True),
        )
        self.link: MasterLink | None = None
        self.queued = 0  # bytes that the slave's disk has not taken
        self.is_closing = False
        self.played: dict[str, int] = {}
        self.begin_slave()

    def begin_slave(self) -> None:
        self.is_closing = False
        self.slave = Slave(self.loop, self.config)

    # -- the network ------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        for dial in self.loop.dials:
            if not dial.is_over:
                assert self.link is None or self.link.transport.is_closing(), "two links at once"

                def accept(dial=dial) -> None:  # type: ignore[no-untyped-def]
                    self.link = MasterLink(self.loop, self.master, dial, self.left)
                    self.link.slave_flushed = lambda: self.slave.follower.journal.flushed

                self.loop.run_now(accept)
        self.loop.dials.clear()

    def refuse(self) -> None:
        for dial in self.loop.dials:
            if not dial.is_over:
                self.loop.run_now(dial.refuse)
        self.loop.dials.clear()

    def left(self) -> None:
        """The slave has left the link."""
        link = self.link
        assert link is not None
        # Silence while reading is paused does not count, except for what is left of a heartbeat's time.
        since = max(link.heard_at or link.dialled_at, link.transport.resumed_at - HEARTBEAT_S)
        is_silent = not link.transport.is_paused and self.loop.now - since > link.silence_s - 0.001
        assert link.is_bad or is_silent or self.slave.ended or self.is_closing, "left without a reason"

    def cut(self) -> None:
        if self.link is not None:
            self.link.transport.cut()
            self.loop.drain()
            self.link = None

    def deliver(self, size: int | None = None) -> None:
        link = self.link
        if link is None or link.transport.is_closing():
            return
        link.deliver(self.loop, size or self.random.choice([1, 30, 200, 1000, 100_000]))
        if link.is_bad and not link.outbox and link.transport.is_reading():
            raise AssertionError("it stays with a master that breaks the rules")

    def block_writing(self) -> None:
        if self.link is not None and not self.link.transport.is_closing():
            protocol = self.link.transport.protocol
            self.loop.run_now(self.random.choice([protocol.pause_writing, protocol.resume_writing]))

    # -- the master -------------------------------------------------------------------------------------------------

    def feed(self) -> None:
        if self.link is not None:
            self.link.feed()

    def beat(self) -> None:
        self.master.acknowledge()
        if self.link is not None:
            self.link.beat(is_in_sync=self.random.random() < 0.7)

    def break_rules(self) -> None:
        if self.link is not None:
            self.link.break_rules()

    def master_falls(self) -> None:
        self.cut()
        self.master.fall(is_promotion=self.random.random() < 0.4)

    def restore(self) -> None:
        """Go on with what the slave has sent of what was lost."""
        link = self.link
        if link is not None and link.wanted is not None:
            parting, end = link.wanted
            if len(link.fetched) == end - parting:
                self.played["restored"] = self.played.get("restored", 0) + 1
                self.cut()
                self.master.restore(parting, bytes(link.fetched))

    # -- the slave --------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        if not self.slave.ended:
            self.slave.store.journal.wait_flushed(self.slave.store.journal.end, 60)
            self.loop.run_now(self.slave.progress)

    def disk(self) -> None:
        self.queued = self.random.choice([0, 0, QUEUE_FULL])
        self.loop.run_now(self.slave.progress)

    def thread(self) -> None:
        if self.loop.jobs:
            self.loop.run_now(self.loop.jobs.pop(self.random.randrange(len(self.loop.jobs))))

    def threads(self) -> None:
        while self.loop.jobs:
            self.thread()

    def is_findable(self) -> None:
        self.slave.is_master_known = not self.slave.is_master_known

    def restart(self) -> None:
        self.close()
        self.begin_slave()

    def close(self) -> None:
        """Close the slave; its file tells what it knew."""
        self.is_closing = True
        closed = self.loop.create_task(self.slave.replica.close())
        for _ in range(1000):
            self.loop.drain()
            if closed.done():
                break
            self.threads()
        closed.result()
        self.threads()
        self.link = None
        assert self.slave.file.read() == self.slave.facts
        assert self.loop.errors == []
        assert asyncio.all_tasks(self.loop) == set()
        assert self.loop.pending_timers() == []
        self.slave.store.close()

    def change(self) -> None:
        """Make the change that the slave has ended for."""
        (what,) = self.slave.ended[:1]
        assert isinstance(what, Resync), what
        kind = "truncated" if what.checkpoint is None else "started over"
        self.played[kind] = self.played.get(kind, 0) + 1
        self.close()
        resync(self.config, what)
        self.begin_slave()

    def saved(self) -> None:
        """Facts that a promotion goes by are written at once."""
        self.threads()
        if not self.slave.ended:
            file, facts = self.slave.file.read(), self.slave.facts
            assert file is None or (file.mode, file.in_sync) == (facts.mode, facts.in_sync)

    # -- time -------------------------------------------------------------------------------------------------------

    def time(self, seconds: float | None = None) -> None:
        for _ in range(round((seconds or self.random.choice([SLICE_S, 0.3, 0.3, 1.5])) / SLICE_S)):
            self.loop.now += SLICE_S
            self.loop.drain()
            self.check_silence()

    def long_time(self) -> None:
        self.time(HANDSHAKE_S + 1)

    def check_silence(self) -> None:
        link = self.link
        if link is None or not link.transport.is_reading() or link.wanted is not None:
            return
        since = max(link.heard_at or link.made_at, link.transport.resumed_at)
        slack_s = SLICE_S + HEARTBEAT_S  # looked for with each heartbeat of its own
        may_be_longer = HANDSHAKE_S if link.outbox else link.silence_s  # the limit has not arrived
        assert self.loop.now - since <= may_be_longer + slack_s + 0.001, "a silent master"

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert self.loop.errors == []
        slave = self.slave
        assert slave.shown <= self.master.shown_below(self.master.watermark), "shown, and not acknowledged"
        if (file := slave.file.read()) is not None:
            assert file.high_watermark <= self.master.watermark
        if slave.ended:
            self.change()

    def settle(self) -> None:
        """Nothing fails any more: the slave gets everything."""
        self.queued, self.slave.is_master_known = 0, True
        for _ in range(400):
            self.connect()
            for _ in range(20):
                self.feed()
            self.master.watermark = self.master.end
            if self.link is not None and not self.link.is_bad:
                self.link.beat(is_in_sync=True)
            self.deliver(1_000_000)
            self.threads()
            self.restore()
            self.progress()
            self.time(BEAT_S)
            self.check()
            end, link = self.master.end, self.link
            is_sent = link is not None and link.progress is not None and link.progress.reported == end
            if is_sent and self.slave.facts.high_watermark == end and self.slave.follower.end == end:
                break
        else:
            raise AssertionError("it never has everything")
        self.progress()
        assert self.slave.shown == self.master.shown_below(end)
        assert self.slave.replica.is_readable
        assert self.slave.replica.lag().bytes == 0
        for _ in range(3):
            self.time(0.6)
            self.threads()
        assert self.slave.file.read() == self.slave.facts
        assert (self.slave.facts.in_sync, self.slave.facts.end) == (True, end)

    def judge(self) -> None:
        self.close()
        copied = {
            base: path.read_bytes()
            for path in self.config.data.iterdir()
            if (base := segment_base(path.name)) is not None
        }
        for base, data in copied.items():
            if base >= self.master.first:
                assert data == self.master.read(base, SEGMENT_BYTES), f"the segment at LSN {base} is not the same"
        assert max(copied) + SEGMENT_BYTES >= self.master.end

    def end(self) -> None:
        """Leave nothing open, also after a failure."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.cut()
        self.loop.drain()
        self.loop.close()
        self.slave.store.close()
        self.master.store.close()


WEIGHTS: dict[Callable[[World], object], int] = {
    World.connect: 8,
    World.refuse: 1,
    World.cut: 1,
    World.deliver: 20,
    World.block_writing: 1,
    World.feed: 12,
    World.beat: 10,
    World.break_rules: 1,
    World.master_falls: 1,
    World.restore: 3,
    World.progress: 6,
    World.disk: 2,
    World.thread: 8,
    World.threads: 3,
    World.is_findable: 1,
    World.restart: 1,
    World.saved: 3,
    World.time: 8,
    World.long_time: 1,
    lambda world: world.master.put(): 5,
    lambda world: world.master.retain(): 1,
}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_the_order_it_has_everything_and_shows_what_was_acknowledged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, tmp_path / "slave")
    real = OpenJournal.queued_bytes.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(OpenJournal, "queued_bytes", property(lambda journal: real(journal) + world.queued))
    steps = list(WEIGHTS)
    try:
        for _ in range(STEPS):
            step = world.random.choices(steps, list(WEIGHTS.values()))[0]
            print(f"seed={seed} {step.__name__} now={world.loop.now:.2f} end={world.master.end}")
            step(world)
            world.check()
        world.settle()
        world.judge()
    finally:
        world.end()
    print(f"seed={seed} {world.played}")
