"""Mixed and hazardous outcomes: recorded at the broker with author, reason and evidence, until forgotten."""

import json
from pathlib import Path
from typing import Any

import pytest

from journal.records.xid import XaKey, Xid
from meta_client import Client
from meta_client.producer.xa_verbs import RemoteBranch, XaVerbs
from meta_client.protocol.requests import BranchVerb
from tests.fixtures.broker import CONFIG, BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import Replicas, copied_bytes, wait_until
from tests.meta_client.doctor.conftest import Doctor
from tests.meta_client.doctor.test_rows import kill_at
from tests.meta_client.transactions.conftest import World
from zk.embedded.chroot import Chroot

KEY = XaKey(Xid(1, b"order-1", b"mq"), "shop")


def entries(*where: str) -> list[dict[str, Any]]:
    done = run_metaq("txn", "ledger", "--json", *where)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def mixed(world: World, doctor: Doctor) -> str:
    """The key of a branch that was decided to commit, and rolled back by a person who did not know."""
    kill_at(world, "psycopg", 1, "DECIDED")
    key = str(doctor(world.zookeeper).rows[0]["key"])
    zk = ("--zk", world.zookeeper)
    assert run_metaq("txn", "rollback", key, "--why", "a guess", "--who", "ann@db1", "--yes", *zk).returncode == 0
    return key


def test_the_doctor_puts_it_on_record_and_a_person_takes_it_away(world: World, doctor: Doctor, mixed: str) -> None:
    (broker,), zk = world.brokers, ("--zk", world.zookeeper)
    given = ("--database", world.deciding.url)
    assert [row["outcome"] for row in entries(*zk)] == ["heuristically_rolled_back"]
    assert doctor(world.zookeeper, *given).verdicts == ["mixed"]
    assert len(entries(*zk)) == 1  # it has only read
    for done in ("on the ledger of broker 0", None):  # once
        told = doctor(world.zookeeper, *given, "--apply")
        assert (told.status, told.verdicts, told.rows[0]["done"]) == (1, ["mixed"], done)
    decided, found = entries(*zk)
    assert (found["key"], found["outcome"], found["broker"]) == (mixed, "mixed", 0)
    assert "says commit, and broker 0: rolled back by hand" in found["why"]
    assert "broker 0: rolled back by hand" in found["evidence"]
    assert (decided["who"], decided["why"]) == ("ann@db1", "a guess")

    broker.kill()
    assert entries("--dir", str(broker.data)) == [decided, found]
    broker.start()
    assert entries(*zk) == [decided, found]
    blind = doctor(world.zookeeper)  # nobody but the broker is asked, and it remembers
    assert (blind.status, blind.verdicts) == (1, ["mixed"])
    assert "on record by" in blind.rows[0]["reason"]

    world.deciding.execute("DELETE FROM metaq_decision WHERE gtrid LIKE 'mq1-%'")
    assert doctor(world.zookeeper, *given).verdicts == ["mixed"]  # what is on record stays
    assert run_metaq("txn", "forget", mixed, "--broker", "0", "--yes", *zk).returncode == 0
    assert entries(*zk) == []
    assert doctor(world.zookeeper, *given).rows == []
    assert "nothing is on record" in run_metaq("txn", "ledger", *zk).stdout


def test_a_resolver_puts_it_on_record_once(world: World, mixed: str) -> None:
    zk = ("--zk", world.zookeeper)
    resolving = ("txn", "resolver", "--once", "--age", "0.2", "--database", world.deciding.url, *zk)
    assert run_metaq(*resolving).returncode == 1
    _, found = entries(*zk)
    assert (found["key"], found["outcome"]) == (mixed, "mixed")
    assert found["who"].startswith("resolver@")
    run_metaq(*resolving)
    assert entries(*zk)[1] == found
    # First the row: a resolver that meets it again tells of it again.
    world.deciding.execute("DELETE FROM metaq_decision WHERE gtrid LIKE 'mq1-%'")
    assert run_metaq("txn", "forget", mixed, "--broker", "0", "--yes", *zk).returncode == 0
    assert run_metaq(*resolving).returncode == 0
    assert entries(*zk) == []


