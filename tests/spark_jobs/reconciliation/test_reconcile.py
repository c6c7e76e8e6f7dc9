"""A real PostgreSQL or broker is restored to an earlier time: what came apart is listed, and the commands work."""

import json
import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from meta_broker.testing.postgres import EmbeddedPostgres
from spark_jobs.certificate.database import Marker
from spark_jobs.certificate.join import JoinRequest
from spark_jobs.reconciliation.reconcile import ClusterFacts, reconcile
from spark_jobs.reconciliation.text import lines
from tests.fixtures.broker import running_broker
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq, start_module
from tests.fixtures.postgres import Database
from tests.fixtures.zookeeper_tree import wait_until
from tests.meta_client.coordinator.conftest import STEADY
from tests.meta_client.transactions.conftest import World, made, make_postgres, running_world
from tests.meta_client.transactions.test_crashes import CRASHING
from tests.meta_client.transactions.test_restored import copied_to, raise_generation, resolver, restorable
from tests.spark_jobs.certificate.test_certificate import SENT, SOLD, sell
from zk.brokers.cluster import known_broker_ids
from zk.decisions.generation import read_generations

__all__ = ["restorable"]


def reconciled(spark: SparkSession, world: World, *directories: Path, markers: tuple[Marker, ...]) -> dict[str, Any]:
    session = world.client.session
    facts = ClusterFacts(read_generations(session), frozenset(known_broker_ids(session)))
    found = reconcile(spark, JoinRequest(directories, world.deciding.url, markers, 0), facts, 1_000)
    assert found["refused"] == [], found
    assert all(account["counted"] == account["expected"] for account in found["accounts"])
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def run(world: World, command: str, *more: str) -> str:
    name, *words = shlex.split(command)
    assert name == "metaq"
    done = run_metaq(
        *(word.replace("$DATABASE_URL", world.deciding.url) for word in words), "--zk", world.zookeeper, *more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(found: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in found["transactions"] if one["kind"] == kind]


def make_tables(world: World) -> None:
    world.deciding.execute("CREATE TABLE sold (number int, gtrid text)")
    world.deciding.execute("CREATE TABLE sent (id bigint)")


def test_a_restored_database(
    restorable: EmbeddedPostgres, broker_pool: BrokerPool, spark: SparkSession, tmp_path: Path
) -> None:
    data, old = tmp_path / "postgres" / "data", tmp_path / "two-o-clock"
    deciding = made("postgres", restorable.dsn, lambda: psycopg.connect(restorable.dsn))
    with running_world(deciding, broker_pool, brokers=2) as world:
        make_tables(world)
        sell(world, 0, "orders", "bills")
        world.wait_quiet()
        raise_generation(world)
        copied_to(restorable, data, old)
        lost = [sell(world, 1, "orders"), sell(world, 2, "orders", "bills")]
        world.wait_quiet()
        raise_generation(world)
        assert start_module(CRASHING, "psycopg", deciding.url, world.zookeeper, "3", "DECIDED").wait() == -9
        copied_to(restorable, old, data)
        assert resolver(deciding.url, world.zookeeper).returncode == 1, "it has no row, and is not rolled back"

        directories = [broker.data for broker in world.brokers]
        found = reconciled(spark, world, *directories, markers=(SOLD,))
        assert found["database"]["is_restored"]
        assert found["needs_person"]
        assert {name: one["transactions"] for name, one in found["classes"].items() if one["transactions"]} == {
            "committed": 1,
            "in doubt": 1,
            "orphan": 2,
        }
        assert found["brokers_not_given"] == []
        # What is published and has no row: the messages, by the command that is named.
        orphans = of_kind(found, "orphan")
        assert sorted(one["name"] for one in orphans) == sorted(lost)
        assert all("consumers may have read them" in one["dead_end"] for one in orphans)
        shown = [
            json.loads(line)
            for one in orphans
            for command in one["commands"]
            for line in run(world, command).split("\n")
            if line
        ]
        assert sorted((one["topic"], one["payload"]) for one in shown) == [
            ("bills", "2"),
            ("orders", "1"),
            ("orders", "2"),
        ]
        (doubt,) = of_kind(found, "in doubt")
        assert [command.split()[2] for command in doubt["commands"]] == ["rollback", "forget"]
        assert "may have had both before it was restored" in doubt["reason"]
        run(world, doubt["commands"][0], "--yes")
        run(world, doubt["commands"][1], "--yes")
        (then,) = found["then"]
        run(world, then, "--yes")
        assert not world.prepared()
        unmarked = reconciled(spark, world, *directories, markers=())
        assert unmarked["classes"]["unknown"]["transactions"] == 3
        assert unmarked["database"]["is_restored"] is False
        assert unmarked["needs_person"], "nothing is listed, and nothing is known"
        told = "\n".join(lines(found))
        assert "RESTORED to an earlier time, or a copy" in told
        assert f"  $ {doubt['commands'][0]}" in told


def test_a_restored_broker(database: Database, broker_pool: BrokerPool, spark: SparkSession, tmp_path: Path) -> None:
    """Of what was sent after the back-up rows are there, and messages are not; what was prepared in it is again."""
    deciding = make_postgres(database)
    with running_world(deciding, broker_pool, brokers=2) as world:
        make_tables(world)
        kept = sell(world, 0, "orders", "bills")
        first, second = world.brokers
        assert start_module(CRASHING, "psycopg", deciding.url, world.zookeeper, "7", "DECIDED").wait() == -9
        world.deciding.execute("INSERT INTO sold SELECT 7, gtrid FROM metaq_decision WHERE outcome = 'commit'")
        done = run_metaq("backup", str(first.data), str(tmp_path / "backup"))
        assert done.returncode == 0, done.stderr
        deciding.execute("UPDATE metaq_decision SET decided_at = now() - interval '1' hour")
        assert resolver(deciding.url, world.zookeeper).returncode == 0
        sell(world, 1, "orders", "bills")
        gone = sell(world, 2, "orders")
        world.wait_quiet()
        first.kill()
        wait_until(lambda: world.client.session.read("/meta/brokers/ids/0/master") is None)
        fresh = tmp_path / "fresh"
        run(world, f"metaq restore {tmp_path / 'backup'} {fresh}", "--yes")
        with running_broker(fresh, world.zookeeper, config=STEADY):
            found = reconciled(spark, world, fresh, second.data, markers=(SOLD, SENT))
            assert found["database"]["is_restored"] is False
            (broker,) = (one for one in found["brokers"] if one["broker"] == 0)
            assert [one["epoch"] for one in broker["epochs"]] == [1, 2]
            missing = of_kind(found, "missing")
            by_name = {one["name"]: one for one in missing}
            assert gone in by_name
            assert kept not in by_name
            ids = sorted(name for name in by_name if name.startswith("id "))
            assert len(ids) == 2, "the messages of two transactions that broker 0 has lost, of one its only one"
            rows = []
            with closing(psycopg.connect(deciding.url)) as connection:
                for one in missing:
                    (command,) = (each for each in one["commands"] if each.startswith("psql "))
                    rows += connection.execute(shlex.split(command)[3].encode()).fetchall()
            assert (2, gone) in rows
            assert len(rows) == 3
            (doubt,) = of_kind(found, "in doubt")
            assert "its decision row is gone: it was committed" in doubt["reason"]
            for command in doubt["commands"]:
                run(world, command, "--yes")
            assert not world.prepared()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--database", "x"), "--dir"),
        (("--dir", ".", "--database", "x", "--since", "yesterday"), "is not a time"),
        (("--dir", "/nowhere", "--database", "x"), "/nowhere"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], error: str) -> None:
    done = run_metaq("reconcile", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert error in done.stderr
