"""Every number of a broker's admin port is brought about, and compared with what happened."""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from journal.records.xid import LocalKey, XaKey, Xid
from meta_broker.handlers.traffic import OTHER, TOPICS_MAX
from meta_broker.metrics.families import FAMILIES
from meta_client.admin.families import MetricKind
from meta_client.admin.log_samples import FAMILIES as LOG
from meta_client.protocol.checksum import crc31
from meta_client.protocol.messages import HEADER_BYTES, encode_frame
from meta_client.protocol.requests import Fetch, MultiPut, Put, TakeCheckpoint, TransactionVerb, Version
from meta_client.protocol.responses import Result
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.scrape import ADMIN, Scrape, admin_url, health, plain_families, wait_for
from zk.embedded.chroot import Chroot

V = TransactionVerb
BODY = b"0123456789"
FRAME_BYTES = HEADER_BYTES + len(BODY)
SYNC = '[replication]\nmode = "sync"\nheartbeat_ms = 100\nlag_ms = 1000\nsilence_ms = 1000\n'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """It takes no checkpoint by itself, whose record would be one fsync more."""
    config = ADMIN.replace("checkpoint_seconds = 2.0", "checkpoint_seconds = 100000.0")
    assert config != ADMIN
    with running_broker(tmp_path / "broker", None, config=config) as process:
        yield process


def scrape(broker: BrokerProcess) -> Scrape:
    return Scrape(admin_url(broker))


def branch(number: int) -> XaKey:
    return XaKey(Xid.of(f"order-{number}", "b"), "uq")


def test_messages_and_requests_are_counted(broker: BrokerProcess) -> None:
    with broker.client() as client:
        for _ in range(7):
            client.put("orders", 1, BODY)
        client.put("invoices", 0, BODY)
        assert client.ask(Fetch("orders", "g", 1, 0, 2 * FRAME_BYTES, 1, 0, 9)) is not None
        client.get("orders", 1, 7 * FRAME_BYTES)  # its end: nothing
        assert isinstance(client.ask(Version(3)), Result)
        seen = scrape(broker)
    assert seen.get("metaq_topic_messages_in_total", topic="orders") == 7
    assert seen.get("metaq_topic_bytes_in_total", topic="orders") == 7 * FRAME_BYTES
    assert seen.get("metaq_topic_messages_out_total", topic="orders") == 2
    assert seen.get("metaq_topic_bytes_out_total", topic="orders") == 2 * FRAME_BYTES
    assert seen.get("metaq_topic_messages_in_total", topic="invoices") == 1
    assert seen.get("metaq_topic_size_bytes", topic="orders") == 7 * FRAME_BYTES
    assert seen.get("metaq_topic_partitions", topic="orders") == 1
    assert seen.get("metaq_gets_missed_total") == 1
    assert seen.get("metaq_connections") == 1
    for verb, count in {"put": 8, "fetch": 1, "get": 1, "version": 1}.items():
        assert seen.get("metaq_request_duration_seconds_count", verb=verb) == count, verb
        took_s = seen.get("metaq_request_duration_seconds_sum", verb=verb)
        assert took_s is not None
        assert 0 < took_s < 60
    assert seen.get("metaq_request_duration_seconds_count", verb="mput") is None, "nobody sent one"


def test_messages_put_together_are_counted_out_with_the_last_of_them(broker: BrokerProcess) -> None:
    with broker.client() as client:
        frames = encode_frame(0, 0, BODY) * 5
        assert client.result(MultiPut("orders", 0, 5, crc31(frames), None, None, 9, frames)).is_success
        client.put("orders", 0, BODY)
        ends = []
        for offset, size in ((0, 3), (3, 1), (4, 1), (4, 2), (0, 6)):
            client.get("orders", 0, offset * FRAME_BYTES, size * FRAME_BYTES)
            ends.append(scrape(broker).get("metaq_topic_messages_out_total", topic="orders"))
        client.get("orders", 0, 5 * FRAME_BYTES, FRAME_BYTES - 1)  # not whole
        assert scrape(broker).get("metaq_topic_messages_out_total", topic="orders") == ends[-1]
    assert ends == [0, 0, 5, 11, 17]


