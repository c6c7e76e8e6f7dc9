"""The doctor over decision rows: real services killed at each step, brokers and databases that are away, live ones."""

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from meta_client.transactions import CommitStep
from tests.fixtures.broker import CONFIG, running_broker
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq, start_module
from tests.fixtures.replicas import Replicas, wait_until
from tests.meta_client.doctor.conftest import Doctor, in_flight
from tests.meta_client.transactions.conftest import World, do, make, running_world
from tests.meta_client.transactions.test_crashes import DRIVERS, killable
from zk.brokers.cluster import read_brokers
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

CRASHING = "tests.meta_client.transactions.crashing"
KILLED = ("BODY", "PREPARED", "RECORDED", "DECIDED", "COMMIT_SENT")


def kill_at(world: World, driver: str, number: int, step: str) -> None:
    """A service that works on the transaction of *number* dies at *step*."""
    place = world.deciding.url.removeprefix("sqlite:///")
    assert start_module(CRASHING, driver, place, world.zookeeper, str(number), step).wait() == -9


@pytest.fixture(params=["psycopg", "pymysql", "sqlite3"])
def crashed(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[World]:
    """Services have died at each step; numbers 3 and 4 were decided, and of 4 the broker was told perhaps."""
    deciding = make(DRIVERS[request.param], request)
    with running_world(deciding, broker_pool) as world:
        for number, step in enumerate(KILLED):
            kill_at(world, request.param, number, step)
        yield world


def test_services_that_were_killed_at_each_step(crashed: World, doctor: Doctor) -> None:
    world, url = crashed, crashed.deciding.url
    blind = doctor(world.zookeeper)
    count = len(world.prepared())
    assert count in (3, 4)
    assert (blind.status, blind.verdicts) == (1, ["unknown"] * count)
    assert all("no database that answered has decision table" in row["reason"] for row in blind.rows)
    assert all(any("--database URL" in command for command in row["commands"]) for row in blind.rows)
    assert doctor(world.zookeeper, "--apply").verdicts == blind.verdicts
    assert len(world.prepared()) == count

    told = doctor(world.zookeeper, "--database", url)
    assert (told.status, told.verdicts) == (0, ["commit"] * (count - 2) + ["decide", "decide"])
    commit, *_ = (row for row in told.rows if row["verdict"] == "commit")
    assert (commit["topics"], commit["messages"], commit["decision"]) == ({"orders": 1}, 1, "commit")
    assert commit["origin"].startswith("127.0.0.1:")
    assert list(world.deciding.rows().values()) == ["commit", "commit"]  # it has only read
    assert len(world.prepared()) == count

    words = ("txn", "doctor", "--zk", world.zookeeper, "--database", url, "--age", "0.3")
    shown = run_metaq(*words)
    assert shown.returncode == 0
    assert f"{count} certain: --apply does it" in shown.stdout
    assert "has no row of it: the row of a rollback decides" in shown.stdout

    applied = doctor(world.zookeeper, "--database", url, "--apply")
    assert (applied.status, [row["done"] for row in applied.rows].count("rolled back")) == (0, 2)
    assert sorted(world.deciding.rows().values()) == ["commit", "commit", "rollback", "rollback"]
    assert not world.prepared()
    world.check([3, 4])
    assert doctor(world.zookeeper, "--database", url).rows == []
    assert "nothing is in doubt" in run_metaq(*words).stdout


@pytest.fixture(params=["postgres", "mariadb"])
def served(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[World]:
    """A database server of either kind, and two brokers."""
    with running_world(make(request.param, request), broker_pool, brokers=2) as world:
        yield world


def driver_of(world: World) -> str:
    return next(driver for driver, kind in DRIVERS.items() if kind == world.deciding.kind)


def test_a_live_transaction_is_left_alone_whatever_its_age(served: World, doctor: Doctor) -> None:
    """The row is written, its COMMIT comes later; then it commits."""
    world = served
    with in_flight(world):
        for words in (("--apply",), ()):
            told = doctor(world.zookeeper, "--database", world.deciding.url, *words)
            assert (told.status, told.verdicts) == (0, ["at work"])
            assert re.fullmatch(
                r"session \d+ of metaq.* has written to the decision table of database \w+ at .*, "
                r"and has not ended its transaction",
                told.rows[0]["reason"],
            )
            assert told.rows[0]["done"] is None
        blind = doctor(world.zookeeper, age="0.3")
        assert blind.verdicts == ["unknown"]  # nobody was asked who could have known
    world.check([1])


def test_what_is_younger_than_the_age_is_at_work(served: World, doctor: Doctor) -> None:
    """Transactions come and go while the doctor looks: none is in doubt, and all of them commit."""
    world = served
    ended = threading.Event()
    numbers: list[int] = []

    def work() -> None:
        with world.open_client(resolves=False) as client, closing(world.deciding.connect()) as connection:
            while not ended.is_set():
                number = len(numbers)
                with client.transaction(connection) as transaction:
                    do(connection, f"INSERT INTO numbers VALUES ({number})")
                    transaction.send("orders", str(number).encode())
                numbers.append(number)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for words in ((), ("--apply",), ("--apply",)):
            told = doctor(world.zookeeper, "--database", world.deciding.url, *words, age="3")
            assert told.status == 0
            assert set(told.verdicts) <= {"at work", "done"}
    finally:
        ended.set()
        worker.join()
    assert numbers
    world.wait_quiet()
    world.check(numbers)


def test_a_broker_that_is_away_is_unknown_and_named(served: World, doctor: Doctor) -> None:
    """One of two brokers that must commit is dead: the other commits, the rest waits."""
    world = served

    class Died(BaseException):
        pass

    def die(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            raise Died

    with (  # noqa: PT012 - the block is what is tested
        world.open_client(observer=die, resolves=False) as client,
        closing(world.deciding.connect()) as connection,
        pytest.raises(Died),
        client.transaction(connection) as transaction,
    ):
        do(connection, "INSERT INTO numbers VALUES (1)")
        transaction.send("orders", b"1")
        transaction.send("bills", b"1")
    world.brokers[1].kill()
    told = doctor(world.zookeeper, "--database", world.deciding.url, "--apply")
    assert told.status == 1
    assert {row["place"] for row in told.rows if row["verdict"] == "unknown"} == {"broker 1"}
    assert world.messages("orders") == [1]
    world.brokers[1].start()
    ended = doctor(world.zookeeper, "--database", world.deciding.url, "--apply")
    assert ended.status == 0
    world.check([1], topics=("orders", "bills"))


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_database_that_is_away_is_unknown_and_named(broker_pool: BrokerPool, doctor: Doctor, kind: str) -> None:
    with killable(kind) as (server, deciding), running_world(deciding, broker_pool) as world:
        kill_at(world, driver_of(world), 1, "DECIDED")
        server.kill()
        told = doctor(world.zookeeper, "--database", world.deciding.url, "--apply")
        assert (told.status, told.verdicts) == (1, ["unknown", "unknown"])
        assert "connect" in next(row["reason"] for row in told.rows if row["place"].startswith("database"))
        assert world.prepared()
        server.restart()
        assert doctor(world.zookeeper, "--database", world.deciding.url, "--apply").status == 0
        world.check([1])


def test_a_broker_that_is_gone_is_named_though_nothing_is_known_of_its_branches(
    tmp_path: Path, zookeeper: Chroot, doctor: Doctor
) -> None:
    """A crash leaves its address in ZooKeeper, and the copies of one that has slaves are told of there for good."""
    with (
        ZooKeeperSession(zookeeper.connect) as session,
        Replicas(tmp_path / "pair", zookeeper.connect, CONFIG, broker_id=3) as running,
        running_broker(tmp_path / "alone", zookeeper.connect, broker_id=1, config=CONFIG) as alone,
    ):
        (slave,) = running.slaves
        wait_until(lambda: running.is_in_sync(slave), "ZooKeeper has been told of the pair's copies")
        wait_until(lambda: read_brokers(session).keys() == {1, 3}, "both are registered")
        assert doctor(zookeeper.connect).rows == []
        slave.stop()
        running.master.stop()
        alone.kill()
        wait_until(lambda: len(doctor(zookeeper.connect).rows) == 2, "the dead one's session is over")
        told = doctor(zookeeper.connect)
        assert (told.status, {row["place"] for row in told.rows}) == (1, {"broker 1", "broker 3"})
        assert "metaq txn list --dir" in told.at("broker 3")["reason"]
        alone.start()
        running.master.start()
        wait_until(lambda: doctor(zookeeper.connect).status == 0, "both are back")


@pytest.mark.parametrize("verb", ["commit", "rollback", "complete"])
def test_what_an_operator_decided(served: World, doctor: Doctor, verb: str) -> None:
    """Ended by its row, it is forgotten; otherwise it is for a person, until somebody has mended and forgotten it."""
    world = served
    kill_at(world, driver_of(world), 1, "DECIDED")
    key = doctor(world.zookeeper).rows[0]["key"]
    zk = ("--zk", world.zookeeper)
    assert run_metaq("txn", verb, key, "--why", "a guess", "--who", "ann@db1", "--yes", *zk).returncode == 0
    blind = doctor(world.zookeeper)
    assert (blind.status, blind.verdicts) == (1, ["ended by hand"])
    assert "ann@db1 (a guess)" in blind.rows[0]["reason"]
    told = doctor(world.zookeeper, "--database", world.deciding.url, "--apply")
    if verb == "commit":
        assert (told.status, told.verdicts, told.rows[0]["done"]) == (0, ["forget"], "committed")
        world.check([1])
        assert doctor(world.zookeeper, "--database", world.deciding.url).rows == []
        return
    assert (told.status, told.verdicts) == (1, [{"rollback": "mixed", "complete": "hazard"}[verb]])
    assert world.messages() == []
    assert any(f"metaq txn forget {key} --broker 0" in command for command in told.rows[0]["commands"])
    assert any("DELETE FROM metaq_decision" in command for command in told.rows[0]["commands"])
    assert doctor(world.zookeeper, "--database", world.deciding.url).verdicts == told.verdicts  # it stays


def test_secrets_are_not_shown(world: World, doctor: Doctor) -> None:
    kill_at(world, "psycopg", 1, "DECIDED")
    secret = str(psycopg.conninfo.conninfo_to_dict(world.deciding.url)["password"])
    wrong, url = psycopg.conninfo.make_conninfo(world.deciding.url, password="s3cret"), world.deciding.url
    for place in (
        url,
        wrong,
        psycopg.conninfo.make_conninfo(wrong, port="1"),
        "postgresql://ann:s3cret@127.0.0.1:1/shop",
    ):
        told = doctor(world.zookeeper, "--database", place)
        assert "s3cret" not in str(told.rows) + told.stderr
        assert secret not in str(told.rows) + told.stderr
        assert told.rows
    assert doctor(world.zookeeper, "--database", "oracle://s3cret@x/y").status == 1
    doctor(world.zookeeper, "--database", url, "--apply")
    world.check([1])