def test_a_resolver_claims_no_more_than_a_broker_says(world: World) -> None:
    """A broker that lost its newest records at a promotion does not know a branch that was decided."""
    gtrid = world.deciding.identity.name.new_gtrid()
    world.deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{gtrid}', 'commit', '0')")
    zk = ("--zk", world.zookeeper)
    done = run_metaq("txn", "resolver", "--once", "--age", "0.2", "--database", world.deciding.url, *zk)
    assert done.returncode == 1
    (found,) = entries(*zk)
    assert (found["outcome"], found["why"]) == (
        "hazard",
        "its decision table says commit, and broker 0 can't say that it did",
    )
    assert run_metaq("txn", "forget", found["key"], "--broker", "0", "--yes", *zk).returncode == 0


def test_the_decision_about_a_branch_of_the_ledger_alone_is_read(world: World, doctor: Doctor) -> None:
    """It ended as decided, after a restoration had put it on the ledger."""
    name = world.deciding.identity.name
    gtrid = name.new_gtrid()
    world.deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{gtrid}', 'rollback', '')")
    verbs = XaVerbs(world.client.topology, world.client.connections, "a test")
    branch = RemoteBranch(verbs, name.key(gtrid, 0), 0)
    assert branch.record_finding(BranchVerb.HAZARD, "metaq restore", "restored", "a back-up")
    (row,) = doctor(world.zookeeper, "--database", world.deciding.url).rows
    assert (row["verdict"], row["decision"]) == ("hazard", "rollback")
    assert run_metaq("txn", "forget", row["key"], "--broker", "0", "--yes", "--zk", world.zookeeper).returncode == 0


def test_what_nobody_knows_any_more_can_be_looked_at_and_forgotten(
    zookeeper: Chroot, broker: BrokerProcess, doctor: Doctor
) -> None:
    """A branch of which the ledger is all that is left; on the broker, and in its directory."""
    zk = ("--zk", zookeeper.connect)
    with Client(zookeeper.connect) as client:
        verbs = XaVerbs(client.topology, client.connections, "a test")
        assert RemoteBranch(verbs, KEY, 0).record_finding(
            BranchVerb.HAZARD, "ann@db1", "lost with its disk " * 100, "broker 0: unknown"
        )
        told = doctor(zookeeper.connect)
        assert (told.status, told.verdicts) == (1, ["hazard"])
        (found,) = entries(*zk)
        assert (len(found["why"]), found["evidence"]) == (1024, "broker 0: unknown")
        shown = json.loads(run_metaq("txn", "show", str(KEY), "--broker", "0", "--json", *zk).stdout)
        assert (shown["state"], shown["finding"]["who"]) == ("hazard", "ann@db1")
        assert "found by ann@db1" in run_metaq("txn", "show", str(KEY), "--broker", "0", *zk).stdout
        declined = run_metaq("txn", "forget", str(KEY.xid), *zk, stdin="n\n")
        assert "forget that ann@db1 found: lost" in declined.stderr
        broker.kill()
        assert run_metaq("txn", "forget", str(KEY.xid), "--yes", "--dir", str(broker.data)).returncode == 0
        assert entries("--dir", str(broker.data)) == []
        broker.start()
        assert entries(*zk) == []


def test_a_promoted_slave_has_it(tmp_path: Path, zookeeper: Chroot) -> None:
    zk = ("--zk", zookeeper.connect)
    with Replicas(tmp_path / "pair", zookeeper.connect, CONFIG) as running, Client(zookeeper.connect) as client:
        verbs = XaVerbs(client.topology, client.connections, "a test")
        branch = RemoteBranch(verbs, KEY, 0)
        assert branch.record_finding(BranchVerb.MIXED, "ann@db1", "the row is there", "broker 0: rolled back")
        before, (slave,) = entries(*zk), running.slaves
        assert [(row["key"], row["who"]) for row in before] == [(str(KEY), "ann@db1")]
        wait_until(
            lambda: copied_bytes(slave.data) == copied_bytes(running.master.data), "the slave has all of the journal"
        )
        running.master.kill()
        slave.stop()
        running.promote(slave, accept_loss=True)
        wait_until(lambda: run_metaq("txn", "ledger", "--json", *zk).stdout.count("\n") == 1, "the new master is known")
        assert entries(*zk) == before
