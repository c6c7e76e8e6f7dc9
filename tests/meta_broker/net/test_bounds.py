"""Every bound of `[broker]`, reached over real sockets: the client that exceeds it gets an error, all others are
served."""

import contextlib
import resource
import socket
import time
from pathlib import Path

import pytest

from journal.records.codec import decode
from journal.records.record import PutRecord
from journal.records.xid import BranchKey, LocalKey, XaKey, Xid
from journal.wal.scan import Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from meta_client.errors import ConnectionLost
from meta_client.net.connections import Connections
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transport
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import Get, Put, Quit, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.peers import (
    MIB,
    PROMPT_S,
    anonymous_bytes,
    broker_with,
    read_to_the_end,
    resident_bytes,
    wait_until_alone,
    worst_answer_s,
)
from tests.fixtures.wire import Refused, WireClient
from zk.tree.broker_url import BrokerUrl

KIB = 1024


def test_a_longer_line_ends_its_connection(tmp_path: Path) -> None:
    with broker_with(tmp_path, line_bytes_max=2048) as broker, WireClient(broker.port) as client:
        with WireClient(broker.port) as other:
            other.socket.sendall(b"stats " + b"x" * 2042 + b"\r\n")
            assert isinstance(other.receive(), Result)
            other.socket.sendall(b"stats " + b"x" * 2043 + b"\r\n")
            with pytest.raises(ConnectionError):
                other.receive()
        assert client.put("orders", 0, b"served").offset == 0
        assert "a line is longer than line_bytes_max 2048" in broker.log


def test_a_longer_body_is_refused_costs_nothing_and_its_connection_goes_on(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, body_bytes_max=64 * KIB, message_bytes_max=64 * KIB) as broker,
        WireClient(broker.port) as client,
        WireClient(broker.port) as other,
    ):
        before = anonymous_bytes(broker.pid)
        other.socket.sendall(b"put orders 0 %d 0 -1 7\r\n" % (64 * MIB))
        text = b"a body of 67108864 bytes is longer than body_bytes_max 65536: send less at once"
        assert other.receive() == Result(400, text, 7)  # before the body has come
        for _ in range(64):
            other.socket.sendall(bytes(MIB))
            client.put("invoices", 0, b"served")
        assert anonymous_bytes(broker.pid) - before < 8 * MIB
        assert other.put("orders", 0, bytes(64 * KIB)).offset == 0


def test_requests_in_flight_are_bounded_and_answered_all_the_same(tmp_path: Path) -> None:
    count, bound = 600, 5
    with broker_with(tmp_path, requests_in_flight_max=bound) as broker, WireClient(broker.port) as flood:
        with WireClient(broker.port) as client:
            flood.send(*(Put("orders", 0, 0, None, None, number, b"x") for number in range(count)))
            assert worst_answer_s(client, 0.3) < PROMPT_S
        for number in range(count):
            answer = flood.receive()
            assert isinstance(answer, Result)
            assert (answer.opaque, answer.status) == (number, 200)
        broker.kill()
        assert flights(broker.data) <= bound


def flights(data: Path) -> int:
    """The most records of orders-0 that were appended before the first of them was durable, as their headers tell."""
    segments = Segments.open(DirectoryStorage.open_for_reading(data), None, 4 << 20, writable=False)
    try:
        puts = [
            entry.header
            for entry in Scanner(segments, segments.start)
            if isinstance(record := decode(entry.header, entry.meta), PutRecord) and record.name.topic == "orders"
        ]
    finally:
        segments.close()
    assert len(puts) > 100
    return max(sum(put.durable < one.end <= put.end for one in puts) for put in puts)


def test_fetches_that_wait_and_verbs_without_an_answer_are_not_in_flight(tmp_path: Path) -> None:
    with broker_with(tmp_path, requests_in_flight_max=3) as broker, WireClient(broker.port) as client:
        for number in range(10):
            client.socket.sendall(b"fetch orders g %d 0 1000 1 20000 %d\r\n" % (number % 4, number))
            client.send(TransactionCommand(LocalKey("s", number), "s", TransactionVerb.END, None, None, 100 + number))
        with WireClient(broker.port) as other:
            other.put("orders", 0, b"x")
        answers = [client.receive() for _ in range(3)]
        assert sorted(answer.opaque for answer in answers) == [0, 4, 8]
        assert isinstance(client.result(Version(50)), Result)


