"""A master's end of a link, on a real broker, with a slave's end that speaks by hand."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.checksum import crc32
from journal.records.xid import LocalKey, XaKey, Xid
from journal.state.checkpoint import read_newest
from journal.wal.segments import segment_base
from journal.wal.storage import DirectoryStorage
from meta_broker.replication.link_protocol import Accept, EpochNumbers, FetchTail, FullResync, Rejected
from meta_broker.replication.master.tail_fetch import PAUSE_S_MIN
from meta_client.protocol.answers import NOT_REPLICATED
from meta_client.protocol.requests import (
    Get,
    Put,
    Replicate,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import Result, Value
from meta_client.protocol.status import Status
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.links import WAIT_S, RawSlave, raw_slave
from tests.fixtures.replicas import wait_until
from tests.fixtures.wire import Refused as RefusedWrite
from tests.fixtures.wire import WireClient
from zk.brokers.replication import ReplicationNode, claim_epoch, read_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

CALM = CONFIG.replace("checkpoint_seconds = 2.0", "checkpoint_seconds = 3600.0")  # no records by itself
# A slave by hand is silent while its test does something else, or nothing: only where that is the matter is it told of.
PATIENT = "[replication]\nheartbeat_ms = 100\nsilence_ms = 600000\nlag_ms = 600000\ntimeout_ms = 120000\n"
FAST = "[replication]\nheartbeat_ms = 100\nsilence_ms = 3000\nlag_ms = 3000\ntimeout_ms = 120000\n"
SYNC = CALM + PATIENT + 'mode = "sync"\n'
FAST_SYNC = CALM + FAST + 'mode = "sync"\n'
SMALL_SEGMENTS = CALM.replace("segment_bytes = 4194304", "segment_bytes = 131072\nmessage_bytes_max = 65536") + PATIENT
BODY = b"x" * 1000


@pytest.fixture
def sync_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "broker", None, config=SYNC) as process:
        yield process


def stored(directory: Path) -> bytes:
    """Every segment of a journal, one after the other."""
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()) if segment_base(path.name) is not None)


def replication_lines(client: WireClient) -> list[str]:
    return client.stats("replication")[1:-1]


def words_of(line: str) -> dict[str, str]:
    words = line.split()[1:] if line.startswith("master") else line.split()
    return dict(zip(words[::2], words[1::2], strict=True))


def end_of(client: WireClient) -> int:
    return int(words_of(replication_lines(client)[0])["end"])


def follow_all(slave: RawSlave, client: WireClient) -> None:
    """Take everything the master has, and say so."""
    slave.follow_to(end_of(client))
    slave.report()


def epochs_of(directory: Path) -> tuple[list[EpochNumbers], int]:
    """Return the epoch history of a journal that was stopped cleanly, and the LSN of its last checkpoint."""
    content = read_newest(DirectoryStorage.open_for_reading(directory)).content
    assert content is not None
    state = content[1]
    return [(epoch.epoch, epoch.incarnation, epoch.lsn) for epoch in state.epoch_history], state.lsn


def test_a_slave_is_sent_the_journal_byte_by_byte_through_segments_and_while_it_grows(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=SMALL_SEGMENTS) as broker,
        WireClient(broker.port) as client,
        raw_slave(broker.port) as slave,
    ):
        for _ in range(300):
            client.put("orders", 0, BODY)
        slave.begin()
        follow_all(slave, client)
        for size in (1, 60_000, 60_000, 7, 60_001, 30_000):  # PADs, and a rest too short for one
            client.put("orders", 1, b"y" * size)
        follow_all(slave, client)
        assert len(slave.stream) > 3 * 131072
        assert stored(broker.data)[: slave.end] == slave.stream
        slave.follow_until_watermark(slave.end)
        wait_until(lambda: "in_sync true" in replication_lines(client)[1], "the slave is in sync")
        words = words_of(replication_lines(client)[1])
        assert (words["slave"], words["lag_bytes"], words["lag_ms"], words["serves"]) == ("1", "0", "0", "true")


def test_a_pause_of_the_master_is_no_silence_of_a_slave_in_its_handshake(tmp_path: Path) -> None:
    silence_s = 1.0
    config = CALM + FAST.replace("silence_ms = 3000", f"silence_ms = {silence_s * 1000:.0f}")
    with running_broker(tmp_path / "broker", None, config=config) as broker, raw_slave(broker.port) as slave:
        broker.pause()
        time.sleep(2 * silence_s)
        slave.handshake()  # is there when the master goes on
        broker.resume()
        slave.expect(FullResync)
    with running_broker(tmp_path / "broker", None, config=config) as broker, raw_slave(broker.port) as slave:
        assert list(slave.frames()) == []  # a slave's own silence ends the link
        assert "silent for 1 s" in broker.log


def test_after_a_break_the_stream_goes_on_where_the_logs_part_and_the_master_proves_it(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=SMALL_SEGMENTS) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, BODY)
        assert broker.stop() == 0
        epoch_history, lsn = epochs_of(broker.data)
        whole = stored(broker.data)
        broker.start()
        with raw_slave(broker.port) as slave:
            slave.handshake(*epoch_history, start=128, end=lsn)
            welcome = slave.expect(Accept)
            assert (welcome.divergence_lsn, welcome.epoch) == (lsn, 1)
            assert welcome.proof == crc32(whole[lsn - welcome.proof_bytes : lsn])
            assert 0 < welcome.proof_bytes <= 4096
        with WireClient(broker.port) as client, raw_slave(broker.port) as slave:
            # A tail that no master ever had, of a life that nobody knows: the slave is told to cut it.
            slave.handshake(*epoch_history, (1, 9, lsn), start=128, end=lsn + 5000)
            assert slave.expect(Accept).divergence_lsn == lsn
            follow_all(slave, client)
            assert stored(broker.data)[lsn : slave.end] == slave.stream


def begins_later(port: int) -> bool:
    """Return whether a new slave would not be sent the journal from its first byte on."""
    with raw_slave(port) as slave:
        slave.handshake()
        return slave.expect(FullResync).start > 0


def test_a_slave_beyond_retention_gets_the_newest_checkpoint_and_then_the_stream(tmp_path: Path) -> None:
    config = SMALL_SEGMENTS.replace("3600.0", "2.0") + "[retention]\nbytes = 262144\nwhen = 0.2\n"
    with running_broker(tmp_path / "broker", None, config=config) as broker, WireClient(broker.port) as client:
        for _ in range(700):
            client.put("orders", 0, BODY)
        first = broker.data / f"{0:020d}.journal"
        wait_until(lambda: not first.exists(), "retention drops the first segment")
        wait_until(lambda: begins_later(broker.port), "the master's journal begins after it")
        with raw_slave(broker.port) as slave:
            slave.handshake()
            resync = slave.expect(FullResync)
            follow_all(slave, client)
            assert len(slave.checkpoint) == resync.checkpoint_bytes > 0
            assert resync.start > 0
            assert slave.checkpoint.startswith(b"%08x\n" % crc32(slave.checkpoint[9:-1]))
            with raw_slave(broker.port, 2) as other:  # as the first one says after its full resync
                other.handshake((1, 1, 0), start=resync.start, end=resync.start)
                assert isinstance(other.expect(FullResync), FullResync)  # a life that the master does not know


def test_a_foreign_slave_is_told_why_it_is_refused(lone_broker: BrokerProcess) -> None:
    with raw_slave(lone_broker.port) as slave:
        slave.handshake(cluster="another")
        assert "is of broker 0 of cluster 'another'" in slave.expect(Rejected).text
        assert list(slave.frames()) == []
    with raw_slave(lone_broker.port) as slave:
        slave.begin()
        slave.report(1 << 40)
        assert "claims to have LSN 1099511627776" in slave.expect(Rejected).text
    with raw_slave(lone_broker.port) as slave:
        slave.report(0)
        assert "a FLUSH_ACK before its HANDSHAKE" in slave.expect(Rejected).text
    with raw_slave(lone_broker.port) as slave:
        slave.socket.sendall(b"get orders g 0 0 100 1\r\n")
        assert "an unexpected frame" in slave.expect(Rejected).text
    with WireClient(lone_broker.port) as client:
        client.send(Replicate(1), Version(2))  # asks for more before the link is there
        assert client.receive().opaque == 1
        assert client.receive().opaque == 2
        assert client.put("orders", 0, BODY).offset == 0


def test_what_a_connection_began_as_a_client_ends_when_it_becomes_a_link(lone_broker: BrokerProcess) -> None:
    """Otherwise the broker would keep the branch, and the journal from there on, until its next start."""
    key = LocalKey("s", 1)
    with WireClient(lone_broker.port) as client, WireClient(lone_broker.port) as other:
        client.verb(TransactionVerb.BEGIN, key)
        client.put("orders", 0, BODY, key)
        assert isinstance(answer := client.ask(Replicate(7)), Result)
        assert answer.is_success
        assert "tx_rollback 1" in other.stats()
        deleted = other.ask(TopicCommand(TopicVerb.DELETE, "orders", (), 8))
        assert isinstance(deleted, Result)
        assert deleted.is_success, deleted.text


def test_the_same_slave_has_one_link_and_a_silent_one_is_closed(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=CONFIG + FAST) as broker,
        WireClient(broker.port) as client,
        raw_slave(broker.port) as first,
    ):
        first.begin()
        with raw_slave(broker.port) as second:  # connects now: on a busy machine it would be silent for too long
            before = time.monotonic()
            second.begin()
            for _ in first.frames():
                pass  # until it is closed
            assert words_of(replication_lines(client)[1])["peer"] == ":".join(map(str, second.socket.getsockname()))
            for _ in second.frames():
                pass  # never a report
            assert 2.5 < time.monotonic() - before < WAIT_S  # when `frames` would end by itself
        assert words_of(replication_lines(client)[1])["reason"] in ("silent", "not-connected")


def test_sync_nothing_is_answered_or_seen_before_the_slave_has_it(sync_broker: BrokerProcess) -> None:
    with (
        WireClient(sync_broker.port) as producer,
        WireClient(sync_broker.port) as consumer,
        raw_slave(sync_broker.port) as slave,
    ):
        slave.begin()
        follow_all(slave, consumer)
        wait_until(lambda: "in_sync true" in replication_lines(consumer)[1], "the slave is in sync")
        producer.send(Put("orders", 0, 0, None, None, 1, BODY))
        before = slave.end
        slave.follow_to(before + len(BODY))
        assert consumer.result(Get("orders", "g", 0, 0, 10_000, 1)).status == Status.NOT_FOUND
        assert words_of(replication_lines(consumer)[0])["high_watermark"] == str(before)
        slave.report()
        answer = producer.receive()
        assert isinstance(answer, Result)
        assert answer.is_success
        assert isinstance(consumer.ask(Get("orders", "g", 0, 0, 10_000, 2)), Value)


def in_sync(slave: RawSlave, client: WireClient) -> None:
    """Have *slave* follow, and be counted on."""
    slave.begin()
    follow_all(slave, client)
    wait_until(lambda: "in_sync true" in replication_lines(client)[1], "the slave is in sync")


def test_sync_a_write_that_waits_too_long_is_told_so_and_seen_once_a_slave_has_it(tmp_path: Path) -> None:
    key = XaKey(Xid(1, b"g", b"b"), "uq")
    config = SYNC.replace("timeout_ms = 120000", "timeout_ms = 4000")  # the PREPARE is sent before the put is late
    with (
        running_broker(tmp_path / "broker", None, config=config) as broker,
        WireClient(broker.port) as producer,
        WireClient(broker.port) as other,
        raw_slave(broker.port) as slave,
    ):
        in_sync(slave, other)
        other.verb(TransactionVerb.BEGIN, key, qualifier="uq")
        other.put("orders", 1, b"in a branch", key)
        producer.send(Put("orders", 0, 0, None, None, 1, BODY))
        with pytest.raises(RefusedWrite, match=f"code=-7,msg=PREPARE .* {NOT_REPLICATED}"):
            other.verb(TransactionVerb.PREPARE, key, qualifier="uq")
        late = producer.receive()
        assert isinstance(late, Result)
        assert late.status == Status.INTERNAL_ERROR
        assert late.text.startswith(f"put to [partition 'orders-0'] at offset 0: {NOT_REPLICATED}")
        slave.report()  # still there, and still not further
        with pytest.raises(RefusedWrite, match="nothing was done: what was written before is not yet replicated"):
            producer.put("orders", 0, BODY)
        with pytest.raises(RefusedWrite, match=r"code=-7,msg=BEGIN .* nothing was done"):
            other.verb(TransactionVerb.BEGIN, key, qualifier="uq")
        assert producer.result(Get("orders", "g", 0, 0, 10_000, 2)).status == Status.NOT_FOUND
        follow_all(slave, other)
        wait_until(lambda: isinstance(producer.ask(Get("orders", "g", 0, 0, 10_000, 3)), Value), "it is seen")
        assert other.verb(TransactionVerb.RECOVER, None, qualifier="uq") == str(key).encode()


def test_sync_a_connection_with_many_late_answers_is_read_again_once_slaves_are_back(tmp_path: Path) -> None:
    config = SYNC.replace("timeout_ms = 120000", "timeout_ms = 1000").replace(
        "[broker]", "[broker]\nunsent_bytes_max = 100"
    )
    assert config.count("unsent_bytes_max") == 1
    recovers = [
        TransactionCommand(None, "s", TransactionVerb.RECOVER, None, "uq", opaque) for opaque in range(100, 200)
    ]
    with (
        running_broker(tmp_path / "broker", None, config=config) as broker,
        WireClient(broker.port) as producer,
        WireClient(broker.port) as other,
        WireClient(broker.port) as watcher,
        raw_slave(broker.port) as slave,
    ):
        in_sync(slave, watcher)
        producer.send(Put("orders", 0, 0, None, None, 1, BODY))
        for recover in recovers:
            other.send(recover)
        late = other.receive()
        assert isinstance(late, Result)
        assert NOT_REPLICATED in late.text
        follow_all(slave, watcher)
        answers = [late, *(other.receive() for _ in recovers[1:])]
    assert [answer.opaque for answer in answers if isinstance(answer, Result)] == [it.opaque for it in recovers]


def test_a_lost_tail_that_cannot_be_fetched_is_not_asked_for_at_once_again_and_logged_once(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=CALM + PATIENT) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, BODY)
        assert broker.stop() == 0
        epoch_history, lsn = epochs_of(broker.data)
        config = broker.config_path.read_text()
        broker.config_path.write_text(config.replace("[replication]", '[replication]\nmode = "sync"'))
        broker.start()
        began, asked = time.monotonic(), 0
        while asked < 3:
            assert time.monotonic() < began + WAIT_S
            with raw_slave(broker.port) as slave:
                slave.handshake(*epoch_history, start=128, end=lsn + 5000)
                answer = next(frame for frame in slave.frames() if isinstance(frame, FetchTail | Rejected))
                asked += isinstance(answer, FetchTail)
        assert time.monotonic() >= began + 2 * PAUSE_S_MIN
        assert broker.log.count("lost here, fetching it") == 1
        assert broker.log.count("link refused") <= 1


def test_sync_without_slaves_writes_are_refused_at_once_or_go_on_alone(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=FAST_SYNC) as broker,
        WireClient(broker.port) as client,
        pytest.raises(RefusedWrite, match="nothing was done: slaves in sync: none, not all of them there: 1 must be"),
    ):
        client.put("orders", 0, BODY)  # and not after two minutes, for which the client does not wait
    with (
        running_broker(tmp_path / "other", None, config=FAST_SYNC + 'without_slaves = "degrade"\n') as broker,
        WireClient(broker.port) as client,
    ):
        client.put("orders", 0, BODY)
        with raw_slave(broker.port) as slave:
            in_sync(slave, client)
            assert words_of(replication_lines(client)[0])["state"] == "sync"
        # It is gone. Nothing is acknowledged without it before it has left the set; that is said in the log.
        wait_until(lambda: words_of(replication_lines(client)[0])["state"] == "degraded", "it has left")
        assert client.put("orders", 0, BODY).offset
        assert "in-sync set changed mode=sync joined=none left=1 in_sync=none" in broker.log


def test_a_slave_that_takes_nothing_costs_its_master_nothing(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client, raw_slave(lone_broker.port) as slave:
        slave.begin()
        follow_all(slave, client)
        for _ in range(20):
            put_many(client, 100, b"z" * 10_000)  # warm: buffers have the size that they keep
        before = anonymous_kib(lone_broker.pid)
        for _ in range(100):  # the slave reads nothing; what it is sent stays in the kernel, bounded
            put_many(client, 100, b"z" * 10_000)
        assert end_of(client) > 100_000_000
        assert anonymous_kib(lone_broker.pid) - before < 24 * 1024  # of 100 MB; the allocator alone may take 8


def put_many(client: WireClient, count: int, body: bytes) -> None:
    client.send(*(Put("orders", 0, 0, None, None, number, body) for number in range(count)))
    for _ in range(count):
        answer = client.receive()
        assert isinstance(answer, Result)
        assert answer.is_success


def anonymous_kib(pid: int) -> int:
    """Memory of a process's own, without what is mapped of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def test_the_in_sync_set_is_in_zookeeper_before_it_counts(tmp_path: Path, zookeeper: Chroot) -> None:
    def found() -> ReplicationNode | None:
        return read_replication(session, 0).node

    with (
        running_broker(
            tmp_path / "broker", zookeeper.connect, config=FAST_SYNC + 'without_slaves = "degrade"\n'
        ) as broker,
        contextlib.closing(ZooKeeperSession(zookeeper.connect)) as session,
        WireClient(broker.port) as client,
    ):
        session.start()
        with raw_slave(broker.port) as slave:
            in_sync(slave, client)
            node = found()
            assert node is not None
            assert (node.epoch, node.mode, node.in_sync, node.master) == (1, "sync", (1,), broker.url)
        wait_until(lambda: (node := found()) is not None and node.in_sync == (), "it has left")
        client.put("orders", 0, BODY)
        # Somebody claims a higher epoch: the next change of the set finds it, and this master is one no more.
        claim_epoch(session, 0, read_replication(session, 0), 1, "slave 1")
        with raw_slave(broker.port) as slave:
            slave.begin()
            follow_all(slave, client)
            for _ in slave.frames():
                pass  # until it stops
        told = "has epoch 2 in ZooKeeper, and this one's journal has epoch 1"
        wait_until(lambda: told in broker.log, "it is told that it is superseded")


def test_a_clean_stop_sends_its_last_record_and_a_tail_that_no_slave_has_is_in_no_checkpoint(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path / "broker", None, config=SYNC) as broker,
        WireClient(broker.port) as client,
        raw_slave(broker.port) as slave,
    ):
        in_sync(slave, client)
        client.send(Put("orders", 0, 0, None, None, 1, BODY))
        slave.follow_to(end_of(client))
        before = slave.end
        slave.report()
        assert client.receive().opaque == 1
        client.close()
        os.kill(broker.pid, signal.SIGTERM)
        for _ in slave.frames():
            if slave.end > before:  # the record of the last checkpoint
                slave.report()
        assert broker.wait() == 0
        number = read_newest(DirectoryStorage.open_for_reading(broker.data)).number
        assert number > 0
        broker.start()
        with raw_slave(broker.port) as again, WireClient(broker.port) as other:
            in_sync(again, other)
            other.send(Put("orders", 0, 0, None, None, 2, BODY))
            again.follow_to(end_of(other))
            other.close()
            assert broker.stop() == 0
        assert read_newest(DirectoryStorage.open_for_reading(broker.data)).number == number
