"""`metaq txn`: an operator looks at what is in doubt and ends it, on a broker and in a stopped broker's directory."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal.records.xid import XaKey, Xid, parse_key
from meta_client.client import Client
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.names import BROKER, branch, new_nonce
from meta_client.operations.branch_text import in_doubt_row, show_lines
from meta_client.operations.branches import OnlineBranches
from meta_client.operations.text import printable
from meta_client.protocol.errors import XaError
from meta_client.protocol.responses import Result
from meta_client.protocol.xa import XaCode
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

NAMES = ("order-1", "order-2", "order-3")
XIDS = [Xid.of(name, "mq") for name in NAMES]


def metaq(*words: str, status: int = 0, said: str = "") -> subprocess.CompletedProcess[str]:
    done = run_metaq("txn", *words, stdin=said)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def rows(*words: str) -> dict[str, dict[str, Any]]:
    listed = [json.loads(line) for line in metaq("list", *words, "--json").stdout.splitlines()]
    return {row["xid"]: row for row in listed}


@pytest.fixture
def client(zookeeper: Chroot, broker: BrokerProcess) -> Iterator[Client]:
    with Client(zookeeper.connect) as client:
        for xid in XIDS:
            producer = client.producer(qualifier="shop")
            producer.tpc_begin(xid, topics=("orders",))
            producer.send("orders", xid.gtrid, "who", partition="0-0")
            producer.tpc_prepare()
        yield client


def stored(broker: BrokerProcess) -> bytes:
    with WireClient(broker.port) as wire:
        return getattr(wire.get("orders", 0, 0, 60_000), "body", b"")


def test_on_brokers(zookeeper: Chroot, broker: BrokerProcess, client: Client) -> None:
    zk = ("--zk", zookeeper.connect)
    committed, rolled_back, completed = map(str, XIDS)
    assert {row["state"] for row in rows(*zk).values()} == {"prepared"}
    shown = metaq("show", committed, *zk).stdout
    for text in ("prepared for", "qualifier  shop", "origin     127.0.0.1:", "orders-0: 1 messages", "'order-1'"):
        assert text in shown
    key = rows(*zk)[committed]["key"]
    assert f"metaq txn commit {key} --broker 0 --why" in shown
    assert "pg_prepared_xacts" in shown
    assert "nothing was changed" in metaq("commit", committed, "--why", "row", *zk, status=1, said="n\n").stderr
    assert len(rows(*zk)) == 3
    metaq("commit", committed, "--why", "the row is there", "--who", "ann@db1", "--yes", *zk)
    assert b"order-1" in stored(broker)
    ended = json.loads(metaq("rollback", rolled_back, "--why", "no row", "--yes", "--json", *zk).stdout)
    assert (ended["state"], ended["xid"], ended["broker"]) == ("done", rolled_back, 0)
    metaq("complete", completed, "--why", "sent by hand", *zk, said="y\n")
    assert [row["state"] for row in rows(*zk).values()] == [
        *("heuristically_committed", "heuristically_rolled_back", "heuristically_completed"),
    ]
    assert "commit decided by ann@db1: the row is there" in metaq("show", committed, *zk).stdout
    assert "decided by ann" not in (told := metaq("show", rolled_back, *zk).stdout)
    assert "no row" in told
    assert metaq("rollback", rolled_back, "--why", "again", "--yes", *zk).stdout == "done_before=1\n"
    refused = metaq("commit", rolled_back, "--why", "no", "--yes", *zk, status=1).stdout
    assert "it is heuristically rolled back, not prepared" in refused
    producer = client.producer(qualifier="shop")
    for xid, code in zip(XIDS, (XaCode.XA_HEURCOM, XaCode.XA_HEURRB, XaCode.XA_HEURHAZ), strict=True):
        with pytest.raises(XaError) as caught:
            producer.tpc_commit(xid)
        assert caught.value.code == code
        metaq("forget", str(xid), "--yes", *zk)
    assert rows(*zk) == {}
    assert b"order-2" not in stored(broker)


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_an_operators_wrong_clock_makes_nothing_older_or_younger(client: Client, by_ms: int) -> None:
    wrong_ms = time.time_ns() // 1_000_000 + by_ms
    for report in OnlineBranches(client).listed(None):
        key = parse_key(report["key"])
        assert isinstance(key, XaKey)
        assert 0 <= in_doubt_row(report, key, wrong_ms)["age_s"] < 600
        assert re.search(
            r"prepared for (\d min )?\d+ s$", "\n".join(show_lines(report, key, wrong_ms, "", None)), re.MULTILINE
        )


@pytest.mark.parametrize("qualifier", ["shop-$(echo)`echo`;echo", "it's", "\x1b]0;pwned\x07\u202e", "42"])
def test_commands_that_are_shown_execute_nothing_else(qualifier: str, lone_broker: BrokerProcess) -> None:
    """Qualifiers are chosen by whoever may begin a branch, and the command is copied by an operator."""
    key = f"XID:1:67:62:{qualifier}"
    with WireClient(lone_broker.port) as wire:
        for line in (
            f"transaction {key} s BEGIN 1",
            f"put orders 0 1 0 {key} 2\r\nm",
            f"transaction {key} s PREPARE 3",
        ):
            wire.socket.sendall(line.encode() + b"\r\n" * (not line.startswith("put")))
            answer = wire.receive()
            assert isinstance(answer, Result)
            assert answer.is_success, answer
    broker = ("--broker", lone_broker.url)
    shown = metaq("show", str(Xid(1, b"g", b"b")), *broker).stdout
    ended = metaq("rollback", str(Xid(1, b"g", b"b")), "--who", qualifier, "--why", "no", "--yes", *broker).stdout
    again = metaq("show", str(Xid(1, b"g", b"b")), *broker).stdout
    commands = [
        line.partition("metaq txn ")[2] for line in (shown + ended + again).splitlines() if "metaq txn " in line
    ]
    words = [
        subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert [text.splitlines()[:2] for text in words] == [
        [verb, printable(key)] for verb in ("commit", "rollback", "forget", "forget")
    ]
    asked = metaq("forget", str(Xid(1, b"g", b"b")), *broker, status=130).stderr
    assert f"forget that {printable(qualifier)} decided: rollback?" in asked
    forgotten = metaq("forget", str(Xid(1, b"g", b"b")), "--yes", *broker).stdout
    assert forgotten == "done=1\n"
    assert (shown + ended + again + asked).replace("\n", "").isprintable()


def test_in_a_directory(zookeeper: Chroot, broker: BrokerProcess, client: Client) -> None:
    directory = ("--dir", str(broker.data))
    committed, rolled_back, _ = map(str, XIDS)
    running = metaq("commit", committed, "--why", "row", "--yes", *directory, status=2).stderr
    assert "is in use by another process: stop that broker first" in running
    assert len(rows(*directory)) == 3  # looking is free
    broker.kill()
    shown = json.loads(metaq("show", committed, "--json", *directory).stdout)
    assert (shown["state"], shown["first_messages"][0]["payload"], shown["origin"]) == ("prepared", "order-1", None)
    metaq("commit", committed, "--why", "the row is there", "--yes", *directory)
    metaq("rollback", rolled_back, "--why", "no row", "--yes", *directory)
    again = metaq("rollback", committed, "--why", "no", "--yes", *directory, status=1).stdout
    assert "it is heuristically committed, not prepared" in again
    too_long = metaq("commit", str(XIDS[2]), "--why", "x" * 2000, "--yes", *directory, status=2).stderr
    assert "is not 1 to 1024 bytes long" in too_long
    assert too_long.count("\n") == 1
    metaq("forget", rolled_back, "--yes", *directory)
    assert set(rows(*directory)) == {committed, str(XIDS[2])}
    broker.start()
    assert b"order-1" in stored(broker)
    assert b"order-2" not in stored(broker)
    assert [row["state"] for row in rows("--zk", zookeeper.connect).values()] == ["prepared", "heuristically_committed"]


def test_what_the_coordinators_log_says(
    zookeeper: Chroot, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    """A log that is not this branch's, or not final, has no decision either: that must not read as "roll back"."""
    directory = tmp_path / "decisions"
    log = DecisionLog.open(directory, "shop")
    transactions = [log.name.xid(new_nonce()) for _ in range(2)]
    decided, undecided = (branch(xid, BROKER) for xid in transactions)
    for xid in (decided, undecided):
        producer = client.producer(qualifier="shop")
        producer.tpc_begin(xid, topics=("orders",))
        producer.send("orders", b"")
        producer.tpc_prepare()
    log.decide(transactions[0], "")

    def show(xid: Xid, decisions: Path = directory, status: int = 0) -> str:
        done = metaq("show", str(xid), "--decisions", str(decisions), "--zk", zookeeper.connect, status=status)
        return done.stdout + done.stderr

    assert "the coordinator's log decided to commit" in show(decided)
    assert "has not decided about" in show(undecided, status=2)
    log.close()
    assert "the coordinator's log decided to commit" in show(decided)
    assert "holds no decision, which means: roll back" in show(undecided)
    assert "which did not begin" in show(XIDS[0], status=2)
    for no_log in (broker.data, tmp_path):
        assert "no coordinator's decisions" in show(undecided, no_log, status=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "nonsense"], "is not <format id>_<base64 gtrid>_<base64 bqual>"),
        (["show", "1_bm9uZQ==_bXE="], "no branch in doubt is called"),
        (["commit", str(XIDS[0])], "Missing option '--why'"),
        (["commit", str(XIDS[0]), "--yes", "--why", "x" * 2000], "is not 1 to 1024 bytes long"),
    ],
)
def test_what_cannot_be_done_is_one_line(zookeeper: Chroot, client: Client, words: list[str], said: str) -> None:
    assert said in metaq(*words, "--zk", zookeeper.connect, status=2).stderr
    assert len(rows("--zk", zookeeper.connect)) == 3
