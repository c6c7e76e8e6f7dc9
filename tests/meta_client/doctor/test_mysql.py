"""The doctor over MariaDB: rows in flight, XA RECOVER, rights that are missing, and tables that are not the one."""

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pymysql
import pytest

from journal.records.xid import Xid
from meta_client.doctor import mysql
from meta_client.doctor.advice import sql_command
from meta_client.doctor.evidence import DatabaseEvidence
from meta_client.producer.producer import Producer
from meta_client.transactions.databases import session_of
from meta_client.transactions.deciding import RowLost
from meta_client.transactions.mysql import SECRET, parameters
from meta_client.transactions.table import CommitFailure, RowDecision
from tests.fixtures import replicas
from tests.fixtures.forked import run_metaq
from tests.fixtures.mariadb import EmbeddedMariaDb, MariaDatabase, made_in
from tests.meta_client.doctor.conftest import Doctor, in_flight
from tests.meta_client.doctor.test_rows import kill_at
from tests.meta_client.transactions.conftest import World, do, make_mariadb
from zk.embedded.chroot import Chroot

JAVA = 131077


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """The server renews its list of transactions when nobody has asked for it in the last 0.1 s."""

    def look() -> bool:
        time.sleep(0.2)
        return condition()

    replicas.wait_until(look, what)


def literals(xid: Xid) -> str:
    return f"X'{xid.gtrid.hex()}',X'{xid.bqual.hex()}',{xid.format_id}"


def prepare(connection: Any, xid: Xid, statement: str) -> None:
    """Prepare a transaction as a Java transaction manager does."""
    for text in (f"XA START {literals(xid)}", statement, f"XA END {literals(xid)}", f"XA PREPARE {literals(xid)}"):
        do(connection, text)


def looked(url: str, *gtrids: str) -> DatabaseEvidence:
    return mysql.collect_evidence(DatabaseEvidence("database shop", url), gtrids)


@contextmanager
def user(world: World, *grants: str) -> Iterator[str]:
    """The URL of a user who may read the decision table, and has *grants*."""
    name = parameters(world.deciding.url)["database"]
    world.deciding.execute("CREATE OR REPLACE USER poor@'%' IDENTIFIED BY 'x'")
    for grant in (f"SELECT ON {name}.*", *grants):
        world.deciding.execute(f"GRANT {grant} TO poor@'%'")
    yield re.sub("//.*@", "//poor:x@", world.deciding.url)
    world.deciding.execute("DROP USER poor@'%'")


def test_who_holds_a_row_is_said_as_exactly_as_the_server_tells(maria_world: World) -> None:
    """The only session that has written; else one of several, until somebody waits for the row."""
    deciding = maria_world.deciding
    gtrids = [deciding.identity.name.new_gtrid() for _ in range(2)]
    with ExitStack() as stack:
        writer, other, waiting = (stack.enter_context(closing(deciding.connect())) for _ in range(3))
        session = session_of(writer)
        session.begin()
        session.decide(gtrids[0], (0,))
        wait_until(lambda: looked(deciding.url, *gtrids).in_flight[gtrids[0]].ends != "", "the server's list is fresh")
        found = looked(deciding.url, *gtrids)
        assert found.in_flight.keys() == {gtrids[0]}
        holder = found.in_flight[gtrids[0]]
        assert (holder.ends, holder.name.split(" from ")[0]) == (
            f"KILL {writer.thread_id()}",
            f"session {writer.thread_id()} of metaq",
        )
        assert found.purge.startswith(f"held back by session {writer.thread_id()} of metaq")

        do(other, "INSERT INTO numbers VALUES (7)")
        wait_until(lambda: looked(deciding.url, *gtrids).in_flight[gtrids[0]].ends == "", "either may be it")
        assert looked(deciding.url, *gtrids).in_flight[gtrids[0]].name.startswith("one of session ")

        blocked = f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{gtrids[0]}', 'rollback', '')"

        def wait() -> None:
            with pytest.raises(pymysql.Error):
                do(waiting, blocked)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: bool(looked(deciding.url, *gtrids).sessions), "somebody waits for a row")
        found = looked(deciding.url, *gtrids)
        assert found.in_flight[gtrids[0]].ends == f"KILL {writer.thread_id()}"
        assert [one.does for one in found.sessions] == ["waits for a row of"]
        session.commit()
        thread.join()
        other.rollback()


def test_a_live_transaction_is_known_without_any_right_to_see_sessions(maria_world: World, doctor: Doctor) -> None:
    """By its row, which is there and not committed. Who holds it is unknown, and said to be."""
    with in_flight(maria_world), user(maria_world) as url:
        told = doctor(maria_world.zookeeper, "--database", url, "--apply")
        assert (told.status, told.verdicts) == (0, ["at work"])
        assert "GRANT PROCESS ON *.* TO poor@%" in told.rows[0]["reason"]
        assert told.rows[0]["purge"].startswith("unknown: ")
    maria_world.check([1])