def test_answers_that_wait_at_the_high_watermark_count_as_unsent(tmp_path: Path) -> None:
    """RECOVER's answer is as long as what is prepared: while the disk is busy a flood of them must not pile up."""
    with (
        broker_with(tmp_path, unsent_bytes_max=MIB) as broker,
        WireClient(broker.port) as client,
        WireClient(broker.port) as flood,
    ):
        prepare_many(client, 500)
        before = peak = anonymous_bytes(broker.pid)
        busy = Put("orders", 1, 0, None, None, 1, bytes(2 * MIB))
        client.send(*[busy] * 16)  # well over 32 MiB to be written and fsynced
        recovers = [TransactionCommand(None, "s", TransactionVerb.RECOVER, None, None, 7)] * 400
        flood.send(*recovers)
        for _ in recovers:
            assert isinstance(answer := flood.receive(), Result)
            assert len(answer.message) > 400 * KIB
            peak = max(peak, anonymous_bytes(broker.pid))
        assert peak - before < 64 * MIB
        assert all(getattr(client.receive(), "status", None) == 200 for _ in range(16))


def prepare_many(client: WireClient, count: int) -> None:
    """Branches with keys of about 900 bytes."""
    for number in range(count):
        key = XaKey(Xid.of(f"{number:060d}", "b" * 60), "q" * 650)
        client.send(TransactionCommand(key, "s", TransactionVerb.BEGIN, None, None, 1))
        client.send(Put("orders", 0, 0, None, key, 2, b"x"))
        client.send(TransactionCommand(key, "s", TransactionVerb.PREPARE, None, None, 3))
        assert all(getattr(client.receive(), "status", None) == 200 for _ in range(3))


def test_bodies_that_do_not_end_are_bounded_all_together(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, body_bytes_max=2 * MIB, received_bytes_total_max=3 * MIB) as broker,
        WireClient(broker.port) as client,
        WireClient(broker.port) as first,
        WireClient(broker.port) as second,
    ):
        busy_half, rest = b"put orders 1 4000 0 -1 3\r\n" + bytes(2000), bytes(2000)
        client.socket.sendall(busy_half)
        body = bytes(2 * MIB)
        for hoarder, opaque in ((first, 1), (second, 2)):
            hoarder.socket.sendall(b"put orders 0 %d 0 -1 %d\r\n" % (len(body), opaque) + body[: 1800 * KIB])
            for _ in range(50):  # who gets on is not the most stalled, however long ago it came
                client.socket.sendall(rest + busy_half)
                assert isinstance(answer := client.receive(), Result)
                assert answer.is_success
        refused = first.receive()
        assert isinstance(refused, Result)
        assert (refused.status, refused.opaque) == (503, 1)
        assert b"send it again later, received_bytes_total_max is 3145728" in refused.message
        first.socket.sendall(body[1800 * KIB :])
        assert isinstance(first.ask(Version(5)), Result)  # the rest was passed over
        second.socket.sendall(body[1800 * KIB :])
        assert isinstance(answer := second.receive(), Result)
        assert (answer.status, answer.opaque) == (200, 2)
        assert "body dropped" in broker.log


def test_unread_answers_are_bounded_all_together(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, unsent_bytes_max=MIB, unsent_bytes_total_max=6 * MIB) as broker,
        WireClient(broker.port) as client,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(8):
            client.put("orders", 0, bytes(512 * KIB))
        before = anonymous_bytes(broker.pid)
        get = encode_request(Get("orders", "g", 0, 0, 2 * MIB, 7))[0]
        for _ in range(12):
            stalled = stack.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect(("127.0.0.1", broker.port))
            stalled.sendall(get * 30)
            assert worst_answer_s(client, 0.1) < PROMPT_S
        deadline = time.monotonic() + 60
        while "unsent_bytes_total_max is 6291456" not in broker.log:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert anonymous_bytes(broker.pid) - before < 24 * MIB
        for _ in range(50):
            assert isinstance(client.get("orders", 0, 0, 2 * MIB), Value)  # who reads is never the one
        assert int(client.stats()[7].split()[1]) < 13


def test_a_connection_too_many_is_told_so_and_closed(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, connections_max=3) as broker,
        WireClient(broker.port) as client,
        WireClient(broker.port) as first,
        WireClient(broker.port) as second,
    ):
        for one in (first, second):
            one.ask(Version(1))
        text = b"3 connections are open: try again later, or raise broker.connections_max"
        with WireClient(broker.port) as refused:
            refused.socket.sendall(b"version 1\r\n" * 1000)  # must not make the line get lost
            assert refused.receive() == Result(503, text, 2147483647)
            with pytest.raises(ConnectionError):
                refused.receive()
        with contextlib.ExitStack() as stack:
            many = [stack.enter_context(socket.create_connection(("127.0.0.1", broker.port))) for _ in range(400)]
            assert worst_answer_s(client, 0.3) < PROMPT_S
            for each in many:  # or some are still on their way in when there is room
                read_to_the_end(each)
        assert client.stats()[7] == "curr_connections 3"
        first.close()
        deadline = time.monotonic() + 60
        while client.stats()[7] != "curr_connections 2":
            assert time.monotonic() < deadline
        with WireClient(broker.port) as late:
            assert late.put("orders", 0, b"let in").offset == 0
            with WireClient(broker.port) as refused:
                assert refused.receive() == Result(503, text, 2147483647)
        assert broker.log.count("connections refused") == 1


