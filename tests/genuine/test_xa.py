"""Java's XAResource at metaq's brokers, through crashes of either; and branches of one side finished by the other."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.genuine.conftest import OpenJava
from tests.genuine.java_client import FAIL, NO_FLAGS, SUCCESS, Actor, JavaError, JavaProcess, SendRefused
from zk.embedded.chroot import Chroot

NOTA, PROTO, DUPID, HEURCOM, RDONLY = -4, -6, -8, 7, "3"
FORMAT = 4_660  # of the Java side's xids


@pytest.fixture
def client(zookeeper: Chroot, broker: BrokerProcess) -> Iterator[Client]:
    del broker
    with Client(zookeeper.connect) as client:
        yield client


def open_xa(open_java: OpenJava, qualifier: str = "q", **more: JavaProcess) -> Actor:
    java = open_java(**more)
    java.ask("xa_open", qualifier, "orders", "invoices")
    return java


def put(java: Actor, xid: str, *payloads: bytes, prepares: bool = True) -> None:
    java.ask("xa_start", xid, NO_FLAGS)
    for payload in payloads:
        assert java.send("orders", payload, verb="xa_send").offset == -1
    java.ask("xa_end", xid, SUCCESS)
    if prepares:
        assert java.ask("xa_prepare", xid) == ["0"]


def orders(client: Client) -> list[bytes]:
    return sorted(it.payload for it in client.browse("orders"))


def test_two_phases_one_and_none(client: Client, open_java: OpenJava) -> None:
    java = open_xa(open_java)
    put(java, "two", b"a", b"b")
    assert orders(client) == []
    java.ask("xa_commit", "two", "two")
    assert orders(client) == [b"a", b"b"]
    put(java, "one", b"c", prepares=False)
    java.ask("xa_commit", "one", "one")
    assert orders(client) == [b"a", b"b", b"c"]
    put(java, "back", b"never")
    java.ask("xa_rollback", "back")
    java.ask("xa_start", "fail", NO_FLAGS)
    java.send("orders", b"never", verb="xa_send")
    java.ask("xa_end", "fail", FAIL)
    java.ask("xa_rollback", "fail")
    put(java, "empty", prepares=False)
    assert java.ask("xa_prepare", "empty") == [RDONLY]
    assert orders(client) == [b"a", b"b", b"c"]
    assert java.ask("xa_recover") == []
    assert java.send("orders", b"outside", verb="xa_send").offset >= 0


@pytest.mark.parametrize(
    ("verb", "words", "code"),
    [
        ("xa_prepare", (), NOTA),
        ("xa_commit", ("two",), NOTA),
        ("xa_commit", ("one",), NOTA),
        ("xa_rollback", (), NOTA),
    ],
)
def test_a_branch_that_nobody_knows(
    client: Client, open_java: OpenJava, verb: str, words: tuple[str, ...], code: int
) -> None:
    java = open_xa(open_java)
    with pytest.raises(JavaError) as raised:
        java.ask(verb, "unknown", *words)
    assert (raised.value.kind, raised.value.code) == ("XAException", code)
    assert orders(client) == []


def test_verbs_out_of_order(client: Client, open_java: OpenJava) -> None:
    java = open_xa(open_java)
    put(java, "x", b"a", prepares=False)
    with pytest.raises(JavaError) as raised:
        java.ask("xa_commit", "x", "two")
    assert raised.value.code == PROTO
    java = open_xa(open_java)
    put(java, "y", b"b")
    with pytest.raises(JavaError) as raised:
        java.ask("xa_prepare", "y")
    assert raised.value.code == PROTO
    java.ask("xa_commit", "y", "two")
    with pytest.raises(JavaError) as raised:
        java.ask("xa_commit", "y", "two")
    assert raised.value.code == NOTA
    assert orders(client) == [b"b"]
    java.ask("xa_forget", "y")


def test_a_timeout(client: Client, open_java: OpenJava) -> None:
    java = open_xa(open_java)
    java.ask("xa_timeout", 1)
    put(java, "late", b"never", prepares=False)
    time.sleep(2.5)  # no proof: the broker's answer is
    with pytest.raises(JavaError) as raised:
        java.ask("xa_prepare", "late")
    assert raised.value.code == NOTA
    assert orders(client) == []


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_client_and_broker_are_killed_after_prepare(
    broker: BrokerProcess, client: Client, open_java: OpenJava, own_java: JavaProcess, outcome: str
) -> None:
    dying = open_xa(open_java, within=own_java)
    put(dying, "doubt", b"a", b"b")
    own_java.kill()
    broker.kill()
    broker.start()
    assert orders(client) == []
    java = open_xa(open_java)
    assert open_xa(open_java, "other").ask("xa_recover") == []
    assert java.ask("xa_recover") == ["doubt"]
    java.ask(f"xa_{outcome}", "doubt", *(["two"] if outcome == "commit" else []))
    assert java.ask("xa_recover") == []
    assert orders(client) == ([b"a", b"b"] if outcome == "commit" else [])


def test_the_broker_restarts_between_prepare_and_commit(
    broker: BrokerProcess, client: Client, open_java: OpenJava
) -> None:
    java = open_xa(open_java)
    put(java, "x", b"a")
    broker.kill()
    broker.start()
    deadline = time.monotonic() + 60
    while True:  # as a transaction manager repeats what it has decided
        try:
            java.ask("xa_commit", "x", "two")
            break
        except JavaError as error:
            assert error.code not in (NOTA, HEURCOM)  # noqa: PT017 - another try
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert orders(client) == [b"a"]


def test_each_side_finishes_what_the_other_prepared(client: Client, open_java: OpenJava) -> None:
    java, producer = open_xa(open_java, "shared"), client.producer(qualifier="shared")
    put(java, "from java", b"a")
    (xid,) = producer.tpc_recover()
    assert (xid.format_id, xid.gtrid, xid.bqual) == (FORMAT, b"from java", b"b")
    producer.tpc_commit(xid)
    producer.tpc_begin(Xid(FORMAT, b"from metaq", b"b"), topics=("orders",))
    producer.send("orders", b"b")
    producer.tpc_prepare()
    other = open_xa(open_java, "shared")
    assert other.ask("xa_recover") == ["from metaq"]
    other.ask("xa_rollback", "from metaq")
    assert producer.tpc_recover() == []
    assert orders(client) == [b"a"]


def test_a_decision_by_hand(client: Client, open_java: OpenJava, zookeeper: Chroot) -> None:
    java = open_xa(open_java)
    put(java, "stuck", b"a")
    (xid,) = client.producer(qualifier="q").tpc_recover()
    listed = run_metaq("txn", "list", "--zk", zookeeper.connect)
    key = next(word for word in listed.stdout.split() if word.startswith(("XID:", "4660:")))
    done = run_metaq("txn", "commit", key, "--zk", zookeeper.connect, "--yes", "--why", "test")
    assert done.returncode == 0, (xid, listed.stdout, done.stderr)
    assert orders(client) == [b"a"]
    assert java.ask("xa_recover") == ["stuck"]
    with pytest.raises(JavaError) as raised:
        java.ask("xa_commit", "stuck", "two")
    assert raised.value.code == HEURCOM
    java.ask("xa_forget", "stuck")
    assert java.ask("xa_recover") == []


class Manager:
    """A transaction manager that decides to commit once a branch is prepared, and repeats what it has decided."""

    def __init__(self, name: str, java: Actor, deadline: float) -> None:
        self.decided: set[bytes] = set()
        self._name, self._java, self._deadline = name, java, deadline

    def run(self, count: int) -> None:
        for number in range(count):
            xid = f"{self._name}-{number}"
            try:
                put(self._java, xid, xid.encode() + b" 1", xid.encode() + b" 2")
            except (JavaError, SendRefused, AssertionError):
                self._repeat("xa_rollback", xid)
            else:
                self.decided |= {xid.encode() + b" 1", xid.encode() + b" 2"}
                self._repeat("xa_commit", xid, "two")

    def _repeat(self, verb: str, xid: str, *more: str) -> None:
        """Ask until it is done: a branch that is not known (any more) is."""
        while True:
            try:
                self._java.ask("xa_end", xid, SUCCESS)
                self._java.ask(verb, xid, *more)
            except JavaError as error:
                if error.code == NOTA:
                    return
                assert time.monotonic() < self._deadline
                time.sleep(0.1)
            else:
                return


def test_a_broker_that_is_killed_over_and_over(broker: BrokerProcess, client: Client, open_java: OpenJava) -> None:
    """Decided messages are there once, and no others."""
    managers = [Manager(f"m{number}", open_xa(open_java), time.monotonic() + 120) for number in range(4)]
    with ThreadPoolExecutor(len(managers)) as pool:
        running = [pool.submit(manager.run, 300) for manager in managers]
        kills = 0
        while any(not it.done() for it in running):
            time.sleep(0.7)
            broker.kill()
            broker.start()
            kills += 1
        for it in running:
            it.result()
    decided = set().union(*(manager.decided for manager in managers))
    assert orders(client) == sorted(decided)
    assert len(decided) > 100
    assert kills > 2
    assert client.producer(qualifier="q").tpc_recover() == []
