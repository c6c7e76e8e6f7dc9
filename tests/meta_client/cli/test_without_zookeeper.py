"""Every command that needs ZooKeeper for nothing but addresses, while ZooKeeper is away; and the table that says so."""

import json
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from journal.records.xid import XaKey, Xid
from meta_client.cli.main import GROUP
from meta_client.protocol.requests import TransactionVerb
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.wire import WireClient

ROOT = Path(__file__).parents[3]
AWAY = "127.0.0.1:9"  # nobody listens
KEY = XaKey(Xid.of("in", "doubt"), "uq")
V = TransactionVerb
EXIT_STATUS = ROOT / "docs/operations/exit-status.md"
# Commands with --zk that ask ZooKeeper for more than addresses, or run something: no --broker.
WITHOUT = {
    "broker",
    "console",
    "groups",
    "groups list",
    "groups describe",
    "groups exporter",
    "groups reset",
    "doctor zookeeper",
}
WITHOUT |= {
    "groups dead-letters resend",
    "txn doctor",
    "txn init",
    "txn resolver",
    "outbox adopt",
    "outbox relay",
    "adopt",
    "restore",
    "promote",
    "reconcile",
}


@pytest.fixture(scope="module")
def told(shared_lone_broker: BrokerProcess) -> str:
    """HOST:PORT of a broker with two messages and a branch in doubt, without ZooKeeper."""
    with WireClient(shared_lone_broker.port) as client:
        client.put("orders", 1, b"one")
        client.put("orders", 1, b"two")
        client.verb(V.BEGIN, KEY)
        client.put("invoices", 0, b"later", KEY)
        client.verb(V.PREPARE, KEY)
    return f"127.0.0.1:{shared_lone_broker.port}"


def metaq(told: str, *words: str, status: int = 0) -> str:
    done = run_metaq(*words, "--broker", told, "--zk", AWAY)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_messages_are_read_found_and_sent(told: str) -> None:
    assert metaq(told, "consume", "orders", "--partition", "0-1").splitlines() == ["one", "two"]
    rows = [json.loads(line) for line in metaq(told, "offsets", "orders", "--json").splitlines()]
    assert [row["partition"] for row in rows if row["end"]] == ["0-1"]
    (row,) = [row for row in rows if row["partition"] == "0-1"]
    first = json.loads(metaq(told, "consume", "orders", "--count", "1", "--json"))
    assert json.loads(metaq(told, "find", "orders", "--id", str(first["message_id"]), "--json"))["payload"] == "one"
    assert "error" in run_metaq("consume", "orders", "--group", "g", "--broker", told).stderr
    done = run_metaq("produce", "meta-test", "--broker", told, "--zk", AWAY, str(ROOT / "LICENSE"))
    assert done.returncode == 0, done.stderr
    assert metaq(told, "consume", "meta-test", "--count", "1")
    assert row["start"] == 0


def test_topics_brokers_and_checkpoints(told: str) -> None:
    assert "orders" in metaq(told, "topics")
    assert json.loads(metaq(told, "topics", "show", "orders", "--json").splitlines()[0])["partitions"] == 4
    metaq(told, "topics", "create", "own-new", "--partitions", "2")
    (row,) = [json.loads(line) for line in metaq(told, "brokers", "--json").splitlines()]
    assert (row["broker"], row["role"], row["state"]) == (0, "master", "async")
    assert json.loads(metaq(told, "checkpoint", "--json"))["number"] > 0


def test_branches_are_listed_shown_and_ended(told: str) -> None:
    assert json.loads(metaq(told, "txn", "list", "--json"))["key"] == str(KEY)
    assert str(KEY) in metaq(told, "txn", "show", str(KEY))
    metaq(told, "txn", "rollback", str(KEY), "--why", "test", "--yes")
    assert json.loads(metaq(told, "txn", "ledger", "--json"))["key"] == str(KEY)
    metaq(told, "txn", "forget", str(KEY), "--yes")
    assert metaq(told, "txn", "ledger", "--json") == ""


def test_a_broker_that_is_away_is_an_error_and_no_empty_answer() -> None:
    for words in (["txn", "list"], ["offsets", "orders"], ["consume", "orders"], ["topics"], ["brokers"]):
        assert metaq(AWAY, *words, status=2) == ""
    assert metaq(AWAY, "checkpoint", status=1) == ""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and its subcommands, with the words that call it."""

    def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield name, command
        if isinstance(command, click.Group):
            for each, found in command.commands.items():
                yield from below(f"{name} {each}", found)

    for point in entry_points(group=GROUP):
        yield from below(point.name, point.load())


def has(command: click.Command, option: str) -> bool:
    return any(option in parameter.opts for parameter in command.params)


def test_every_command_takes_a_broker_or_is_known_not_to() -> None:
    found = {name: command for name, command in commands() if has(command, "--zk")}
    without = {name for name, command in found.items() if not has(command, "--broker")}
    assert without == WITHOUT, "say in the table what it does without ZooKeeper"
    table = EXIT_STATUS.read_text().partition("# While ZooKeeper is away")[2]
    named = " ".join(re.findall(r"`([^`]+)`", table))
    assert [name for name in found if name.split()[0] not in named] == []


def test_every_command_s_help_and_usage_errors_have_the_table_s_status() -> None:
    """A status of the help text is one of the table's; what click refuses is 2, for every command."""
    statuses = {int(number) for number in re.findall(r"^\| (\d+)(?:, \d+)? \|", EXIT_STATUS.read_text(), re.MULTILINE)}
    assert {0, 1, 2, 3, 130} <= statuses
    for name, command in commands():
        told_statuses = re.findall(r"[Ee]xit status:? (?:is )?(\d+)", command.help or "")
        assert {int(number) for number in told_statuses} <= statuses, name
        assert run_metaq(*name.split(), "--no-such-option").returncode == 2, name