def test_a_stop_does_not_wait_for_connections_not_let_in(tmp_path: Path) -> None:
    keys = {"connections_max": 1, "stop_seconds_max": 300.0}
    with broker_with(tmp_path, **keys) as broker, WireClient(broker.port) as client:
        client.ask(Version(1))
        with WireClient(broker.port) as refused:
            assert isinstance(refused.receive(), Result)  # and it does not hang up
            assert broker.stop() == 0  # which waits a minute
    assert "Traceback" not in broker.log


def test_a_metaq_client_tells_why_it_is_not_let_in_and_does_not_hammer(tmp_path: Path) -> None:
    with broker_with(tmp_path, connections_max=1) as broker, WireClient(broker.port) as client:
        client.ask(Version(1))
        pool, url = Connections(), BrokerUrl("127.0.0.1", broker.port)
        try:
            with pytest.raises(ConnectionLost, match="takes no further connection: 1 connections are open: try again"):
                ask_until_lost(pool.get(url, 5))
            attempts, started = 0, time.monotonic()
            while time.monotonic() - started < 1.0 or not attempts:
                with contextlib.suppress(ConnectionLost):
                    connection = pool.get(url, 5, patient=False)
                    attempts += 1
                    ask_until_lost(connection)
            assert 0 < attempts < 8
            client.close()
            deadline = time.monotonic() + 60
            while True:
                try:
                    assert pool.get(url, 5).capabilities(5).metaq_version is not None
                    break
                except ConnectionLost:
                    assert time.monotonic() < deadline
        finally:
            pool.close()


def ask_until_lost(connection: Transport) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        connection.submit(Version(next_opaque())).wait(5)


def test_open_transactions_are_bounded_for_a_broker_and_for_a_connection(tmp_path: Path) -> None:
    keys = {"transactions_max": 10, "local_transactions_per_connection_max": 4}
    with broker_with(tmp_path, **keys) as broker, WireClient(broker.port) as client, WireClient(broker.port) as other:
        for number in range(4):
            client.verb(TransactionVerb.BEGIN, LocalKey("s", number))
        client.verb(TransactionVerb.BEGIN, LocalKey("s", 0))  # alive already: nothing new
        with pytest.raises(
            Refused, match=r"code=-3,msg=4 local transactions of this connection are alive: finish some"
        ):
            client.verb(TransactionVerb.BEGIN, LocalKey("s", 4))
        for number in range(6):
            client.verb(TransactionVerb.BEGIN, branch(number))
        for key in (LocalKey("s", 9), branch(9)):
            with pytest.raises(Refused, match=r"code=-3,msg=10 transactions are alive: finish some, transactions_max"):
                other.verb(TransactionVerb.BEGIN, key)
        assert other.put("orders", 0, b"plain messages go on").offset == 0
        other.verb(TransactionVerb.COMMIT_ONE_PHASE, branch(3))
        other.verb(TransactionVerb.BEGIN, LocalKey("s", 9), timeout_seconds=1)
        client.close()  # takes its local ones with it, not the five XA branches
        for number in range(10, 14):
            begin_once_there_is_room(other, LocalKey("s", number))
        begin_once_there_is_room(other, branch(9))  # the local one has timed out
        with pytest.raises(Refused, match="10 transactions are alive"):
            other.verb(TransactionVerb.BEGIN, branch(10))


def begin_once_there_is_room(client: WireClient, key: BranchKey) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            client.verb(TransactionVerb.BEGIN, key)
        except Refused:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_prepared_branches_count_after_a_restart(tmp_path: Path) -> None:
    keys = {"transactions_max": 2, "transaction_bytes_max": 20_000}
    with broker_with(tmp_path, **keys) as broker:
        with WireClient(broker.port) as client:
            client.verb(TransactionVerb.BEGIN, branch(1))
            client.put("orders", 0, bytes(10_000), branch(1))
            client.verb(TransactionVerb.PREPARE, branch(1))
        broker.kill()
        broker.start()
        with WireClient(broker.port) as client:
            client.verb(TransactionVerb.BEGIN, branch(2))
            with pytest.raises(Refused, match="2 transactions are alive"):
                client.verb(TransactionVerb.BEGIN, branch(3))
            with pytest.raises(Refused, match="open transactions hold 10020 bytes: finish some"):
                client.put("orders", 0, bytes(10_000), branch(2))
            client.verb(TransactionVerb.ROLLBACK, branch(1))
            client.put("orders", 0, bytes(10_000), branch(2))