def test_a_refused_put_and_a_waiting_fetch_are_counted(broker: BrokerProcess) -> None:
    with broker.client() as client, broker.client() as waiting:
        assert isinstance(client.ask(Put("unknown", 0, 0, None, None, 5, BODY)), Result)
        waiting.send(Fetch("orders", "g", 0, 0, 1000, 1, 30_000, 9))
        wait_for(lambda: scrape(broker).get("metaq_fetches_waiting"), lambda count: count == 1)
        assert scrape(broker).get("metaq_request_duration_seconds_count", verb="fetch") is None, "not answered yet"
        client.put("orders", 0, BODY)
        waiting.receive()
        seen = scrape(broker)
    assert seen.get("metaq_fetches_waiting") == 0
    assert seen.get("metaq_puts_refused_total") == 1
    assert seen.get("metaq_request_duration_seconds_count", verb="fetch") == 1
    took_s = seen.get("metaq_request_duration_seconds_sum", verb="put")
    assert seen.get("metaq_request_duration_seconds_count", verb="put") == 2, "the refused one, too"
    assert took_s is not None


def test_the_journal_is_measured(broker: BrokerProcess) -> None:
    before = scrape(broker)
    assert before.get("metaq_checkpoint_age_seconds") is None, "there is none yet"
    with broker.client() as client:
        for _ in range(5):
            client.put("orders", 0, BODY)
        seen = scrape(broker)
        for name in ("metaq_journal_fsync_duration_seconds_count", "metaq_journal_batch_bytes_count"):
            assert seen.get(name) == (before.get(name) or 0) + 5, "each answered before the next was sent"
        written = (seen.get("metaq_journal_end_lsn") or 0) - (before.get("metaq_journal_end_lsn") or 0)
        batches = "metaq_journal_batch_bytes_sum"
        assert written == (seen.get(batches) or 0) - (before.get(batches) or 0) > 5 * FRAME_BYTES
        assert seen.get("metaq_journal_durable_lsn") == seen.get("metaq_journal_end_lsn")
        assert seen.get("metaq_journal_high_watermark_lsn") == seen.get("metaq_journal_end_lsn")
        assert seen.get("metaq_journal_segments") == 1
        replay = seen.get("metaq_replay_bytes")
        assert replay is not None
        assert replay > written
        assert client.result(TakeCheckpoint(1)).is_success
        for path in broker.data.glob("checkpoint.*"):
            os.utime(path, (0, 0))  # as one looks once the wall clock was set by decades
        after = scrape(broker)
    assert (after.get("metaq_replay_bytes") or 0) < replay
    age_s = after.get("metaq_checkpoint_age_seconds")
    assert age_s is not None
    assert 0 <= age_s < 60
    free, size = after.get("metaq_disk_free_bytes"), after.get("metaq_disk_size_bytes")
    assert free is not None
    assert size is not None
    assert 0 < free < size
    assert after.get("metaq_disk_full") == 0
    wait_for(lambda: scrape(broker).get("metaq_journal_queued_bytes"), lambda queued: queued == 0)


