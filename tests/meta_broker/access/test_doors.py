"""A broker with access rules, and every way in: strangers get nowhere, principals as far as their rights go."""

import asyncio
import contextlib
import json
import re
import socket
import time
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_broker.replication.link_protocol import Handshake, encode
from meta_client import Client
from meta_client.aio import Client as TaskClient
from meta_client.aio.net.connection import Connection as TaskConnection
from meta_client.errors import LoginFailed, SendRefused
from meta_client.net.calls import wait_result
from meta_client.net.opaques import next_opaque
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import NotAuthorised
from meta_client.protocol.requests import (
    Authenticate,
    BranchCommand,
    BranchVerb,
    Fetch,
    Get,
    Put,
    Replicate,
    Stats,
    TakeCheckpoint,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import Result, Value
from meta_client.protocol.scram import MECHANISM, login
from tests.fixtures.access import PASSWORD, VERIFIER, AccessFile, audit_lines, known_as, log_in, logged_in, opened
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.certificates import Certificates
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import ProxyLink, ReplicaProcess, wait_until
from tests.fixtures.wire import WireClient
from tests.meta_broker.access.conftest import RIGHTS
from tests.meta_broker.access.test_needs import CASES
from zk.tree.broker_url import BrokerUrl

KEY = XaKey(Xid(1, b"g", b"b"), "shop-1")


def test_a_stranger_is_told_the_version_and_nothing_else(served: tuple[BrokerProcess, str]) -> None:
    """Every request of the wire, on one connection each; and nothing came of them."""
    broker = served[0]
    before = sorted(broker.data.iterdir())
    for request, _ in CASES:
        if (hasattr(request, "status")) or getattr(request, "verb", None) is TransactionVerb.END:
            continue  # never sent, and never answered
        with WireClient(broker.port) as client:
            assert client.result(Version(1)).text.endswith(" auth broker-0")
            answer = client.result(request)
            assert (answer.status, answer.text[:6]) == (401, "log in"), request
    assert sorted(broker.data.iterdir()) == before
    with logged_in(broker.port, "operator") as client:
        assert b"log in" not in client.result(Stats("", 1)).message
        assert not client.read_all("mine", 0)


def test_a_stranger_that_sends_a_body_costs_nothing(served: tuple[BrokerProcess, str]) -> None:
    with WireClient(served[0].port) as client:
        client.send(Put("orders", 0, 0, None, None, 7, b"x" * 10_000_000))
        assert client.result(Version(8)).opaque in (7, 8)
        assert {client.receive().opaque} <= {7, 8}


@pytest.mark.parametrize("first", [b"", b"replicate 1\r\n"])
def test_a_stranger_that_says_hello_is_sent_nothing_of_the_log(first: bytes, served: tuple[BrokerProcess, str]) -> None:
    hello = Handshake(version=1, cluster="metaq", broker_id=0, slave_id=66, epoch_history=(), start=0, end=0)
    with socket.create_connection(("127.0.0.1", served[0].port), timeout=60) as stranger:
        stranger.sendall(first + encode(hello))
        received = b""
        while chunk := stranger.recv(65536):
            received += chunk
    assert len(received) < 200
    assert not first or received.startswith(b"result 401 ")
    with logged_in(served[0].port, "operator") as client:
        assert not [line for line in client.stats("replication") if line.startswith("slave ")]


@pytest.mark.parametrize("user", ["shop", "reader", "operator", "nothing"])
def test_the_log_is_for_slaves_alone(user: str, served: tuple[BrokerProcess, str]) -> None:
    with logged_in(served[0].port, user) as client:
        answer = client.result(Replicate(1))
        assert (answer.status, answer.text) == (405, f"{user} may not replicate anything: it has no such right")


def test_rights_are_what_lets_a_principal_do_things(served: tuple[BrokerProcess, str]) -> None:
    port = served[0].port
    with logged_in(port, "shop") as shop, logged_in(port, "reader") as reader:
        shop.put("orders", 0, b"mine")
        assert isinstance(reader.ask(Get("orders", "billing", 0, 0, 1000, 1)), Value)
        refused = [
            shop.result(Put("invoices", 0, 0, None, None, 2, b"m")),
            shop.result(Get("orders", "billing", 0, 0, 1000, 3)),
            reader.result(Put("orders", 0, 0, None, None, 4, b"m")),
            reader.result(Get("orders", "other", 0, 0, 1000, 5)),
            reader.result(Get("invoices", "billing", 0, 0, 1000, 6)),
            reader.result(TopicCommand(TopicVerb.DELETE, "orders", (), 7)),
            shop.result(TakeCheckpoint(8)),
            shop.result(Stats("config", 9)),
        ]
        assert {answer.status for answer in refused} == {405}
        assert [answer.text.partition(":")[0] for answer in refused[:4]] == [
            "shop may not produce invoices",
            "shop may not consume orders",
            "reader may not produce orders",
            "reader may not groups other",
        ]


def test_branches_are_for_the_principals_of_their_qualifier(served: tuple[BrokerProcess, str]) -> None:
    port = served[0].port

    def say(client: WireClient, verb: TransactionVerb, key: XaKey | None = KEY, qualifier: str | None = None) -> Result:
        return client.result(TransactionCommand(key, "s", verb, None, qualifier, client.opaque()))

    with logged_in(port, "shop") as shop, logged_in(port, "reader") as reader, logged_in(port, "operator") as operator:
        assert say(shop, TransactionVerb.BEGIN).is_success
        shop.put("orders", 1, b"in a branch", KEY)
        assert say(shop, TransactionVerb.PREPARE).is_success
        foreign = XaKey(Xid(1, b"g", b"b"), "other")
        for verb in (TransactionVerb.COMMIT_TWO_PHASE, TransactionVerb.ROLLBACK, TransactionVerb.FORGET):
            assert say(reader, verb).status == 405
            assert say(shop, verb, foreign).status == 405
        assert say(shop, TransactionVerb.RECOVER, None, "shop-1").text == str(KEY)
        assert say(shop, TransactionVerb.RECOVER, None, "other").status == 405
        assert say(shop, TransactionVerb.RECOVER, None).status == 405
        assert reader.result(BranchCommand(BranchVerb.COMMIT, KEY, "root", "because", 1)).status == 405
        decided = operator.result(BranchCommand(BranchVerb.ROLLBACK, KEY, "root@db", "a test", 2))
        assert '"who": "operator"' in decided.text
        assert "root@db" not in decided.text
    lines = audit_lines(served[0])
    (line,) = [line for line in lines if line.startswith("action=branch-rollback outcome=done") and "root@db" in line]
    assert "principal=operator conn=127.0.0.1:" in line
    assert f"key={KEY}" in line
    assert 'who=root@db why="a test"' in line
    assert [line for line in lines if line.startswith("action=branch-commit outcome=denied principal=reader")]


def test_what_is_in_a_branch_is_shown_to_those_who_may_consume_it(served: tuple[BrokerProcess, str]) -> None:
    """To decide about a branch takes no right to read its messages."""
    key = XaKey(Xid(1, b"secret", b"b"), "shop-3")
    with logged_in(served[0].port, "shop") as shop, logged_in(served[0].port, "operator") as operator:
        shop.verb(TransactionVerb.BEGIN, key)
        shop.put("orders", 3, b"card 4711", key)
        shop.verb(TransactionVerb.PREPARE, key)
        shown = [client.result(BranchCommand(BranchVerb.SHOW, key, "", "", 1)).text for client in (shop, operator)]
        shop.verb(TransactionVerb.ROLLBACK, key)
    assert ["card 4711" in text for text in shown] == [False, True]
    assert [json.loads(text)["first_messages"][0]["is_hidden"] for text in shown] == [True, False]
    assert [json.loads(text)["messages"] for text in shown] == [1, 1]


def test_threads_tasks_and_commands_log_in(
    served: tuple[BrokerProcess, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, connect = served
    security = known_as("everything")
    with Client(connect, credentials=security.credentials) as client:
        client.producer().send("orders", b"by a thread")
        assert b"by a thread" in {message.payload for message in client.browse("orders")}
    with Client.direct(f"127.0.0.1:{broker.port}", credentials=known_as("shop").credentials) as client:
        with pytest.raises(SendRefused, match="shop may not produce invoices"):
            client.producer().send("invoices", b"no")
        with pytest.raises(SendRefused, match="shop may not produce invoices"):
            client.producer().send_async("invoices", b"no").result(60)

    async def tasks() -> None:
        async with TaskClient(connect, credentials=security.credentials) as client:
            await client.producer().send("orders", b"by a task")
        with pytest.raises(LoginFailed, match="wrong user or password"):
            await TaskConnection.open(BrokerUrl("127.0.0.1", broker.port), 60, known_as("shop", "wrong"))

    asyncio.run(tasks())
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    words = ("--user", "everything", "--password-file", str(password))
    assert run_metaq("topics", "show", "orders", "--broker", broker.url, *words).returncode == 0
    assert run_metaq("checkpoint", "--broker", broker.url, *words).returncode == 0
    nobody = run_metaq("topics", "show", "orders", "--broker", broker.url)
    assert nobody.returncode != 0
    assert "log in first" in nobody.stderr
    monkeypatch.setenv("METAQ_USER", "everything")
    assert "no password for everything" in run_metaq("produce", "orders", "--zk", connect, stdin="x\n").stderr
    monkeypatch.setenv("METAQ_PASSWORD", PASSWORD)
    assert run_metaq("produce", "orders", "--zk", connect, stdin="by a command\n").returncode == 0
    listed = run_metaq("brokers", "--zk", connect)
    assert listed.returncode == 0, listed.stderr
    reset = run_metaq("groups", "--zk", connect)
    assert reset.returncode == 0, reset.stderr


def test_a_login_that_fails_says_the_same_whatever_was_wrong_and_ends_the_connection(
    served: tuple[BrokerProcess, str],
) -> None:
    seen = set()
    for message in (b"", b"\xff", b"n,,n=,r=a", b"p=tls-unique,,n=shop,r=a", b"n,,n=shop", b"n,a=x,n=shop,r=a" * 20):
        with WireClient(served[0].port) as client:
            answer = client.result(Authenticate(MECHANISM, message, 1))
            seen.add((answer.status, answer.text))
            with pytest.raises(ConnectionError):
                client.receive()
    for user in ("shop", "nobody"):
        with pytest.raises(LoginFailed) as told:
            opened(served[0].port, user, "wrong")
        seen.add((401, str(told.value).rsplit(": ", 1)[1]))
        logged_in(served[0].port, "shop").socket.close()
    assert seen == {(401, "wrong user or password")}
    with WireClient(served[0].port) as client:
        assert client.result(Authenticate("PLAIN", b"\0shop\0" + PASSWORD.encode(), 1)).status == 401
        assert client.result(Put("orders", 0, 0, None, None, 2, b"m")).status == 401


def test_guessing_is_slowed_down(served: tuple[BrokerProcess, str]) -> None:
    deadline, told = time.monotonic() + 60, ""
    while "try again in" not in told:  # a failure is forgotten after a while, and on a busy machine some are meanwhile
        assert time.monotonic() < deadline, told
        with pytest.raises(LoginFailed) as failed:
            opened(served[0].port, "shop", "guess")
        told = str(failed.value)
    deadline = time.monotonic() + 60
    while True:  # and forgotten
        with contextlib.suppress(LoginFailed):
            opened(served[0].port, "shop").close()
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_login_of_ones_own_does_not_forgive_guesses_at_others(file: AccessFile, tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=CONFIG + file.section()) as broker:
        deadline, told = time.monotonic() + 60, ""
        while "try again in" not in told:
            assert time.monotonic() < deadline, told
            logged_in(broker.port, "nothing").close()
            with pytest.raises(LoginFailed) as failed:
                opened(broker.port, "operator", "guess")
            told = str(failed.value)


def test_strangers_that_guess_do_not_keep_out_users_of_their_address(file: AccessFile, tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=CONFIG + file.section()) as broker:
        logged_in(broker.port, "shop").close()
        deadline, told = time.monotonic() + 60, ""
        while "try again in" not in told:
            assert time.monotonic() < deadline, told
            with pytest.raises(LoginFailed) as failed:
                opened(broker.port, "operator", "guess")
            told = str(failed.value)
        logged_in(broker.port, "shop").close()


def test_a_reload_ends_connections_whose_address_is_another_principals_now(tmp_path: Path) -> None:
    """Though the one that they belonged to has not changed: a narrower range was added."""
    path = tmp_path / "access.toml"
    path.touch(mode=0o600)
    all_of_them = '[principals.all]\naddresses = ["127.0.0.0/8"]\nproduce = ["*"]\nreplicate = true\n'
    path.write_text(all_of_them)
    config = CONFIG + f'[access]\nfile = "{path}"\n'
    with (
        running_broker(tmp_path / "broker", None, config=config) as broker,
        WireClient(broker.port, "127.0.0.2") as other,
        WireClient(broker.port, "127.0.0.3") as less,
        WireClient(broker.port, "127.0.0.3") as slave,
    ):
        less.put("orders", 0, b"may")
        link = RawSlaveOf(broker.port, slave)
        path.write_text(all_of_them + '[principals.less]\naddresses = ["127.0.0.3/32"]\nproduce = ["invoices"]\n')
        broker.hang_up()
        wait_until(lambda: "reloaded file=" in broker.log, "the reload")
        other.put("orders", 0, b"stays")
        with pytest.raises(ConnectionError):
            less.put("orders", 0, b"may not")
        assert link.read_to_the_end()
        assert "link closed conn=127.0.0.3:" in broker.log, "not because it was silent"


def test_a_connection_that_never_logs_in_is_closed(served: tuple[BrokerProcess, str]) -> None:
    with WireClient(served[0].port) as client, contextlib.suppress(ConnectionError):
        for _ in range(300):  # its heartbeats do not keep it
            assert client.result(Version(1)).is_success
            time.sleep(0.2)
        raise AssertionError("it is still open after a minute")


def test_no_secret_is_in_logs_errors_and_process_lists(served: tuple[BrokerProcess, str], file: AccessFile) -> None:
    secrets = [PASSWORD, *VERIFIER.split("$")[2:]]
    broker = served[0]
    with pytest.raises(LoginFailed) as told:
        opened(broker.port, "shop", "another secret")
    logged_in(broker.port, "shop").socket.close()
    line = Path(f"/proc/{broker.pid}/cmdline").read_text() + Path(f"/proc/{broker.pid}/environ").read_text(
        errors="replace"
    )
    shown = broker.log + line + str(told.value) + repr(known_as("shop")) + repr(told.value)
    for secret in (*secrets, "another secret"):
        assert secret not in shown
    done = run_metaq(
        "topics", "show", "orders", "--broker", broker.url, "--user", "shop", "--password-file", str(file.path)
    )
    assert not any(secret in done.stdout + done.stderr for secret in secrets)


def test_a_principal_that_is_one_slave_is_no_other(tmp_path: Path) -> None:
    """It could acknowledge in the other's name, and end the other's link."""
    file = AccessFile(tmp_path / "access.toml", one="replicate = true\nslaves = [1]")
    with running_broker(tmp_path / "broker", None, config=CONFIG + file.section()) as broker:
        for slave_id, refused in ((2, True), (1, False)):
            hello = Handshake(
                version=1, cluster="metaq", broker_id=0, slave_id=slave_id, epoch_history=(), start=0, end=0
            )
            with logged_in(broker.port, "one") as client:
                assert client.result(Replicate(1)).is_success
                client.socket.sendall(encode(hello))
                received = client.socket.recv(65536)
                assert (b"may not be slave 2" in received) == refused, received


def test_a_slave_needs_the_right_and_a_master_must_prove_itself(file: AccessFile, tmp_path: Path) -> None:
    """Of three slaves only the one that may replicate follows; and it follows no master that does not know it."""
    slaves = {
        "right": CONFIG + file.section("slave"),
        "rightless": CONFIG + file.section("shop"),
        "stranger": CONFIG,
    }
    with (
        running_broker(tmp_path / "master", None, config=CONFIG + file.section()) as master,
        running_broker(tmp_path / "impostor", None, config=CONFIG) as impostor,
        ProxyLink(master.port) as link,
        contextlib.ExitStack() as stack,
    ):
        processes = {}
        for number, (name, config) in enumerate(slaves.items(), 1):
            slave = processes[name] = ReplicaProcess(tmp_path / name, None, number, config)
            slave.link = link
            stack.callback(slave.end)
            slave.start()
        wait_until(lambda: " following master=" in processes["right"].log, "it follows")
        wait_until(
            lambda: (
                "shop may not" in processes["rightless"].log and "shop may not replicate" in processes["rightless"].log
            ),
            "it is refused",
        )
        wait_until(lambda: "log in first" in processes["stranger"].log, "it is refused")
        with logged_in(master.port, "operator") as client:
            told = [line.split()[1] for line in client.stats("replication") if line.startswith("slave ")]
        assert told == ["1"]
        link.refuse()
        link.retarget(impostor.port)
        link.heal()
        wait_until(lambda: "it knows no logins" in processes["right"].log, "it does not follow whoever answers")
        with WireClient(impostor.port) as client:
            assert not [line for line in client.stats("replication") if line.startswith("slave 1 ")]


def test_a_reload_takes_rights_away_at_once_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    own = AccessFile(tmp_path / "access.toml", **RIGHTS)
    with running_broker(tmp_path / "broker", None, config=CONFIG + own.section()) as broker:
        with logged_in(broker.port, "shop") as shop, logged_in(broker.port, "reader") as reader:
            shop.put("orders", 0, b"m")
            own.path.write_text("[principals.shop]\nproduce = 3\n")
            broker.hang_up()
            wait_until(lambda: "not reloaded, everything stays as it was" in broker.log, "it is refused")
            shop.put("orders", 0, b"m")
            own.rights["shop"] = ""
            own.write()
            broker.hang_up()
            with contextlib.suppress(ConnectionError):
                for _ in range(600):
                    shop.put("orders", 0, b"m")
                    time.sleep(0.1)
                raise AssertionError("it is still open after a minute")
            assert reader.result(Stats("", 1)).is_success  # nothing changed for this one
        with logged_in(broker.port, "shop") as shop:
            assert shop.result(Put("orders", 0, 0, None, None, 1, b"m")).status == 405
        with WireClient(broker.port) as client:  # a login that the former rules began
            exchange = login("reader", PASSWORD)
            begun = client.result(Authenticate(MECHANISM, next(exchange), 1))
            seen = broker.log.count("reloaded file=")
            broker.hang_up()
            wait_until(lambda: broker.log.count("reloaded file=") > seen, "it was read again")
            assert client.result(Authenticate(MECHANISM, exchange.send(begun.message), 2)).status == 401
        # a link, too
        slave = RawSlaveOf(broker.port)
        del own.rights["slave"]
        own.write()
        broker.hang_up()
        assert slave.read_to_the_end()
        assert "link closed conn=" in broker.log, "not because it was silent"


def test_a_principal_that_is_revoked_in_the_middle_of_its_work(tmp_path: Path) -> None:
    """Its connections end, a long poll with them; what it prepared stays in doubt, for an operator to end."""
    everything = RIGHTS["everything"]
    own = AccessFile(tmp_path / "access.toml", shop=everything, operator=RIGHTS["operator"])
    active, prepared = (XaKey(Xid(1, name, b"b"), "shop-1") for name in (b"active", b"prepared"))
    with (
        running_broker(tmp_path / "broker", None, config=CONFIG + own.section()) as broker,
        logged_in(broker.port, "operator") as operator,
    ):
        works, waits = logged_in(broker.port, "shop"), logged_in(broker.port, "shop")
        for key in (active, prepared):
            works.verb(TransactionVerb.BEGIN, key, timeout_seconds=2)
            works.put("orders", 0, b"in a branch", key)
        works.verb(TransactionVerb.PREPARE, prepared)
        waits.send(Fetch("orders", "g", 0, 0, 1024, 1, 60_000, 1))
        del own.rights["shop"]
        own.write()
        broker.hang_up()
        for client in (waits, works):
            with pytest.raises(ConnectionError), client:
                client.receive()
        with pytest.raises(LoginFailed):
            opened(broker.port, "shop")
        assert "prepared" in operator.result(BranchCommand(BranchVerb.SHOW, prepared, "", "", 1)).text
        wait_until(
            lambda: "has not been started" in operator.result(BranchCommand(BranchVerb.SHOW, active, "", "", 2)).text,
            "an active branch ends with its time limit",
        )
        decided = operator.result(BranchCommand(BranchVerb.ROLLBACK, prepared, "ann", "its service is gone", 3))
        assert decided.is_success, decided
        assert operator.read_all("orders", 0) == [], "nobody read what did not commit"


def test_another_login_on_a_connection_keeps_no_rights_of_the_former_one(tmp_path: Path) -> None:
    """A long poll ends with the rights of the principal that began it."""
    own = AccessFile(tmp_path / "access.toml", reader=RIGHTS["reader"], shop='produce = ["*"]', nothing="")
    with (
        running_broker(tmp_path / "broker", None, config=CONFIG + own.section()) as broker,
        logged_in(broker.port, "reader") as client,
        logged_in(broker.port, "shop") as shop,
    ):
        client.send(Fetch("orders", "billing", 0, 0, 1024, 1, 60_000, 1000))
        log_in(client, "nothing")
        own.rights["reader"] = ""
        own.write()
        broker.hang_up()
        wait_until(lambda: "reloaded file=" in broker.log, "it was read again")
        shop.put("orders", 0, b"not for him any more")
        with pytest.raises(ConnectionError):
            client.receive()


class RawSlaveOf:
    """A link of *client*, by default one of the principal `slave`."""

    def __init__(self, port: int, client: WireClient | None = None) -> None:
        self._client = client or logged_in(port, "slave")
        assert self._client.result(Replicate(1)).is_success
        self._client.socket.sendall(
            encode(Handshake(version=1, cluster="metaq", broker_id=0, slave_id=1, epoch_history=(), start=0, end=0))
        )
        assert self._client.socket.recv(1), "it is sent the log"

    def read_to_the_end(self) -> bool:
        """Return whether the master ends the link."""
        with contextlib.suppress(ConnectionError):
            while self._client.socket.recv(65536):
                pass
        self._client.socket.close()
        return True


def test_genuine_clients_are_known_by_their_address_and_others_by_their_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "ca")
    path = tmp_path / "access.toml"
    path.touch(mode=0o600)
    path.write_text(
        '[principals.genuine]\naddresses = ["127.0.0.2"]\nproduce = ["orders"]\n'
        '[principals.shop]\ncertificates = ["shop"]\nproduce = ["invoices"]\n'
    )
    config = CONFIG + f'[access]\nfile = "{path}"\n'
    config += certificates.tls('client_certificates = "optional"\nplain_from = ["127.0.0.0/8"]')
    put = b"".join(encode_request(Put("orders", 0, 0, None, None, 7, b"m")))
    with running_broker(tmp_path / "broker", None, config=config) as broker:
        for source, status in (("127.0.0.2", b"result 200 "), ("127.0.0.3", b"result 401 ")):
            with socket.create_connection(("127.0.0.1", broker.port), 60, source_address=(source, 0)) as genuine:
                genuine.sendall(put)
                assert genuine.recv(1000).startswith(status)
        from meta_client.net.connection import Connection
        from meta_client.net.security import Security
        from meta_client.net.tls import TlsConfig

        for name, right in (("shop", "invoices"), ("other", None)):
            tls = TlsConfig(ca=certificates.ca, certificate=certificates.client(name))
            url = BrokerUrl("127.0.0.1", broker.port)
            with contextlib.closing(Connection.open(url, 60, Security(tls))) as connection:
                reply = connection.submit(Put("invoices", 0, 0, None, None, next_opaque(), b"m")).wait(60)
                assert isinstance(reply, Result)
                assert reply.status == (200 if right else 401)
                if right:
                    with pytest.raises(NotAuthorised, match="shop may not produce orders"):
                        wait_result(connection.submit(Put("orders", 0, 0, None, None, next_opaque(), b"m")), 60, "put")


def test_without_rules_everything_is_as_before_and_audited(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=CONFIG) as broker, WireClient(broker.port) as client:
        assert " auth" not in client.result(Version(1)).text
        assert client.result(Authenticate(MECHANISM, b"n,,n=a,r=b", 2)).status == 400
        client.put("orders", 0, b"m")
        assert client.result(TopicCommand(TopicVerb.CLOSE, "orders", (("partitions", "1"),), 3)).is_success
        assert [re.sub(r":\d+", "", line) for line in audit_lines(broker)] == [
            'action=topic-close outcome=done principal=- conn=127.0.0.1 topic=orders settings="partitions=1"'
        ]
        with pytest.raises(LoginFailed, match="knows no logins"):
            opened(broker.port, "shop")


def test_what_a_broker_writes_is_for_its_user_alone(served: tuple[BrokerProcess, str]) -> None:
    broker = served[0]
    modes = {path: path.stat().st_mode & 0o777 for path in (broker.data, *broker.data.rglob("*")) if path.exists()}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    assert len(modes) > 2