def run_as_shown(world: World, command: str) -> None:
    """The command as a person would paste it, who is asked for the password."""
    environment = os.environ | {"MYSQL_PWD": parameters(world.deciding.url)["password"]}
    words = shlex.split(command)
    words.remove("--password")
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_session_that_holds_a_row_is_ended_as_told(maria_world: World, doctor: Doctor) -> None:
    """Its client is told, both sides are rolled back, and another one's transaction goes on."""
    world = maria_world
    with closing(world.deciding.connect()) as connection:
        session = session_of(connection)
        session.begin()
        session.decide(gtrid := world.deciding.identity.name.new_gtrid(), (0,))
        wait_until(lambda: looked(world.deciding.url, gtrid).in_flight[gtrid].ends != "", "the server's list is fresh")
        found = looked(world.deciding.url, gtrid)
        run_as_shown(world, sql_command(found, found.in_flight[gtrid].ends))
        with pytest.raises(RowLost, match="the connection is lost") as lost:
            session.commit()
        assert session.classify_commit(lost.value) is CommitFailure.UNANSWERED
    assert world.deciding.rows() == {}


def test_a_row_that_a_resolver_has_written_rolls_back(maria_world: World, doctor: Doctor) -> None:
    world = maria_world
    kill_at(world, "pymysql", 1, "PREPARED")
    (row,) = doctor(world.zookeeper).rows
    with closing(world.deciding.table()) as table:
        assert table.resolve(row["transaction"]) is RowDecision.ROLLBACK
    given = ("--database", world.deciding.url)
    assert doctor(world.zookeeper, *given).verdicts == ["roll back"]
    told = doctor(world.zookeeper, *given, "--apply")
    assert (told.status, told.rows[0]["done"]) == (0, "rolled back")
    world.check([])
    assert not world.prepared()


NAMES = [(b"java-tm-17", b"jms", b"jdbc"), (b"\xff\xfe'\"`$(reboot)\n\0\x1b[2J", b"\xc3(", b"\0"), (b"x", b"mq", b"")]


@pytest.mark.parametrize(("gtrid", "at_broker", "in_database"), NAMES, ids=["text", "bytes", "empty"])
def test_a_strangers_branches_are_joined_and_left_to_a_person(
    maria_world: World, doctor: Doctor, gtrid: bytes, at_broker: bytes, in_database: bytes
) -> None:
    """Both halves are shown, whatever bytes name them; the command shown ends the database's."""
    world = maria_world
    producer: Producer = world.client.producer("java")
    producer.tpc_begin(Xid(JAVA, gtrid, at_broker), topics=("orders",))
    producer.send("orders", b"1")
    producer.tpc_prepare()
    with closing(world.deciding.connect()) as connection, closing(world.deciding.connect()) as another:
        prepare(connection, Xid(JAVA, gtrid, in_database), "INSERT INTO numbers VALUES (1)")
        prepare(another, Xid(JAVA, b"of nobody here", b""), "INSERT INTO numbers VALUES (2)")
        told = doctor(world.zookeeper, "--database", world.deciding.url, "--apply")
        assert (told.status, told.verdicts) == (1, ["ask a person"] * 2)
        (half,) = (row for row in told.rows if row["place"].startswith("XA RECOVER of database "))
        assert half["decided_by"] == "another transaction manager"
        assert Xid.parse(half["xid"]) == Xid(JAVA, gtrid, in_database)
        assert (half["waiting"], half["age_s"]) == (None, None)
        assert half["locks"][0].startswith("unknown: ")
        assert half["purge"].startswith("held back by ")
        assert told.at("broker 0")["others"] == {half["place"]: "prepared"}
        assert "of nobody here" not in str(told.rows)
        do(another, f"XA ROLLBACK {literals(Xid(JAVA, b'of nobody here', b''))}")
    wait_until(lambda: "(XA RECOVER)" in looked(world.deciding.url).purge, "its session has left")
    (alone,) = looked(world.deciding.url).prepared
    assert (alone.locks, alone.waiting) == (("1 rows written in 1 tables",), 0)
    ends = [command for command in half["commands"] if "XA ROLLBACK" in command]
    assert len(ends) == 1
    run_as_shown(world, ends[0])
    assert not looked(world.deciding.url).prepared
    producer.tpc_rollback()
    world.check([])


def test_two_databases_of_one_server_tell_of_a_transaction_once(
    maria_world: World, mariadb_server: EmbeddedMariaDb, doctor: Doctor
) -> None:
    world, other = maria_world, make_mariadb(made_in(mariadb_server))
    xid = Xid(JAVA, b"one", b"")
    producer = world.client.producer("java")
    producer.tpc_begin(xid, topics=("orders",))
    producer.send("orders", b"1")
    producer.tpc_prepare()
    with closing(world.deciding.connect()) as connection:
        prepare(connection, xid, "INSERT INTO numbers VALUES (1)")
        told = doctor(world.zookeeper, "--database", world.deciding.url, "--database", other.url)
        assert len(told.rows) == 2
        do(connection, f"XA ROLLBACK {literals(xid)}")
    producer.tpc_rollback()
    other.execute(f"DROP DATABASE {parameters(other.url)['database']}")


