"""A master's end of its links against slaves that are too simple to be wrong, in every order of steps.

Master, journal and files are real; the clock, the connections and the threads are the test's. Slaves greet with
nothing, with a part of the journal or with a foreign one, stop reading, report, break the rules of the link, and go.
Whatever happened: a slave is sent the checkpoint it was promised and then the journal, byte for byte and once; nothing
while it does not read, nothing after a refusal; a link ends by a breach, by silence, by a newer link, or because what
the slave would begin with can't be read; and a slave that behaves has everything in the end. The seed of a run is its
parameter.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from journal.errors import UnreadableRange
from journal.records.header import Lsn
from journal.wal.segments import SEGMENT_HEADER_BYTES, segment_base
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import (
    VERSION,
    Accept,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkDecoder,
    LinkFrame,
    Rejected,
    SnapshotChunk,
    encode,
    journal_chunk_head,
)
from meta_broker.replication.master.master import Master
from meta_broker.replication.master.replica_sender import READ_RETRY_S
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.message_store import MessageStore
from tests.fixtures.journals import IDENTITY, ORDERS, Clock
from tests.fixtures.virtual_loop import VirtualLoop, VirtualTransport

SEEDS = max(60, 5 * int(os.environ.get("METAQ_CRASH_ROUNDS", "0")))
STEPS = 150
SLICE_S = 0.05
BEAT_S, SILENCE_S = 0.1, 1.0
SECTION = ReplicationSection(heartbeat_ms=100, silence_ms=1000, lag_ms=1000)
SEGMENT_BYTES = 64 * 1024


class Transport(VirtualTransport):
    """The master's end of a connection whose peer may stop reading; says so as asyncio does with a limit of 0."""

    is_full = False
    is_finished = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (0, None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        if self.is_full:
            self.protocol.pause_writing()

    def close(self) -> None:
        """End the connection once the peer has read everything; until then whatever is written is sent, too."""
        self.is_finished = True
        if not self.is_full:
            self.cut()


class Slave:
    """A slave by the rules, until `is_bad`; reads at once, and says that it does not."""

    def __init__(self, world: "World", number: int) -> None:
        self.number = number
        self.world = world
        self.is_bad = False  # it broke a rule
        self.is_refused = False
        self.is_paused = False
        self.unread = 0  # frames while it is paused
        self.is_explained = False  # its end
        self.has_greeted = False
        self.spoke_at = world.loop.now
        self.snapshot: tuple[int, int] | None = None  # bytes that are there, and to come
        self.first = Lsn(0)
        self.held = bytearray()  # the journal from `first` on
        self.reported = -1
        self.is_in = False  # ACCEPT or FULL_RESYNC came
        self._decoder = LinkDecoder(Accept, FullResync, Rejected, SnapshotChunk, JournalChunk, Heartbeat)
        self.transport = Transport(world.loop, self.receive, lambda: None)
        protocol = world.master.attach(self.transport, f"slave-{number}")
        assert protocol is not None
        self.transport.protocol = protocol
        self.protocol: Any = protocol

    @property
    def is_linked(self) -> bool:
        return not self.transport.is_closing()

    @property
    def end(self) -> Lsn:
        return Lsn(self.first + len(self.held))

    def send(self, data: bytes) -> None:
        """Have the master receive *data*, in pieces."""
        self.spoke_at = self.world.loop.now
        cut = self.world.random.randint(0, len(data))
        for piece in (data[:cut], data[cut:]):
            if piece and self.is_linked:
                self.world.loop.run_now(partial(self.protocol.data_received, piece))

    def receive(self, data: bytes) -> None:
        for frame in self._decoder.receive_data(data):
            self._frame(frame)

    def _frame(self, frame: LinkFrame) -> None:
        assert not self.is_refused, "a frame after REJECT"
        match frame:
            case Rejected():
                self.is_refused = True
                assert self.is_bad or self.world.is_unreadable, f"refused without a reason: {frame.text}"
                self.is_bad = True
            case Accept(divergence_lsn=divergence_lsn):
                assert self.has_greeted
                assert not self.is_in
                self.is_in, self.first = True, Lsn(divergence_lsn)
            case FullResync(start=start, checkpoint_bytes=size):
                assert not self.is_in
                self.is_in, self.first, self.snapshot = True, Lsn(start), (0, size)
            case SnapshotChunk(position, data):
                assert self.snapshot is not None
                assert position == self.snapshot[0], "a piece of the checkpoint out of place"
                assert bytes(data) == self.world.checkpoint[position : position + len(data)]
                self.snapshot = position + len(data), self.snapshot[1]
                assert self.snapshot[0] <= self.snapshot[1]
            case JournalChunk(lsn, data):
                assert self.is_in
                assert self.snapshot is None or self.snapshot[0] == self.snapshot[1], (
                    "the journal before the checkpoint"
                )
                assert lsn == self.end, "a piece of the journal out of place"
                self.held += data
            case Heartbeat(_, end, _, _, _):
                assert self.is_in
                assert self.end <= end
        if self.is_paused and not isinstance(frame, Rejected):
            self.unread += 1
            assert self.unread == 1, "sent to one that does not read"  # one piece may have been on its way
        if self.transport.is_full:
            self.is_paused = True

    # -- what it does -------------------------------------------------------------------------------------------------

    def greet(self, how: str = "") -> None:
        master, random = self.world.master, self.world.random
        epoch_history = tuple(
            (epoch.epoch, epoch.incarnation, int(epoch.lsn)) for epoch in master.store.source.state.epoch_history
        )
        base = Handshake(
            version=VERSION, cluster=IDENTITY.cluster, broker_id=IDENTITY.broker_id, slave_id=self.number,
            epoch_history=(), start=0, end=0,
        )  # fmt: skip
        match how or random.choice(["empty", "part", "part", "foreign", "stranger", "ahead"]):
            case "empty":
                handshake = base
            case "part":
                end = random.choice(self.world.ends)
                handshake = msgspec.structs.replace(
                    base, epoch_history=epoch_history, start=SEGMENT_HEADER_BYTES, end=end
                )
            case "foreign":
                handshake = msgspec.structs.replace(base, epoch_history=((1, 77, 0),), start=0, end=5000)
            case "ahead":
                self.is_bad = True
                end = master.journal.end + 8
                handshake = msgspec.structs.replace(
                    base, epoch_history=epoch_history, start=SEGMENT_HEADER_BYTES, end=end
                )
            case _:
                self.is_bad = True
                handshake = msgspec.structs.replace(base, cluster="another")
        self.is_bad |= self.has_greeted  # a second one
        self.has_greeted = True
        self.send(encode(handshake))

    def report(self) -> None:
        if not self.is_in:
            self.is_bad = True
            flushed = Lsn(0)
        else:
            flushed = Lsn(self.world.random.randint(max(self.reported, self.first), self.end))
            self.reported = flushed
        self.send(encode(FlushAck(flushed)))

    def report_all(self) -> None:
        if self.is_in:
            self.reported = self.end
            self.send(encode(FlushAck(self.end)))

    def lie(self) -> None:
        self.is_bad = True
        if self.is_in and self.reported > 0 and self.world.random.random() < 0.5:
            self.send(encode(FlushAck(Lsn(self.reported - 1))))
        else:
            self.send(encode(FlushAck(Lsn(self.world.master.journal.end + 1))))

    def send_what_nobody_wants(self) -> None:
        self.is_bad = True
        self.send(self.world.random.choice([journal_chunk_head(0, 3) + b"abc", b"\xff" * 20]))

    def stop_reading(self) -> None:
        self.transport.is_full = True  # from the next write on, as a full buffer does

    def read(self) -> None:
        self.transport.is_full = False
        if self.is_paused:
            self.is_paused, self.unread = False, 0
            if self.is_linked:
                self.world.loop.run_now(
                    self.transport.cut if self.transport.is_finished else self.protocol.resume_writing
                )

    def go(self) -> None:
        self.is_explained = True
        self.transport.cut()
        self.world.loop.drain()


class Links(Master):
    """A master whose newest checkpoint is any bytes, read by a thread."""

    world: "World"

    def checkpoint(self) -> "asyncio.Future[bytes]":
        return self.world.loop.run_in_executor(None, lambda: self.world.checkpoint)


class World:
    """One master and its slaves."""

    def __init__(self, seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = Random(seed)
        self.loop = VirtualLoop()
        config = BrokerConfig(
            data=directory,
            broker_id=IDENTITY.broker_id,
            port=0,
            broker=BrokerSection(cluster=IDENTITY.cluster, segment_bytes=SEGMENT_BYTES),
            replication=SECTION,
        )
        self.store = MessageStore.open(config, "test", lambda: None, Clock())
        self.checkpoint = self.random.randbytes(self.random.choice([0, 10, 3_000_000]))
        self.slaves: list[Slave] = []
        self.is_unreadable = False
        self.loop.run_now(lambda: self.begin())
        self.ends = [int(self.store.journal.end)]  # where records end
        real = ColdRead.run

        def run(read: ColdRead) -> bytes:
            if self.is_unreadable:
                raise UnreadableRange("journal", 0, 8, "Input/output error")
            return real(read)

        monkeypatch.setattr(ColdRead, "run", run)
        self.played = dict.fromkeys(("in", "refused", "resync", "unreadable"), 0)

    def begin(self) -> None:
        self.master = Links(
            *(self.loop, self.store, SECTION, "meta://m:1", None, lambda: None, None, lambda lost: None)  # type: ignore[arg-type]
        )
        self.master.world = self
        self.master.begin(None)

    @property
    def linked(self) -> list[Slave]:
        return [slave for slave in self.slaves if slave.is_linked]

    def new_slave(self, number: int) -> Slave:
        self.loop.run_now(lambda: self.slaves.append(Slave(self, number)))
        return self.slaves[-1]

    def connect(self) -> None:
        if len(self.linked) < 4:
            self.new_slave(self.random.randint(1, 3))

    def put(self) -> None:
        for _ in range(self.random.randrange(1, 6)):
            body = b"." * self.random.choice([10, 500, 20_000])
            self.ends.append(int(self.store.source.put(ORDERS, [body], len(body), 1).lsn))  # type: ignore[attr-defined]
        self.store.journal.wait_flushed(self.store.journal.end, 60)
        self.loop.run_now(self.master.pump)

    def heat(self) -> None:
        """Have the journal in the page cache, or not."""
        self.store.page_cache.hot_bytes = self.random.choice([0, 0, 1e12])

    def damage(self) -> None:
        self.is_unreadable = self.random.random() < 0.3

    def thread(self) -> None:
        if self.loop.jobs:
            job = self.loop.jobs.pop(self.random.randrange(len(self.loop.jobs)))
            self.played["unreadable"] += self.is_unreadable
            self.loop.run_now(job)

    def one(self, step: Callable[[Slave], None]) -> None:
        if linked := self.linked:
            step(self.random.choice(linked))

    def time(self, seconds: float | None = None) -> None:
        for _ in range(round((seconds or self.random.choice([SLICE_S, 0.3, 0.3, 1.2])) / SLICE_S)):
            self.loop.now += SLICE_S
            self.loop.drain()

    def check(self) -> None:
        if self.loop.errors:
            raise self.loop.errors[0]["exception"]
        for slave in self.slaves:
            quiet_s = self.loop.now - slave.spoke_at
            if slave.is_linked:
                assert not slave.is_refused or slave.transport.is_finished
                assert slave.is_refused or quiet_s <= SILENCE_S + 2 * BEAT_S, "a silent slave"
            elif not slave.is_bad and not slave.is_explained:
                is_replaced = any(
                    other is not slave and other.number == slave.number and other.is_in for other in self.slaves
                )
                assert quiet_s > SILENCE_S or is_replaced, "left without a reason"
                slave.is_explained = True

    def settle(self) -> None:
        """Nothing fails any more: a slave that begins now is sent everything, and acknowledges it."""
        self.is_unreadable = False
        newest = self.new_slave(9)
        newest.greet("empty")
        for _ in range(300):
            while self.loop.jobs:
                self.thread()
            newest.report_all()
            if newest.is_in and newest.end == self.store.journal.end:
                break
            newest.spoke_at = self.loop.now
            self.time(SLICE_S)
        else:
            raise AssertionError("it never has everything")
        assert newest.snapshot == (len(self.checkpoint),) * 2

    def judge(self) -> None:
        """Compare what each slave was sent with the files."""
        files = {
            base: path.read_bytes()
            for path in Path(self.store.journal.storage.path).iterdir()
            if (base := segment_base(path.name)) is not None
        }
        whole = b"".join(files[base] for base in sorted(files))
        for slave in self.slaves:
            assert whole[slave.first : slave.end] == slave.held
            self.played["in"] += slave.is_in
            self.played["refused"] += slave.is_refused
            self.played["resync"] += slave.snapshot is not None

    def end(self) -> None:
        closed = self.loop.create_task(self.master.close())
        for _ in range(100):
            self.loop.drain()
            if closed.done():
                break
            while self.loop.jobs:
                self.loop.run_now(self.loop.jobs.pop())
            self.loop.now += 1
        closed.result()
        assert self.linked == []
        self.loop.drain()
        assert self.loop.pending_timers() == []
        self.loop.close()
        self.store.close()


WEIGHTS: dict[Callable[[World], object], int] = {
    World.connect: 6,
    World.put: 8,
    World.heat: 2,
    World.damage: 1,
    World.thread: 14,
    World.time: 8,
    lambda world: world.one(Slave.greet): 8,
    lambda world: world.one(Slave.report): 4,
    lambda world: world.one(Slave.report_all): 14,
    lambda world: world.one(Slave.lie): 1,
    lambda world: world.one(Slave.send_what_nobody_wants): 1,
    lambda world: world.one(Slave.stop_reading): 3,
    lambda world: world.one(Slave.read): 6,
    lambda world: world.one(Slave.go): 1,
}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_the_order_a_slave_is_sent_what_it_lacks_and_nothing_else(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, tmp_path / "master", monkeypatch)
    steps = list(WEIGHTS)
    try:
        for number in range(STEPS):
            step = world.random.choices(steps, list(WEIGHTS.values()))[0]
            print(
                f"seed={seed} {number} step {steps.index(step)} now={world.loop.now:.2f} end={world.store.journal.end}"
            )
            step(world)
            world.check()
        world.settle()
        world.judge()
    finally:
        world.end()
    print(f"seed={seed} {world.played}")


def test_what_the_disk_does_not_return_is_read_again_after_a_while_and_no_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1, tmp_path / "master", monkeypatch)
    try:
        world.store.page_cache.hot_bytes = 0
        slave = world.new_slave(1)
        slave.greet("empty")
        world.thread()
        world.is_unreadable = True
        world.put()
        while world.loop.jobs:
            world.thread()
        assert "Input/output error" in slave.protocol.read_error
        world.is_unreadable = False
        for _ in range(round(READ_RETRY_S / SLICE_S) - 1):
            world.put()
            slave.report_all()
            world.time(SLICE_S)
            assert world.loop.jobs == []
        world.time(2 * SLICE_S)
        while world.loop.jobs:
            world.thread()
        assert slave.end == world.store.journal.end
        assert slave.protocol.read_error == ""
    finally:
        world.end()