def test_a_prepared_branch_is_in_doubt_and_grows_older(broker: BrokerProcess) -> None:
    assert scrape(broker).get("metaq_branches_in_doubt_oldest_age_seconds") is None, "there is none"
    with broker.client() as client:
        for number in (1, 2, 3):
            client.verb(V.BEGIN, branch(number))
            client.put("orders", 0, BODY, branch(number))
        client.verb(V.BEGIN, LocalKey("s", 1))
        client.verb(V.PREPARE, branch(1))
        seen = scrape(broker)
        assert seen.get("metaq_branches_live") == 4
        assert seen.get("metaq_branches_in_doubt") == 1
        assert seen.get("metaq_branches_begun_total", kind="xa") == 3
        assert seen.get("metaq_branches_begun_total", kind="local") == 1
        first = seen.get("metaq_branches_in_doubt_oldest_age_seconds")
        assert first is not None
        wait_for(
            lambda: scrape(broker).get("metaq_branches_in_doubt_oldest_age_seconds"),
            lambda age: age is not None and age > first + 0.1,
        )
        client.verb(V.COMMIT_TWO_PHASE, branch(1))
        client.verb(V.ROLLBACK, branch(2))
        seen = scrape(broker)
    assert seen.get("metaq_branches_in_doubt") == 0
    assert seen.get("metaq_branches_in_doubt_oldest_age_seconds") is None
    assert seen.get("metaq_branches_ended_total", outcome="committed") == 1
    assert seen.get("metaq_branches_ended_total", outcome="rolled_back") == 1
    for verb in ("begin", "prepare", "commit_two_phase", "rollback"):
        assert seen.get("metaq_request_duration_seconds_count", verb=verb), verb


def test_an_in_doubt_branch_survives_a_kill_with_its_age(broker: BrokerProcess) -> None:
    with broker.client() as client:
        client.verb(V.BEGIN, branch(1))
        client.put("orders", 0, BODY, branch(1))
        client.verb(V.PREPARE, branch(1))
    before = scrape(broker).get("metaq_branches_in_doubt_oldest_age_seconds")
    broker.kill()
    broker.start()
    seen = scrape(broker)
    assert seen.get("metaq_branches_in_doubt") == 1
    after = seen.get("metaq_branches_in_doubt_oldest_age_seconds")
    assert before is not None
    assert after is not None
    assert after > before


def test_topics_beyond_the_limit_are_counted_together(tmp_path: Path) -> None:
    config = ADMIN + '[topics."many-*"]\n'
    with running_broker(tmp_path / "broker", None, config=config) as broker, broker.client() as client:
        for number in range(TOPICS_MAX + 7):
            client.put(f"many-{number}", 0, BODY)
        seen = scrape(broker)
        assert len(seen.labels("metaq_topic_messages_in_total")) == TOPICS_MAX + 1
        assert seen.get("metaq_topic_messages_in_total", topic=OTHER) == 7
        assert seen.get("metaq_topic_partitions", topic=OTHER) == 7
        assert seen.get("metaq_topic_messages_in_total", topic="many-0") == 1
        client.put("many-0", 0, BODY)
        client.put(f"many-{TOPICS_MAX}", 0, BODY)
        seen = scrape(broker)
        assert seen.get("metaq_topic_messages_in_total", topic="many-0") == 2
        assert seen.get("metaq_topic_messages_in_total", topic=OTHER) == 8


