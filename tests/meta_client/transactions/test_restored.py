"""A database or a broker is restored to an earlier time: what was decided since is not rolled back."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client.transactions.databases import init
from meta_client.transactions.errors import RestoredTable
from meta_client.transactions.generation import ADVANCE_S, Generations, check_newest, noted_generation
from meta_client.transactions.table import KEEP_S
from tests.fixtures.broker import running_broker
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq, start_module
from tests.fixtures.zookeeper_tree import wait_until
from tests.meta_client.coordinator.conftest import STEADY
from tests.meta_client.transactions.conftest import Deciding, World, made, make, running_world
from tests.meta_client.transactions.test_crashes import CRASHING, DRIVERS
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def resolver(url: str, zookeeper: str) -> "subprocess.CompletedProcess[str]":
    return run_metaq("txn", "resolver", "--database", url, "--zk", zookeeper, "--once", "--age", "0.2")


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


def test_a_table_below_its_node_was_restored(deciding: Deciding, session: ZooKeeperSession) -> None:
    clock = Clock()
    name = deciding.identity.name
    one, other = (Generations(session, name, clock) for _ in range(2))

    def noted() -> tuple[int, int]:
        node = noted_generation(session, name)
        assert node is not None
        return node.generation, table.generation()

    with closing(deciding.table()) as table, closing(deciding.table()) as again:
        one.check(table)
        assert noted() == (1, 1)
        other.check(again)
        assert noted() == (1, 1), "it has just been raised"
        clock.now += ADVANCE_S
        one.check(table)
        other.check(again)
        assert noted() == (2, 2), "one of two raises it"
        assert table.advance(2, 3)
        assert not again.advance(2, 3)
        other.check(again)  # whose resolver died before ZooKeeper was told
        clock.now += ADVANCE_S
        other.check(again)
        assert noted() == (4, 4)
    deciding.execute("UPDATE metaq_decision_table SET generation = 3")
    with closing(deciding.table()) as table:
        for _ in range(2):
            clock.now += ADVANCE_S
            with pytest.raises(RestoredTable, match="is at generation 3, and ZooKeeper has noted 4: the database was "):
                one.check(table)
        assert noted() == (4, 3)
        assert one.accept(table) == 5
        one.check(table)
        other.check(table)
        assert noted() == (5, 5)


EMPTY = {
    "deleted": "DELETE FROM metaq_decision",
    "truncated": "TRUNCATE metaq_decision",
    "dropped": "DROP TABLE metaq_decision",
}


@pytest.mark.parametrize("how", EMPTY)
def test_a_table_that_lost_its_rows_decides_nothing_by_their_absence(
    deciding: Deciding, broker_pool: BrokerPool, how: str
) -> None:
    """A migration empties the table, or drops it and `metaq txn init` makes it again, before a branch was committed."""
    if deciding.kind == "sqlite" and how == "truncated":
        pytest.skip("SQLite has no TRUNCATE")
    with running_world(deciding, broker_pool) as world, closing(deciding.table()) as table:
        raise_generation(world)
        driver = next(driver for driver, kind in DRIVERS.items() if kind == deciding.kind)
        place = deciding.url.removeprefix("sqlite:///")
        killed = start_module(CRASHING, driver, place, world.zookeeper, "7", "DECIDED")
        assert killed.wait(timeout=60) == -9
        deciding.execute(EMPTY[how])
        init(deciding.url, KEEP_S)
        left = resolver(deciding.url, world.zookeeper)
        assert left.returncode == 1
        assert "rows of metaq_decision were deleted" in left.stderr
        assert (deciding.numbers(), len(world.prepared())) == ([7], 1)
        with pytest.raises(RestoredTable):
            check_newest(world.client.session, table)
        accepted = run_metaq("txn", "init", "--restored", "--yes", "--database", deciding.url, "--zk", world.zookeeper)
        assert accepted.returncode == 0, accepted.stderr
        check_newest(world.client.session, table)


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "postgres") as server:
        yield server


def copied_to(server: EmbeddedPostgres, source: Path, target: Path) -> None:
    """Copy files while the server is stopped."""
    server.stop()
    subprocess.run(["rm", "-rf", target], check=True)
    subprocess.run(["cp", "-a", source, target], check=True)
    server.start()


def raise_generation(world: World) -> None:
    """Do as a resolver that runs for longer than ADVANCE_S."""
    clock = Clock()
    generations = Generations(world.client.session, world.deciding.identity.name, clock)
    with closing(world.deciding.table()) as table:
        generations.check(table)
        clock.now += ADVANCE_S
        generations.check(table)


def test_a_restored_database_rolls_nothing_back(
    restorable: EmbeddedPostgres, broker_pool: BrokerPool, tmp_path: Path
) -> None:
    """A service dies between the database's COMMIT and the brokers'; the database is restored to before that."""
    data, old = tmp_path / "postgres" / "data", tmp_path / "two-o-clock"
    deciding = made("postgres", restorable.dsn, lambda: psycopg.connect(restorable.dsn))
    with running_world(deciding, broker_pool) as world:
        words = ("--zk", world.zookeeper)
        with world.open_client(resolves=False) as client:
            world.client, first = client, world.client
            world.work(1, wait=True)
            world.client = first
        assert resolver(deciding.url, world.zookeeper).returncode == 0
        copied_to(restorable, data, old)
        raise_generation(world)
        assert start_module(CRASHING, "psycopg", deciding.url, world.zookeeper, "2", "DECIDED").wait() == -9
        assert deciding.numbers() == [1, 2], "its caller was told that it is committed"
        copied_to(restorable, old, data)
        assert deciding.numbers() == [1]

        left = resolver(deciding.url, world.zookeeper)
        assert left.returncode == 1
        assert "was restored to an earlier time, or is a copy" in left.stderr
        (key,) = world.prepared()
        assert deciding.rows() == {}
        doctor = ("txn", "doctor", *words, "--database", deciding.url, "--age", "0.2", "--json")
        for more in ((), ("--apply",)):
            named, said = map(json.loads, run_metaq(*doctor, *more).stdout.splitlines())
            assert (named["place"].split()[0], named["verdict"], said["verdict"]) == ("database", "unknown", "unknown")
            assert named["reason"].startswith("decision table ")
            assert "has no row of it, which proves nothing" in said["reason"]
            assert [command.split()[2] for command in said["commands"]] == ["commit", "rollback"]
        assert world.prepared() == [key]

        world.work(3, wait=True)  # services go on meanwhile
        done = run_metaq("txn", "commit", str(key), *words, "--why", "its caller was told", "--yes")
        assert done.returncode == 0, done.stderr
        assert world.messages() == [1, 2, 3]
        looked = run_metaq(*doctor)
        assert looked.returncode == 1, "what was committed since may have come apart, though nothing is prepared"
        assert json.loads(looked.stdout.splitlines()[0])["place"].startswith("database ")
        accepted = run_metaq("txn", "init", "--database", deciding.url, "--restored", *words, "--yes")
        assert accepted.returncode == 0, accepted.stderr
        assert run_metaq("txn", "forget", str(key), *words, "--yes").returncode == 0
        # From now on a missing row proves something again.
        assert start_module(CRASHING, "psycopg", deciding.url, world.zookeeper, "4", "PREPARED").wait() == -9
        ended = resolver(deciding.url, world.zookeeper)
        assert (ended.returncode, world.prepared()) == (0, []), ended.stderr
        assert world.messages() == [1, 2, 3]


def test_a_restored_broker_s_branch_is_left_to_a_person(
    request: pytest.FixtureRequest, tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    """Prepared in the back-up, committed after it, its row deleted: nothing but the ledger tells."""
    deciding = make("sqlite", request)
    place = deciding.url.removeprefix("sqlite:///")

    def run(*words: str, status: int = 0) -> str:
        done = run_metaq(*words)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    with running_broker(tmp_path / "broker", zookeeper.connect, config=STEADY) as broker:
        assert start_module(CRASHING, "sqlite3", place, zookeeper.connect, "1", "DECIDED").wait() == -9
        run("backup", str(broker.data), str(tmp_path / "backup"))
        deciding.execute("UPDATE metaq_decision SET decided_at = decided_at - 3600")
        assert "rows_deleted=1" in resolver(deciding.url, zookeeper.connect).stdout
        assert deciding.rows() == {}
        broker.kill()
    wait_until(lambda: session.read("/meta/brokers/ids/0/master") is None)
    run("restore", str(tmp_path / "backup"), str(tmp_path / "fresh"), "--zk", zookeeper.connect, "--yes")
    with running_broker(tmp_path / "fresh", zookeeper.connect, config=STEADY):
        left = resolver(deciding.url, zookeeper.connect)
        assert (left.returncode, "hazards=1" in left.stdout) == (1, True), left.stderr
        assert "its broker was restored, and it may have ended since" in left.stderr
        assert deciding.rows() == {}
        (found,) = map(json.loads, run("txn", "list", "--zk", zookeeper.connect, "--json").splitlines())
        key = found["xid"]
        run("txn", "commit", key, "--zk", zookeeper.connect, "--why", "row 1 is there", "--yes")
        run("txn", "forget", key, "--zk", zookeeper.connect, "--yes")
        assert resolver(deciding.url, zookeeper.connect).returncode == 0
