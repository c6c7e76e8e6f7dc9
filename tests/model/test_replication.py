"""Master, slaves, links and promotion, on the pure parts alone, under random steps: nothing acknowledged is lost.

Journals are lists of units of the same length, each of which says who wrote it. Links are queues of bytes that are cut,
delayed, and lose or repeat a frame; power cuts take what was not fsynced, of a master that acknowledges before its own
fsync, too, and directories are restored from older copies; ZooKeeper is one node, written by
compare-and-set, whose answers are late. METAQ_MODEL_SEED repeats a run, METAQ_MODEL_STEPS makes it longer.
"""

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from journal.checksum import crc32
from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.wal.high_watermark import LSN_MAX
from meta_broker.config.sections import ReplicationSection
from meta_broker.replication.link_protocol import (
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkRefused,
    encode,
    journal_chunk_head,
)
from meta_broker.replication.master.handshake import SendProgress, StartFetch, StartStream
from meta_broker.replication.replica.effects import Append, Close, Effect, End, ReadProof, Resync, Send, SendTail, Show
from meta_broker.replication.replica.replica_state import STREAMS
from meta_client.protocol.errors import RemoteProtocolError
from tests.model.playing import TIMEOUT_S, Counted, play
from tests.model.replication_world import IDENTITY, UNIT, Copy, Link, MasterProcess
from zk.brokers.replication import ReplicationNode

BROKERS = 3
ID = st.integers(0, BROKERS - 1)