def test_a_dead_slave_leaves_the_in_sync_set_and_writes_are_refused(tmp_path: Path, zookeeper: Chroot) -> None:
    archive = f'[retention]\npolicy = "archive"\narchive = "{tmp_path}/archive"\narchive_cache_bytes = {1 << 32}\n'
    with Replicas(tmp_path / "replicas", zookeeper.connect, ADMIN + SYNC + archive) as replicas:
        master, slave = replicas.master, replicas.slaves[0]
        wait_until(lambda: replicas.is_in_sync(slave), "in sync")
        with master.client() as client:
            client.put("orders", 0, BODY)
        seen = wait_for(lambda: scrape(master), lambda seen: seen.get("metaq_replica_lag_bytes", slave="1") == 0)
        assert seen.get("metaq_archive_cache_bytes") == 0
        assert seen.get("metaq_in_sync_replicas") == 1
        assert seen.get("metaq_in_sync_replicas_min") == 1
        assert seen.get("metaq_replica_in_sync", slave="1") == 1
        assert seen.get("metaq_replica_connected", slave="1") == 1
        assert seen.get("metaq_replica_lag_seconds", slave="1") == 0
        assert seen.get("metaq_replication_refusing") == 0
        assert seen.get("metaq_broker_registered") == 1
        assert health(admin_url(master), "ready")[0] == 200
        of_slave = wait_for(lambda: scrape(slave), lambda seen: seen.get("metaq_slave_lag_bytes") == 0)
        assert of_slave.get("metaq_slave_in_sync") == 1
        assert of_slave.get("metaq_slave_heartbeat_age_seconds") is not None
        assert of_slave.get("metaq_disk_full") == 0
        assert health(admin_url(slave), "ready") == (
            200,
            {"ready": True, "why_not": [], "role": "slave", "broker_id": 0},
        )
        exported = seen.families | of_slave.families
        master.pause()
        of_slave = wait_for(lambda: scrape(slave), lambda seen: seen.get("metaq_slave_in_sync") is None)
        assert of_slave.get("metaq_slave_lag_bytes") is None, "it may have more"
        assert of_slave.get("metaq_slave_heartbeat_age_seconds") is not None
        master.resume()
        wait_for(lambda: scrape(slave), lambda seen: seen.get("metaq_slave_in_sync") == 1)
        slave.kill()
        seen = wait_for(lambda: scrape(master), lambda seen: seen.get("metaq_replication_refusing") == 1)
        assert seen.get("metaq_replica_connected", slave="1") == 0
        status, told = health(admin_url(master), "ready")
        assert status == 503
        assert "it refuses writes: slaves in sync" in told["why_not"][0]
        assert health(admin_url(master), "live")[0] == 200
        missing = {family.name for family in FAMILIES} - exported - seen.families
    assert missing <= {
        "metaq_checkpoint_age_seconds",
        "metaq_branches_in_doubt_oldest_age_seconds",
        "metaq_quota_throttled_seconds_total",  # nobody has a quota here
        "metaq_quota_refused_total",
        "metaq_certificate_remaining_seconds",  # no TLS
    }
    assert exported <= {family.name for family in (*FAMILIES, *LOG)}


def test_a_slave_in_mode_async_that_is_gone_falls_out_of_the_set(tmp_path: Path, zookeeper: Chroot) -> None:
    config = ADMIN + SYNC.replace('"sync"', '"async"')
    with Replicas(tmp_path / "replicas", zookeeper.connect, config) as replicas:
        master, slave = replicas.master, replicas.slaves[0]
        wait_for(lambda: scrape(master).get("metaq_in_sync_replicas"), lambda count: count == 1)
        slave.kill()
        wait_for(lambda: scrape(master).get("metaq_in_sync_replicas"), lambda count: count == 0)
        with master.client() as client:
            client.put("orders", 0, BODY)
        seen = wait_for(
            lambda: scrape(master), lambda seen: (seen.get("metaq_replica_lag_bytes", slave="1") or 0) > FRAME_BYTES
        )
        assert (seen.get("metaq_replica_lag_seconds", slave="1") or 0) > 0
        assert seen.get("metaq_replica_in_sync", slave="1") == 0
        assert health(admin_url(master), "ready")[0] == 200


def test_a_broker_that_stops_is_not_ready_and_is_alive(tmp_path: Path) -> None:
    config = ADMIN.replace("[broker]\n", "[broker]\nstop_seconds_max = 300.0\n")
    with running_broker(tmp_path / "broker", None, config=config) as broker, broker.client() as client:
        client.verb(V.BEGIN, branch(1))
        client.put("orders", 0, BODY, branch(1))
        client.verb(V.PREPARE, branch(1))
        url, process = admin_url(broker), threading.Thread(target=broker.stop)
        process.start()
        _, told = wait_for(lambda: health(url, "ready"), lambda found: found[0] == 503)
        assert told["why_not"] == ["it stops"]
        assert health(url, "live")[0] == 200
        client.verb(V.ROLLBACK, branch(1))
        process.join(60)
        assert not process.is_alive()


