"""Quotas, over real sockets: who exceeds one waits or is refused, in order; everybody else is served meanwhile."""

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from journal.records.xid import LocalKey, XaKey, Xid
from meta_client.errors import LoginFailed, NotConnected
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.requests import (
    OPAQUE_ABSENT,
    Authenticate,
    BranchCommand,
    BranchVerb,
    Fetch,
    Get,
    Put,
    Stats,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import Result, Value
from meta_client.protocol.scram import MECHANISM, login
from tests.fixtures.access import PASSWORD, AccessFile, logged_in, opened
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.peers import broker_with
from tests.fixtures.replicas import ProxyLink, ReplicaProcess, wait_until
from tests.fixtures.wire import WireClient

V = TransactionVerb
RIGHTS = 'produce = ["*"]\nconsume = ["*"]\ndecide = ["*"]\nadmin = ["*"]\n'
TOO_MANY = 429
PROMPT_S = 0.1  # what others may notice of a principal at its limit, were the machine idle
PATIENCE = 20  # times that, on one that is not


def quota(**limits: float) -> str:
    return RIGHTS + "quota = {" + ", ".join(f"{key} = {limit}" for key, limit in limits.items()) + "}\n"


@contextlib.contextmanager
def served(directory: Path, **rights: str) -> Iterator[tuple[BrokerProcess, AccessFile]]:
    """A broker with these principals."""
    file = AccessFile(directory / "access.toml", **rights)
    with running_broker(directory / "broker", None, config=CONFIG + file.section()) as broker:
        yield broker, file


def put(opaque: int, size: int = 10, topic: str = "orders") -> Put:
    return Put(topic, 0, 0, None, None, opaque, bytes(size))


def branch(number: int) -> XaKey:
    return XaKey(Xid.of(f"g{number}", "b"), "q")


def verb(verb: TransactionVerb, key: XaKey | LocalKey | None, opaque: int = 1) -> TransactionCommand:
    return TransactionCommand(key, "s", verb, None, None, opaque)


def timed(client: WireClient, *requests: Put | Get | Version) -> float:
    began = time.monotonic()
    client.send(*requests)
    for _ in requests:
        client.receive()
    return time.monotonic() - began


def test_requests_beyond_a_rate_wait_in_their_order_and_others_do_not(tmp_path: Path) -> None:
    with served(tmp_path, loud=quota(requests_per_second=20), quiet=RIGHTS) as (broker, _):
        with logged_in(broker.port, "loud") as loud, logged_in(broker.port, "quiet") as quiet:
            began = time.monotonic()
            loud.send(*(put(number) for number in range(80)))
            typical = median(timed(quiet, put(number, topic="invoices")) for number in range(20))
            answers = [loud.receive() for _ in range(80)]
            took = time.monotonic() - began
            assert [(answer.opaque, answer.status) for answer in answers if isinstance(answer, Result)] == [
                (number, 200) for number in range(80)
            ]
            assert took > (80 - 20) / 20 * 0.9  # a second's worth at once, then the rate
            assert typical < PROMPT_S * PATIENCE
            places = [answer.message.split()[2] for answer in answers if isinstance(answer, Result)]
            assert places == sorted(places, key=int)
        assert "quota reached, throttled principal=loud limit=requests" in broker.log
        assert broker.log.count("quota reached") == 1


def test_bytes_beyond_a_rate_wait_whatever_the_number_of_connections(tmp_path: Path) -> None:
    with served(tmp_path, loud=quota(bytes_in_per_second=200_000), quiet=RIGHTS) as (broker, _):
        clients = [logged_in(broker.port, "loud") for _ in range(8)]
        with logged_in(broker.port, "quiet") as quiet, contextlib.ExitStack() as stack:
            for client in clients:
                stack.callback(client.socket.close)
            began = time.monotonic()
            senders = [threading.Thread(target=timed, args=(client, put(1, 100_000))) for client in clients]
            for sender in senders:
                sender.start()
            typical = median(timed(quiet, put(number, topic="invoices")) for number in range(20))
            for sender in senders:
                sender.join()
            took = time.monotonic() - began
            assert took > (800_000 - 200_000 - 8 * 65_536) / 200_000
            assert took < 60
            assert typical < PROMPT_S * PATIENCE


def test_reads_beyond_a_rate_wait_or_are_refused_and_others_read(tmp_path: Path) -> None:
    with (
        served(tmp_path, loud=quota(bytes_out_per_second=50_000), quiet=RIGHTS) as (broker, _),
        logged_in(broker.port, "loud") as loud,
        logged_in(broker.port, "quiet") as quiet,
    ):
        quiet.put("orders", 0, bytes(40_000))
        quiet.put("orders", 1, bytes(1_000_000))
        get = Get("orders", "g", 0, 0, 100_000, 1)
        assert sum(timed(loud, get) for _ in range(5)) > (5 - 1) * 0.8 - 1  # a second's worth at once
        assert isinstance(loud.ask(Get("orders", "g", 1, 0, 2_000_000, 2)), Value)  # twenty seconds' worth
        for request in (get, Fetch("orders", "g", 0, 0, 100_000, 1, 0, 3), Stats("", 4)):
            answer = loud.ask(request)
            assert isinstance(answer, Result)
            assert (answer.status, answer.opaque) == (TOO_MANY, request.opaque)
            assert "quota of principal loud: 50000 bytes_out a second: try again in " in answer.text
        assert loud.put("orders", 0, b"writes go on").message_id > 0
        assert isinstance(quiet.ask(get), Value)


def test_a_waiting_fetch_is_paid_for_by_its_account(tmp_path: Path) -> None:
    """It was let in before; when messages come, its account is in debt."""
    with (
        served(tmp_path, loud=quota(bytes_out_per_second=10_000), quiet=RIGHTS) as (broker, _),
        logged_in(broker.port, "loud") as waiting,
        logged_in(broker.port, "loud") as loud,
        logged_in(broker.port, "quiet") as quiet,
    ):
        quiet.put("orders", 0, bytes(200_000))
        waiting.send(Fetch("invoices", "g", 0, 0, 100_000, 1, 30_000, 7))
        assert isinstance(loud.ask(Get("orders", "g", 0, 0, 300_000, 1)), Value)
        quiet.put("invoices", 0, b"woken")
        answer = waiting.receive()
        assert isinstance(answer, Result)
        assert (answer.status, answer.opaque) == (TOO_MANY, 7)


def test_nothing_that_ends_a_branch_or_tells_of_one_waits_or_is_refused(tmp_path: Path) -> None:
    """Not even with a quota that allows nothing at all, which came while the branches were open."""
    with served(tmp_path, shop=RIGHTS) as (broker, file), logged_in(broker.port, "shop") as client:
        for number in range(4):
            client.verb(V.BEGIN, branch(number))
            client.put("orders", 0, b"m", branch(number))
            if number < 3:
                client.verb(V.PREPARE, branch(number))
        client.send(verb(V.BEGIN, LocalKey("s", 1)))
        client.receive()
        names = ("requests_per_second", "bytes_in_per_second", "bytes_out_per_second", "branches_max")
        file.rights["shop"] = quota(**dict.fromkeys(names, 0))
        reload(broker, file)
        for refused in (put(9), Get("orders", "g", 0, 0, 10, 9), Stats("", 9), verb(V.BEGIN, branch(9), 9)):
            answer = client.result(refused)
            assert (answer.status, answer.opaque) == (TOO_MANY, 9)
            assert "it allows nothing" in answer.text
        assert client.verb(V.STATUS, branch(0)) == b"prepared"
        assert client.verb(V.RECOVER, None, qualifier="q").count(b"\r\n") == 2
        client.verb(V.COMMIT_TWO_PHASE, branch(0))
        client.verb(V.ROLLBACK, branch(1))
        by_hand = BranchCommand(BranchVerb.COMMIT, branch(2), "somebody", "by hand", 3)
        assert client.result(by_hand).is_success
        client.verb(V.FORGET, branch(2))
        client.verb(V.PREPARE, branch(3))
        client.verb(V.COMMIT_TWO_PHASE, branch(3))
        client.verb(V.COMMIT_ONE_PHASE, LocalKey("s", 1))
        assert client.ask(Version(4)).opaque == 4


def reload(broker: BrokerProcess, file: AccessFile) -> None:
    file.write()
    count = broker.log.count("reloaded file=")
    broker.hang_up()
    wait_until(lambda: broker.log.count("reloaded file=") > count, "it has read the file")


def test_branches_end_at_their_limit_while_others_begin(tmp_path: Path) -> None:
    with (
        served(tmp_path, loud=quota(branches_max=3), quiet=RIGHTS) as (broker, _),
        logged_in(broker.port, "quiet") as quiet,
    ):
        with logged_in(broker.port, "loud") as first:
            for number in range(2):
                first.verb(V.BEGIN, branch(number))
            first.result(verb(V.BEGIN, LocalKey("s", 1)))
            answer = first.result(verb(V.BEGIN, branch(3), 8))
            assert (answer.status, answer.opaque) == (TOO_MANY, 8)
            assert "3 branches of principal loud are open, branches_max of its quota is 3" in answer.text
            assert "are open" in first.result(verb(V.BEGIN, LocalKey("s", 2))).text
            first.verb(V.BEGIN, branch(0))  # of one that is alive, again: no further one
            first.put("orders", 0, b"m", branch(0))
            for number in range(10):
                quiet.verb(V.BEGIN, branch(100 + number))
        with logged_in(broker.port, "loud") as again:  # the local one ended with its connection, no other did
            wait_until(lambda: again.result(verb(V.BEGIN, branch(3))).is_success, "there is room for one")
            assert again.result(verb(V.BEGIN, branch(4))).status == TOO_MANY
            again.verb(V.PREPARE, branch(0))
            assert again.result(verb(V.BEGIN, branch(4))).status == TOO_MANY
            again.verb(V.COMMIT_TWO_PHASE, branch(0))
            again.verb(V.BEGIN, branch(4))
            again.verb(V.ROLLBACK, branch(1))
            again.verb(V.BEGIN, branch(5), timeout_seconds=1)
            wait_until(lambda: again.result(verb(V.BEGIN, branch(6))).is_success, "the one before timed out")


def test_idle_connections_of_one_address_keep_nobody_out(tmp_path: Path) -> None:
    """Opens 12,000, or as many as this process may have files: genuine clients, known by their address."""
    count = min(12_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1_000)
    genuine, other = 'addresses = ["127.0.0.1"]\n' + quota(connections_max=100), 'addresses = ["127.0.0.2"]\n' + RIGHTS
    with served(tmp_path, genuine=genuine, other=other) as (broker, _), contextlib.ExitStack() as opened:
        first = [opened.enter_context(WireClient(broker.port)) for _ in range(100)]
        assert all(client.ask(Version(1)).opaque == 1 for client in first)
        with WireClient(broker.port) as refused:
            answer = refused.receive()
            assert isinstance(answer, Result)
            assert (answer.status, answer.opaque) == (TOO_MANY, OPAQUE_ABSENT)
            assert "100 connections of principal genuine are open" in answer.text
        for number in range(count):
            opened.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", broker.port))))
            if number % 1000 == 0:
                with WireClient(broker.port, source="127.0.0.2") as client:
                    assert client.put("orders", 0, b"m").message_id >= 0
        assert first[0].put("orders", 0, b"m").message_id > 0
        assert "connections refused" in broker.log


def test_a_reload_changes_quotas_under_load_without_closing_anything(tmp_path: Path) -> None:
    with served(tmp_path, shop=RIGHTS) as (broker, file), logged_in(broker.port, "shop") as client:
        sent, stop = [0], threading.Event()

        def send_on() -> None:
            while not stop.is_set():
                assert client.put("orders", 0, b"m").message_id >= 0
                sent[0] += 1

        sender = threading.Thread(target=send_on)
        sender.start()
        try:
            for limits in ({"requests_per_second": 5}, {"bytes_in_per_second": 150}, {"requests_per_second": 1e9}, {}):
                wait_until(lambda before=sent[0]: sent[0] > before + 10, "it goes on")  # type: ignore[misc]
                file.rights["shop"] = quota(**limits)
                reload(broker, file)
            wait_until(lambda before=sent[0]: sent[0] > before + 500, "without a limit at last")  # type: ignore[misc]
        finally:
            stop.set()
            sender.join()
        assert "quota reached, throttled principal=shop limit=requests" in broker.log
        assert "quota reached, throttled principal=shop limit=bytes_in" in broker.log
        assert broker.log.count("action=login") == 1  # never closed


def test_addresses_without_a_principal_have_the_quota_of_the_configuration(tmp_path: Path) -> None:
    config = CONFIG + "\n[address_quota]\nrequests_per_second = 20\nconnections_max = 2\n"
    with (
        running_broker(tmp_path / "broker", None, config=config) as broker,
        WireClient(broker.port) as one,
        WireClient(broker.port) as two,
    ):
        assert timed(one, *(put(number) for number in range(30)), *(put(number) for number in range(30))) > 1.5
        with WireClient(broker.port) as third:
            assert third.receive().opaque == OPAQUE_ABSENT
            with pytest.raises(ConnectionError):
                third.receive()
        with WireClient(broker.port, source="127.0.0.2") as other:
            assert timed(other, put(1, topic="invoices")) < PROMPT_S * PATIENCE
            assert two.stats("quotas")[1:3] == [
                "address 127.0.0.1 connections 2 branches 0 throttled false",
                "address 127.0.0.2 connections 1 branches 0 throttled false",
            ]


def test_a_client_that_finds_too_many_connections_tries_again(tmp_path: Path) -> None:
    with served(tmp_path, shop=quota(connections_max=1)) as (broker, _):
        with logged_in(broker.port, "shop"), pytest.raises(NotConnected, match="1 connections of principal") as caught:
            opened(broker.port, "shop")
        assert not isinstance(caught.value, LoginFailed)  # its credentials are right
        wait_until(lambda: connects(broker), "there is room")
        assert "action=login outcome=refused principal=shop" in broker.log


def connects(broker: BrokerProcess) -> bool:
    try:
        opened(broker.port, "shop").close()
    except NotConnected:
        return False
    return True


def test_what_follows_a_login_at_once_is_the_principals(tmp_path: Path) -> None:
    """The connection moves from its address's account to the principal's in the middle of its requests."""
    file = AccessFile(tmp_path / "access.toml", shop=quota(requests_per_second=20))
    config = CONFIG + file.section() + "[address_quota]\nrequests_per_second = 1\n"
    with running_broker(tmp_path / "broker", None, config=config) as broker, WireClient(broker.port) as client:
        exchange = login("shop", PASSWORD)
        first = client.result(Authenticate(MECHANISM, next(exchange), 1))
        last = Authenticate(MECHANISM, exchange.send(first.message), 2)
        client.send(last, *(Stats("", number) for number in range(3, 30)), Version(30))
        answers = [client.receive() for _ in range(2, 31)]
        assert [answer.opaque for answer in answers] == list(range(2, 31))
        assert all(isinstance(answer, Result) and answer.is_success for answer in answers)


def test_half_requests_end_also_those_that_trickle(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, idle_seconds_max=1.0) as broker,
        WireClient(broker.port) as half,
        WireClient(broker.port) as trickling,
    ):
        line, _ = encode_request(put(1, 100_000))
        half.socket.sendall(line[:10])
        trickling.socket.sendall(line)
        deadline = time.monotonic() + 60
        with contextlib.suppress(ConnectionError):
            while True:
                assert time.monotonic() < deadline
                trickling.socket.sendall(b"x")
                time.sleep(0.02)
        with pytest.raises(ConnectionError):
            half.receive()


def test_a_slave_follows_whatever_the_quota(tmp_path: Path) -> None:
    """The link is no client's any more; what comes before it is free."""
    limits = quota(requests_per_second=0, bytes_in_per_second=1, bytes_out_per_second=0).replace(RIGHTS, "")
    file = AccessFile(tmp_path / "access.toml", slave="replicate = true\n" + limits, shop=RIGHTS)
    with (
        running_broker(tmp_path / "master", None, config=CONFIG + file.section()) as master,
        ProxyLink(master.port) as link,
    ):
        slave = ReplicaProcess(tmp_path / "slave", None, 1, CONFIG + file.section("slave"))
        slave.link = link
        try:
            slave.start()
            with logged_in(master.port, "shop") as shop, logged_in(slave.port, "shop") as reader:
                shop.put("orders", 0, bytes(1_000_000))
                get = Get("orders", "g", 0, 0, 2_000_000, 1)
                wait_until(lambda: isinstance(reader.ask(get), Value), "the slave has it")
        finally:
            slave.end()