def test_a_user_who_may_not_read_the_table_or_write_it(maria_world: World, doctor: Doctor) -> None:
    world = maria_world
    kill_at(world, "pymysql", 1, "PREPARED")
    with user(world) as url:
        assert doctor(world.zookeeper, "--database", url).verdicts == ["decide"]
        told = doctor(world.zookeeper, "--database", url, "--apply")
        assert (told.status, told.verdicts) == (1, ["decide"])
        assert "INSERT command denied" in told.rows[0]["done"]
        name = parameters(url)["database"]
        world.deciding.execute(f"REVOKE SELECT ON {name}.* FROM poor@'%'")
        world.deciding.execute(f"GRANT SELECT ON {name}.numbers TO poor@'%'")
        told = doctor(world.zookeeper, "--database", url, "--apply")
        assert (told.status, told.verdicts) == (1, ["unknown"])
    assert len(world.prepared()) == 1
    assert doctor(world.zookeeper, "--database", world.deciding.url, "--apply").status == 0
    world.check([])


def test_a_table_that_is_missing_or_a_copy_decides_nothing(
    maria_world: World, mariadb_server: EmbeddedMariaDb, doctor: Doctor
) -> None:
    world, copy = maria_world, made_in(mariadb_server)
    kill_at(world, "pymysql", 1, "DECIDED")
    told = doctor(world.zookeeper, "--database", copy.url, "--apply")
    assert (told.status, told.verdicts) == (1, ["unknown"])
    name = parameters(world.deciding.url)["database"]
    for table in ("metaq_decision", "metaq_decision_table"):
        world.deciding.execute(f"CREATE TABLE {copy.name}.{table} LIKE {name}.{table}")
        world.deciding.execute(f"INSERT INTO {copy.name}.{table} SELECT * FROM {name}.{table}")
    told = doctor(world.zookeeper, "--database", copy.url, "--apply")
    assert (told.status, told.verdicts) == (1, ["unknown", "unknown"])
    assert "was made elsewhere" in str(told.rows)
    world.deciding.execute(f"UPDATE {copy.name}.metaq_decision_table SET home = CONCAT(@@server_id, '/{copy.name}')")
    told = doctor(world.zookeeper, "--database", copy.url, "--database", world.deciding.url, "--apply")
    assert (told.status, told.verdicts) == (1, ["unknown"])
    assert "several databases answer" in told.rows[0]["reason"]
    assert len(world.prepared()) == 1
    world.deciding.execute(f"DROP DATABASE {copy.name}")
    assert doctor(world.zookeeper, "--database", world.deciding.url, "--apply").status == 0
    world.check([1])


def test_an_address_is_shown_without_its_secrets() -> None:
    """It leads to the same database."""
    for url in (
        "mariadb+pymysql://ann%40x:s3cret@[::1]:3307/sh%2Fop?ssl_key_password=s3cret&charset=utf8mb4",
        "mysql://db1/shop",
        "mysql://:s3cret@db1/shop?unix_socket=/run/my.sock",
    ):
        label, address = mysql.names_of(url)
        assert "s3cret" not in label + address
        known = {name: value for name, value in parameters(url).items() if name not in SECRET and value}
        assert {name: value for name, value in parameters(address).items() if value} == known


def test_urls_that_lead_nowhere(zookeeper: Chroot, mariadb: MariaDatabase, doctor: Doctor) -> None:
    """Each is a line of its own, as is that no broker is registered; and no secret is shown, not even the piece that a
    wrong character makes a port of."""
    right = parameters(mariadb.url)
    urls = [
        "mysql://ann:s3cret/x@127.0.0.1/shop",
        "mysql://ann:s3cret@127.0.0.1:many/shop",
        "mysql://ann:s3cret@[::1/shop",
        "mysql://ann:s3cret@127.0.0.1:99999/shop",
        "mysql://ann:s3cret@127.0.0.1",
        "mysql://ann:s3cret@127.0.0.1:1/shop",
        "mysql://ann:s3cret\u20ac@127.0.0.1:1/shop",
        "mysql://ann@127.0.0.1:1/shop?ssl_key_password=s3cret&ssl_ca=/nowhere",
        "mysql://ann:s3cret@127.0.0.1:1/shop?unix_socket=/nowhere",
        "mysql://ann:s3cret@127.0.0.1:1/shop?charset=klingon",
        "mysql://ann:s3cret@127.0.0.1:1/shop?s=s3cret",
        f"mysql://ann:s3cret@127.0.0.1:{right['port']}/shop",
        re.sub("/[^/]*$", "/nowhere", mariadb.url),
    ]
    told = doctor(zookeeper.connect, *(word for url in urls for word in ("--database", url)))
    assert [row["verdict"] for row in told.rows] == ["unknown"] * (1 + len(urls))
    assert told.rows[0]["reason"].startswith("no broker is registered")
    assert "s3cret" not in str(told.rows) + told.stderr
    assert right["password"] not in str(told.rows) + told.stderr
    for url in urls[:1] + urls[7:10]:
        refused = run_metaq("txn", "init", "--database", url)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert "s3cret" not in refused.stderr
