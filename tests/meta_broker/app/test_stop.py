"""SIGTERM: no branch begins any more, prepared ones get a moment, everybody is answered, what is in doubt is told."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.xid import BranchKey, LocalKey, XaKey, Xid
from meta_client.client import Client
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.errors import XaError
from meta_client.protocol.requests import TransactionVerb
from meta_client.protocol.responses import Result
from meta_client.protocol.xa import XaCode
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.filters import install_filters
from tests.fixtures.forked import run_metaq
from tests.fixtures.peers import broker_with
from tests.fixtures.wire import Refused, WireClient
from zk.embedded.chroot import Chroot

V = TransactionVerb
STOP_SECONDS_MAX = 300.0
STOPPING = "code=-7,msg=this broker is stopping: begin on another one, or once it is back"


def branch(number: int) -> XaKey:
    return XaKey(Xid.of(f"order-{number}", "b"), "uq")


def prepare(client: WireClient, key: XaKey) -> None:
    client.verb(V.BEGIN, key)
    client.put("orders", 0, b"x", key)
    client.verb(V.PREPARE, key)


def begin_and_send(client: Client) -> None:
    """Begin a branch and send to it; the broker refuses if the client has not seen the stop yet."""
    producer = client.producer("shop")
    producer.tpc_begin(Xid.of("new", ""), ["orders"])
    producer.send("orders", b"never")


def told_to_stop(broker: BrokerProcess) -> None:
    """SIGTERM, and wait until the broker acts on it."""
    os.kill(broker.pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while "stop began" not in broker.log:
        assert time.monotonic() < deadline, broker.log
        time.sleep(0.005)


@pytest.fixture
def patient_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One whose stop waits five times as long for what is prepared as `wait` waits for its end."""
    with broker_with(tmp_path, stop_seconds_max=STOP_SECONDS_MAX) as broker:
        yield broker


def test_what_is_prepared_is_waited_for_and_nothing_new_begins(patient_broker: BrokerProcess) -> None:
    new: list[BranchKey] = [branch(9), LocalKey("s", 9)]
    with WireClient(patient_broker.port) as client:
        for number in range(3):
            prepare(client, branch(number))
        client.verb(V.BEGIN, branch(3))
        client.put("orders", 0, b"late", branch(3))
        told_to_stop(patient_broker)
        for key in new:
            with pytest.raises(Refused, match=STOPPING):
                client.verb(V.BEGIN, key)
        client.verb(V.BEGIN, branch(3))  # it is alive: a repeated BEGIN says nothing (spec 2.6)
        assert client.put("orders", 0, b"plain").offset == 0  # everything else is served
        with WireClient(patient_broker.port) as coordinator:  # who lost its connection may come back
            coordinator.verb(V.COMMIT_TWO_PHASE, branch(0))
            coordinator.verb(V.ROLLBACK, branch(1))
        client.verb(V.PREPARE, branch(3))  # what had begun may go on to its end
        client.verb(V.COMMIT_TWO_PHASE, branch(3))
        client.verb(V.COMMIT_TWO_PHASE, branch(2))
        assert patient_broker.wait() == 0  # nothing is left to wait for
    assert "in doubt" not in patient_broker.log.partition("stop began")[2]
    patient_broker.start()
    with WireClient(patient_broker.port) as client:
        assert [message.payload for _, message in client.read_all("orders", 0)] == [b"plain", b"x", b"late", b"x"]
        assert parse_keys(client.verb(V.RECOVER, None)) == []


def test_the_wait_is_bounded_and_what_is_left_in_doubt_is_told_and_survives(tmp_path: Path) -> None:
    with broker_with(tmp_path, stop_seconds_max=0.6) as broker:
        with WireClient(broker.port) as client:
            for number in range(22):
                prepare(client, branch(number))
            started = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - started > 0.6
        log = broker.log
        assert log.count("left in doubt xid=") == 20
        assert re.search(rf"left in doubt xid={branch(0)} prepared_s=\d+ messages=1 bytes=21\n", log) is not None
        command = f"metaq txn list --dir {broker.data}"
        assert f"branches left in doubt count=22: they survive; list them with `{command}` while" in log
        listed = run_metaq(*command.split()[1:], "--json").stdout
        assert all(str(branch(number)) in listed for number in range(22))
        broker.start()
        with WireClient(broker.port) as client:
            assert parse_keys(client.verb(V.RECOVER, None)) == [branch(number) for number in range(22)]


def test_nobody_is_waited_for_when_nobody_is_there(patient_broker: BrokerProcess) -> None:
    with WireClient(patient_broker.port) as client:
        prepare(client, branch(1))
    assert patient_broker.stop() == 0
    assert "branches left in doubt count=1" in patient_broker.log


def test_a_second_signal_hurries(patient_broker: BrokerProcess) -> None:
    with WireClient(patient_broker.port) as client:
        prepare(client, branch(1))
        told_to_stop(patient_broker)
        assert patient_broker.stop() == 0
    assert "branches left in doubt count=1" in patient_broker.log


def test_a_stopping_broker_is_out_of_zookeeper_while_it_waits(zookeeper: Chroot, tmp_path: Path) -> None:
    """A new branch finds another broker, here none; what is prepared is finished through the connection it has."""
    config = CONFIG.replace("[broker]\n", f"[broker]\nstop_seconds_max = {STOP_SECONDS_MAX}\n")
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=config) as broker,
        Client(zookeeper.connect, session_timeout_ms=60_000) as client,
    ):
        owner, other = client.producer("shop"), client.producer("shop")
        owner.tpc_begin(Xid.of("prepared", ""), ["orders"])
        owner.send("orders", b"kept")
        assert owner.tpc_prepare()
        other.tpc_begin(Xid.of("open", ""), ["orders"])
        other.send("orders", b"dropped")
        told_to_stop(broker)
        deadline = time.monotonic() + 60
        while client.topology.read_masters():
            assert time.monotonic() < deadline
        with pytest.raises(XaError) as refused:
            begin_and_send(client)
        assert refused.value.code == XaCode.XAER_RMFAIL
        owner.tpc_commit()
        assert broker.wait() == 0  # an active branch promised nothing: it is rolled back at the next start
        broker.start()
        with WireClient(broker.port) as wire:
            found = [message.payload for n in range(4) for _, message in wire.read_all("orders", n)]
        assert found == [b"kept"]


def test_a_get_in_a_filter_is_answered_at_quit_and_at_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_filters(tmp_path / "site", monkeypatch)
    config = CONFIG + '\n[filters.orders]\neven = "test-even"\nendless = "test-endless"\n'
    config = config.replace("[broker]\n", "[broker]\nfilter_seconds_max = 3600\n")
    get = b"get orders %s 0 0 1000 %d\r\n"
    with running_broker(tmp_path / "broker", None, config=config) as broker, WireClient(broker.port) as client:
        for body in (b"2:", b"3:"):
            client.put("orders", 0, body)
        with WireClient(broker.port) as leaving:
            leaving.socket.sendall(get % (b"even", 7) + b"quit\r\n")
            assert leaving.receive().opaque == 7  # before the filter's process is even up, it had said goodbye
            with pytest.raises(ConnectionError):
                leaving.receive()
        client.socket.sendall(get % (b"endless", 8) + get % (b"endless", 9))
        told_to_stop(broker)
        text = "group endless of topic orders: filter 'test-endless' has ended: the broker is stopping, ask later"
        assert [client.receive() for _ in range(2)] == [Result(500, text.encode(), n) for n in (8, 9)]
        assert broker.wait() == 0
    assert "Traceback" not in broker.log
    assert "filter failed" not in broker.log