def test_a_scrape_under_load_is_whole_and_a_stop_ends_it(broker: BrokerProcess) -> None:
    """Scrapers and half requests beside senders; then a stop in the midst of it."""
    url, stopping, scrapes = admin_url(broker), threading.Event(), []
    port = int(url.rpartition(":")[2])

    def maybe_scrape() -> Scrape | None:
        """None: it was ended as the oldest of too many connections, or the broker is gone."""
        with contextlib.suppress(OSError, HTTPException):
            return Scrape(url)
        return None

    def scrape_on() -> None:
        while not stopping.is_set():
            if (seen := maybe_scrape()) is not None:
                scrapes.append(seen.get("metaq_topic_messages_in_total", topic="orders") or 0)

    def hold() -> None:
        while not stopping.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as peer:
                peer.sendall(b"GET /metrics HT")
                stopping.wait(0.01)

    threads = [threading.Thread(target=work) for work in (scrape_on, scrape_on, hold, hold)]
    for thread in threads:
        thread.start()
    try:
        with broker.client() as client:
            for _ in range(300):
                client.put("orders", 0, BODY)
        last = wait_for(maybe_scrape, lambda seen: seen is not None)
        assert last.get("metaq_topic_messages_in_total", topic="orders") == 300
        assert last.get("metaq_request_duration_seconds_count", verb="put") == 300
        assert broker.stop() == 0
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)
    assert scrapes
    assert max(scrapes) <= 300
    assert "Traceback" not in broker.log, broker.log


def test_both_formats_say_the_same(broker: BrokerProcess) -> None:
    plain, seen = plain_families(admin_url(broker)), scrape(broker)
    for family in FAMILIES:
        name = family.name.removesuffix("_total") if family.kind is MetricKind.COUNTER else family.name
        name = name if family.kind is not MetricKind.INFO else name.removesuffix("_info")
        if name in seen.kinds:
            assert seen.kinds[name] == family.kind
        if name in plain and family.kind is not MetricKind.INFO:
            assert plain[name].type == family.kind
            assert plain[name].documentation == family.help
    info = seen.labels("metaq_broker_info")
    assert info[0]["role"] == "master"
    assert info[0]["broker_id"] == "0"
    assert seen.get("metaq_in_sync_replicas_min") is None, "not in mode sync"
    assert seen.get("metaq_broker_registered") is None, "no ZooKeeper"
    assert "process_resident_memory_bytes" in seen.kinds


def test_it_is_off_by_default_and_a_taken_port_names_the_options(tmp_path: Path, lone_broker: BrokerProcess) -> None:
    assert "metrics" not in lone_broker.log
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ADMIN.replace("[admin]\nport = 0", f"[admin]\nport = {taken.getsockname()[1]}")
        broker = BrokerProcess(tmp_path / "second", None, config=config)
        assert not broker.maybe_start()
        assert re.search(r"cannot serve metrics on 127.0.0.1:\d+: .*--admin-port or \[admin\] port", broker.log)
    assert not (tmp_path / "second").exists(), "nothing was begun"


def test_a_slave_that_has_not_met_its_master_is_alive_and_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        config = ADMIN + f'[slave]\nid = 1\nmaster = "127.0.0.1:{nobody.getsockname()[1]}"\n'
        config = config.replace("[broker]\n", '[broker]\nrole = "slave"\n')
        with running_broker(tmp_path / "slave", None, config=config) as slave:
            status, told = health(admin_url(slave), "ready")
            assert status == 503
            assert told["why_not"] == ["its copy is incomplete, or its master has not spoken yet"]
            assert health(admin_url(slave), "live")[0] == 200
            seen = scrape(slave)
            assert seen.get("metaq_slave_lag_bytes") is None, "unknown"
            assert seen.get("metaq_broker_ready") == 0