class ReplicationMachine(Counted):
    promotions = cuts = taken_back = 0

    @initialize(policy=st.sampled_from(["refuse", "degrade"]), is_interval=st.booleans())
    def begin(self, policy: str, is_interval: bool) -> None:
        self.is_interval = is_interval
        self.section = ReplicationSection(mode="sync", without_slaves="refuse" if policy == "refuse" else "degrade")
        self.now = 0.0
        self.node: ReplicationNode | None = None
        self.version = 0
        self.acknowledged: list[WriterEpoch] = []  # every unit that any master ever acknowledged, in order
        self.copies = [Copy(number) for number in range(BROKERS)]
        self.copies[0].is_master = True
        self.start_master(0)

    # -- the master -------------------------------------------------------------------------------------------

    @rule(number=ID)
    def start_master(self, number: int) -> None:
        self.count()
        copy = self.copies[number]
        if not copy.is_master or copy.master is not None:
            return
        recovered = copy.units[-1].epoch if copy.units else 1
        if self.node is not None and self.node.epoch > recovered:
            copy.is_master = False  # superseded: it rejoins
            return
        copy.master = self.process(copy, recovered)

    def process(self, copy: Copy, epoch: int) -> MasterProcess:
        return MasterProcess(copy, epoch, self.node, self.section, self.now, is_interval=self.is_interval)

    @rule(number=ID)
    def write_watermark(self, number: int) -> None:
        self.count()
        copy = self.copies[number]
        if (master := copy.master) is not None:
            copy.watermark = master.high_watermark // UNIT.size
            copy.is_whole = master.is_whole and not self.is_interval

    @rule(number=ID, units=st.integers(1, 5))
    def append(self, number: int, units: int) -> None:
        self.count()
        if (master := self.copies[number].master) is not None:
            self.copies[number].units += [master.life] * units

    @rule(number=ID)
    def flush(self, number: int) -> None:
        self.count()
        copy = self.copies[number]
        copy.flushed = len(copy.units)
        self.advance(copy)

    def advance(self, copy: Copy) -> None:
        if (master := copy.master) is None:
            return
        high_watermark = min(master.acknowledged_here * UNIT.size, master.in_sync.replicated)
        if high_watermark > master.high_watermark:
            master.high_watermark = Lsn(high_watermark)
            units = copy.units[: high_watermark // UNIT.size]
            shared = min(len(units), len(self.acknowledged))
            assert units[:shared] == self.acknowledged[:shared], "acknowledged, and something else stands there"
            self.acknowledged += units[shared:]

    @rule(seconds=st.sampled_from([0.1, 0.5, 0.9]), beats=st.integers(1, 6))
    def time_passes(self, seconds: float, beats: int) -> None:
        self.count()
        for _ in range(beats):
            self.now += seconds
            for copy in self.copies:
                if (master := copy.master) is not None:
                    if (
                        wanted := master.in_sync.plan(master.high_watermark, self.now, Lsn(copy.flushed * UNIT.size))
                    ) is not None:
                        assert master.writing is None
                        master.writing = wanted
                    for link in master.links.values():
                        if link.feeding is not None:
                            link.to_slave.append(encode(self.position(master)))

    def position(self, master: MasterProcess) -> Heartbeat:
        return Heartbeat(master.high_watermark, master.copy.end, 0, False, "sync")

    @rule(number=ID)
    def zookeeper_takes_it(self, number: int) -> None:
        self.count()
        copy = self.copies[number]
        if (master := copy.master) is None or master.writing is None:
            return
        if self.node is not None and self.node.epoch > master.epoch:
            copy.power_cut(len(copy.units))  # superseded: it stops
            copy.is_master = False
            return
        self.node, master.written, master.writing = master.writing, master.writing, None

    @rule(number=ID)
    def zookeeper_answers(self, number: int) -> None:
        self.count()
        if (master := self.copies[number].master) is not None and master.written is not None:
            master.in_sync.on_written(master.written)
            master.written = None
            self.advance(master.copy)

    @rule(number=ID, kept=st.integers(0, 5))
    def power_cut(self, number: int, kept: int) -> None:
        self.count()
        copy = self.copies[number]
        for other in self.copies:
            if other.link is not None and (other is copy or other.link.master.copy is copy):
                self.drop(other)
        is_alone = copy.master is not None and not copy.master.in_sync.members and not copy.master.writing
        copy.power_cut(kept)
        if is_alone and self.is_interval and self.node is not None and not self.node.in_sync:
            # It has acknowledged without any slave, and before its fsync, as it was told to.
            units = self.acknowledged[: len(copy.units)]
            if copy.units[: len(units)] == units:
                del self.acknowledged[len(copy.units) :]

    # -- links ------------------------------------------------------------------------------------------------

    @rule(number=ID, whom=ID)
    def dial(self, number: int, whom: int) -> None:
        self.count()
        copy, master = self.copies[number], self.copies[whom].master
        if copy.is_master or copy.link is not None or master is None or number == whom:
            return
        copy.link = Link(copy, master)

    @rule(number=ID)
    def cut_link(self, number: int) -> None:
        self.count()
        self.drop(self.copies[number])

    def drop(self, slave: Copy) -> None:
        if (link := slave.link) is not None:
            slave.link, slave.rest = None, b""
            if link.master.links.get(slave.number) is link:
                del link.master.links[slave.number]
                link.master.in_sync.on_disconnected(slave.number)

    @rule(number=ID, size=st.sampled_from([7, 56, 91, 700]))
    def feed(self, number: int, size: int) -> None:
        self.count()
        if (link := self.copies[number].link) is None or link.feeding is None:
            return
        side, copy = link.feeding, link.master.copy
        size = min(size, side.next_bytes(copy.end, LSN_MAX))
        if size:
            link.to_slave.append(journal_chunk_head(side.sent, size) + copy.bytes_of(side.sent, side.sent + size))
            side.advance(size)

    @rule(number=ID)
    def report(self, number: int) -> None:
        self.count()
        copy = self.copies[number]
        if copy.link is not None and copy.link.side.state in STREAMS:
            self.slave_acts(copy.link, copy.link.side.progress(Lsn(copy.flushed * UNIT.size), 0))
            self.slave_acts(copy.link, copy.link.side.tick(0.0))

    @rule(number=ID, frames=st.integers(1, 5))
    def deliver_to_master(self, number: int, frames: int) -> None:
        self.count()
        slave = self.copies[number]
        while frames and (link := slave.link) is not None and link.to_master:
            frames -= 1
            try:
                for frame in link.at_master.receive_data(link.to_master.popleft()):
                    self.master_hears(link, frame)
            except (LinkRefused, RemoteProtocolError):
                self.drop(slave)

    def master_hears(self, link: Link, frame: object) -> None:
        master, number = link.master, link.slave.number
        match frame:
            case Handshake():
                if link.feeding is not None:
                    raise LinkRefused("twice")
                found = master.loss.decide_start(frame, IDENTITY, master.extent, master.high_watermark)
                if isinstance(found, StartFetch):
                    link.wanted = found.divergence_lsn, Lsn(frame.end)
                    master.loss.suspect({number, *master.in_sync.members})
                    master.is_whole = False
                    proof = crc32(master.copy.bytes_of(0, found.divergence_lsn))
                    asked = FetchTail(
                        epoch=master.epoch,
                        divergence_lsn=found.divergence_lsn,
                        proof_bytes=found.divergence_lsn,
                        proof=proof,
                        master="m",
                    )
                    link.to_slave.append(encode(asked))
                    return
                begin = found.divergence_lsn if isinstance(found, StartStream) else Lsn(0)
                if isinstance(found, StartStream):
                    greeting = encode(self.welcome(master, begin))
                else:
                    greeting = encode(self.full_resync(master, found.reason))
                link.feeding = SendProgress(number, begin, keeps_own_journal=isinstance(found, StartStream))
                master.loss.on_streaming(number)
                master.in_sync.on_connected(number, master.copy.end, self.now)
                master.links[number] = link
                link.to_slave.append(greeting)
            case FlushAck(flushed):
                if link.feeding is None:
                    raise LinkRefused("early")
                link.feeding.report(flushed)
                master.in_sync.on_ack(number, flushed, master.copy.end, self.now)
                if master.loss.confirm(link.feeding):
                    master.is_whole = True
                    for other in self.copies:
                        if other.link is not None and other.link.master is master and other.link.wanted is not None:
                            self.drop(other)
                self.advance(master.copy)
            case JournalChunk(lsn, data):
                if link.wanted is None or lsn != link.wanted[0] + len(link.fetched):
                    raise LinkRefused("not asked for")
                link.fetched += data
                if lsn + len(data) == link.wanted[1]:
                    self.restore_tail(master, link)

    def restore_tail(self, master: MasterProcess, link: Link) -> None:
        """The master stops, puts what came into its journal, and starts again."""
        assert link.wanted is not None
        copy, (divergence_lsn, _) = master.copy, link.wanted
        units, fetched = copy.units[: divergence_lsn // UNIT.size], link.fetched
        for other in self.copies:
            if other.link is not None and other.link.master is master:
                self.drop(other)
        for epoch, incarnation, began in UNIT.iter_unpack(fetched):
            units.append(WriterEpoch(epoch, incarnation, Lsn(began * UNIT.size)))
        assert units[: len(self.acknowledged)] == self.acknowledged, "what was acknowledged is still not there"
        copy.units, copy.flushed, copy.is_whole = units, len(units), True
        type(self).taken_back += 1
        copy.master = None
        self.start_master(copy.number)

    @rule(number=ID, kept=st.integers(0, 3), older=st.integers(0, 5))
    def a_directory_is_restored(self, number: int, kept: int, older: int) -> None:
        """From a copy that was made while its master ran."""
        self.count()
        copy = self.copies[number]
        if copy.master is None or not self.is_interval or not copy.master.in_sync.members:
            return  # with flush mode sync a copy is taken for what it was, and what nobody else had is lost
        self.power_cut(number, kept)
        del copy.units[max(len(copy.units) - older, copy.watermark) :]
        copy.flushed = len(copy.units)

    def welcome(self, master: MasterProcess, divergence_lsn: Lsn) -> Accept:
        proof = crc32(master.copy.bytes_of(0, divergence_lsn))
        return Accept(
            epoch=master.epoch,
            divergence_lsn=divergence_lsn,
            proof_bytes=divergence_lsn,
            proof=proof,
            heartbeat_ms=500,
            silence_ms=3000,
            master="m",
        )

    def full_resync(self, master: MasterProcess, reason: str) -> FullResync:
        return FullResync(
            epoch=master.epoch,
            start=0,
            checkpoint_bytes=0,
            reason=reason,
            heartbeat_ms=500,
            silence_ms=3000,
            master="m",
        )

    @rule(number=ID, frames=st.integers(1, 9))
    def deliver_to_slave(self, number: int, frames: int) -> None:
        self.count()
        slave = self.copies[number]
        while frames and (link := slave.link) is not None and link.to_slave:
            frames -= 1
            try:
                for frame in link.at_slave.receive_data(link.to_slave.popleft()):
                    self.slave_acts(link, link.side.frame(frame, 1))
            except (LinkRefused, RemoteProtocolError):
                self.drop(slave)

    def slave_acts(self, link: Link, effects: list[Effect]) -> None:
        for effect in effects:
            self.slave_does(link, effect)

    def slave_does(self, link: Link, effect: Effect) -> None:
        slave = link.slave
        match effect:
            case Send(data):
                link.to_master.append(data)
            case ReadProof(lsn, size):
                self.slave_acts(link, link.side.proof_read(crc32(slave.bytes_of(lsn - size, lsn))))
            case SendTail(lsn, end):
                slave.flushed = max(slave.flushed, end // UNIT.size)
                for at in range(lsn, end, 84):
                    size = min(84, end - at)
                    link.to_master.append(journal_chunk_head(at, size) + slave.bytes_of(at, at + size))
            case End(Resync(lsn, _, checkpoint)):
                assert checkpoint is None, "no full resync is needed here: every epoch is known"
                type(self).cuts += 1
                kept = lsn // UNIT.size
                assert self.acknowledged[kept : kept + 1] != slave.units[kept:][:1], "cut what was acknowledged"
                del slave.units[kept:]
                slave.flushed = min(slave.flushed, kept)
                slave.heard = min(slave.heard, kept)
            case Close():
                self.drop(slave)
            case Append(lsn, data):
                assert lsn == slave.end + len(slave.rest)
                raw = slave.rest + bytes(data)
                whole = len(raw) - len(raw) % UNIT.size
                for epoch, incarnation, began in UNIT.iter_unpack(raw[:whole]):
                    slave.units.append(WriterEpoch(epoch, incarnation, Lsn(began * UNIT.size)))
                slave.rest = raw[whole:]
            case Show(high_watermark):
                slave.heard = high_watermark // UNIT.size
                count = min(high_watermark, slave.end) // UNIT.size
                assert slave.units[:count] == self.acknowledged[:count], "a slave shows what nobody acknowledged"
            case _:
                pass

    @rule(number=ID, repeat=st.booleans(), to_slave=st.booleans())
    def a_frame_is_lost_or_repeated(self, number: int, repeat: bool, to_slave: bool) -> None:
        self.count()
        if (link := self.copies[number].link) is None:
            return
        queue = link.to_slave if to_slave else link.to_master
        if queue and repeat:
            queue.appendleft(queue[0])
        elif queue:
            queue.popleft()

    @rule(number=ID, whom=ID, grows=st.integers(0, 5), size=st.sampled_from([56, 112, 700]))
    def all_goes_well(self, number: int, whom: int, grows: int = 0, size: int = 700) -> None:
        """The steps of a slave that gets into sync, in their order: by chance alone they hardly ever follow."""
        self.start_master(whom)
        self.dial(number, whom)
        for _ in range(3):
            self.deliver_to_master(number, 5)
            self.deliver_to_slave(number, 9)
            self.dial(number, whom)  # after a cut of what the master never had
        if grows:
            self.append(whom, grows)
            self.flush(whom)
        for _ in range(3):
            self.feed(number, size)
            self.deliver_to_slave(number, 9)
        for copy in (number, whom):
            self.flush(copy)
        self.report(number)
        self.deliver_to_master(number, 9)
        self.time_passes(0.1, 1)
        self.zookeeper_takes_it(whom)
        self.zookeeper_answers(whom)

    # -- promotion --------------------------------------------------------------------------------------------

    @rule(number=ID, dies=st.booleans())
    def promote(self, number: int, dies: bool) -> None:
        """Promote a slave that ZooKeeper calls in sync, as `metaq promote` does; the master may be dead, or only cut
        off."""
        self.count()
        copy = self.copies[number]
        if copy.is_master or self.node is None or number not in self.node.in_sync:
            return
        if dies:
            for other in self.copies:
                if other.master is not None:
                    self.power_cut(other.number, 0)
        self.drop(copy)
        copy.power_cut(0)
        type(self).promotions += 1
        assert copy.units[: len(self.acknowledged)] == self.acknowledged, "what was acknowledged is not there"
        epoch = self.node.epoch + 1
        left = tuple(slave_id for slave_id in self.node.in_sync if slave_id != number)
        self.node = msgspec.structs.replace(self.node, epoch=epoch, master="", in_sync=left)
        copy.is_master, copy.is_whole = True, True
        copy.watermark = min(copy.heard, len(copy.units))
        copy.master = self.process(copy, epoch)

    @rule(number=ID, whom=ID, tail=st.integers(0, 3), dies=st.booleans(), silent=st.booleans(), written=st.booleans())
    def a_slave_takes_over(self, number: int, whom: int, tail: int, dies: bool, silent: bool, written: bool) -> None:
        """Promote a slave; the former master, with a tail only it has, follows it."""
        self.all_goes_well(number, whom)
        if silent:
            self.cut_link(number)
            for _ in range(8):
                self.time_passes(0.5, 1)
            if written:
                self.zookeeper_takes_it(whom)
                self.zookeeper_answers(whom)
        if tail:
            self.append(whom, tail)
            self.flush(whom)
        self.promote(number, dies)
        self.time_passes(0.9, 6)
        self.zookeeper_takes_it(whom)  # a master that lives on finds that it is superseded
        self.start_master(whom)
        self.all_goes_well(whom, number)

    @rule(number=ID, whom=ID, tail=st.integers(1, 5), kept=st.integers(0, 3), late=st.booleans(), again=st.booleans())
    def a_master_loses_its_tail(self, number: int, whom: int, tail: int, kept: int, late: bool, again: bool) -> None:
        """Lose bytes of a master that its slave has fsynced."""
        self.all_goes_well(number, whom)
        self.append(whom, tail)
        for _ in range(3):
            self.feed(number, 700)
            self.deliver_to_slave(number, 9)
        self.flush(number)
        self.report(number)
        self.deliver_to_master(number, 9)
        self.advance(self.copies[whom])
        if late:
            self.write_watermark(whom)
        for _ in range(2 if again else 1):
            self.power_cut(whom, kept)
            self.start_master(whom)
            self.append(whom, kept)
            self.flush(whom)
        if late:
            self.time_passes(0.9, 6)
            self.zookeeper_takes_it(whom)
            self.zookeeper_answers(whom)
        self.all_goes_well(number, whom)

    @invariant()
    def what_is_acknowledged_stands_with_its_master(self) -> None:
        for copy in getattr(self, "copies", ()):
            if (master := copy.master) is not None:
                count = master.high_watermark // UNIT.size
                assert copy.units[:count] == self.acknowledged[:count]


@pytest.mark.timeout(TIMEOUT_S)
def test_nothing_acknowledged_is_lost() -> None:
    machine = ReplicationMachine
    machine.promotions = machine.cuts = machine.taken_back = 0
    play(
        machine,
        steps_a_machine=100,
        steps_an_example=400,  # those of the stories counted
        is_enough=lambda: machine.promotions > 0 < machine.cuts and machine.taken_back > 0,
    )
    print(f"promotions={machine.promotions} cuts={machine.cuts} taken_back={machine.taken_back}")