def branch(number: int) -> XaKey:
    return XaKey(Xid.of(str(number), "b"), "uq")


def test_what_open_transactions_hold_is_bounded(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, transaction_bytes_max=100_000) as broker,
        WireClient(broker.port) as client,
        WireClient(broker.port) as other,
    ):
        for number in (1, 2):
            client.verb(TransactionVerb.BEGIN, branch(number))
        client.put("orders", 0, bytes(90_000), branch(1))
        client.put("orders", 0, b"small, but it counts for 4 KiB", branch(2))
        client.put("orders", 0, b"small, but it counts for 4 KiB", branch(2))
        with pytest.raises(Refused, match="open transactions hold 98212 bytes: finish some, transaction_bytes_max is"):
            client.put("orders", 0, b"x", branch(2))
        assert other.put("orders", 0, bytes(90_000)).offset == 0  # plain messages are not held
        client.verb(TransactionVerb.PREPARE, branch(2))
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, branch(2))
        client.put("orders", 0, b"there is room again", branch(1))
        client.verb(TransactionVerb.COMMIT_ONE_PHASE, branch(1))
        assert len(other.read_all("orders", 0)) == 5


@pytest.mark.parametrize("layout", ["one large run", "many small runs"])
def test_slow_readers_do_not_grow_the_broker(tmp_path: Path, layout: str) -> None:
    """Ten readers of 192 MiB each, at a few KiB a second: what they have asked for waits on the disk, not in memory."""
    with running_broker(tmp_path / "broker", None) as broker, WireClient(broker.port) as client:
        fill(client, layout)
        resident = resident_bytes(broker.pid)  # what the puts took depends on how quickly the disk was
        with contextlib.ExitStack() as stack:
            get = encode_request(Get("orders", "g", 0, 0, MIB, 7))[0]
            readers = []
            for _ in range(10):
                slow = stack.enter_context(socket.socket())
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect(("127.0.0.1", broker.port))
                slow.sendall(get * 192)
                readers.append(slow)
            for _ in range(20):
                for slow in readers:
                    assert slow.recv(4096)
                client.put("invoices", 0, b"served")
            grown = resident_bytes(broker.pid) - resident
        wait_until_alone(client)
        assert grown < 100 * MIB, grown


def test_what_was_read_does_not_stay_in_memory(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker, WireClient(broker.port) as client:
        for _ in range(192):
            client.put("orders", 0, bytes(MIB - 20))
        before = resident_bytes(broker.pid)
        for number in range(192):
            assert isinstance(value := client.get("orders", 0, number * MIB), Value)
            assert len(value.body) == MIB
        assert resident_bytes(broker.pid) - before < 40 * MIB


def fill(client: WireClient, layout: str) -> None:
    """16 MiB of orders-0, in runs of a megabyte or between the messages of another partition."""
    if layout == "one large run":
        for _ in range(16):
            client.put("orders", 0, bytes(MIB - 20))
        return
    for _ in range(16):
        client.send(*(Put("orders", number % 2, 0, None, None, number, bytes(8172)) for number in range(256)))
        for _ in range(256):
            assert getattr(client.receive(), "status", None) == 200


def test_two_thousand_idle_connections_are_cheap(lone_broker: BrokerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        client = stack.enter_context(WireClient(lone_broker.port))
        before = resident_bytes(lone_broker.pid)
        for _ in range(2000):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", lone_broker.port)))
            idle.sendall(b"version 1\r\n")
        deadline = time.monotonic() + 60
        while client.stats()[7] != "curr_connections 2001":
            assert time.monotonic() < deadline
        grown = resident_bytes(lone_broker.pid) - before
        assert grown < 2000 * 16 * KIB, grown
        assert worst_answer_s(client, 0.5) < PROMPT_S


def test_one_address_does_not_take_all_connections(tmp_path: Path) -> None:
    with broker_with(tmp_path, connections_per_address_max=3) as broker, contextlib.ExitStack() as opened:
        mine = [opened.enter_context(WireClient(broker.port)) for _ in range(3)]
        for client in mine:
            assert client.result(Version(1)).is_success
        with WireClient(broker.port) as refused:
            answer = refused.receive()
            assert isinstance(answer, Result)
            assert answer.text.startswith("3 connections of your address are open")
        with socket.create_connection(("127.0.0.1", broker.port), 60, source_address=("127.0.0.2", 0)) as other:
            other.sendall(b"version 7\r\n")
            assert other.recv(1000).startswith(b"result 200 ")
        mine[0].send(Quit())
        with pytest.raises(ConnectionError):
            mine[0].receive()
        with WireClient(broker.port) as again:
            assert again.result(Version(1)).is_success
