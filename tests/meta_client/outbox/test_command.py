"""`metaq outbox`: what an operator sees and does."""

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text

from meta_client.admin.log_samples import FAMILIES as LOG
from meta_client.outbox import rows
from meta_client.outbox.relay_metrics import FAMILIES, WAITING_AGE
from meta_client.outbox.relay_state import BatchBranch, RelayState
from tests.fixtures.forked import run_metaq, start_metaq
from tests.fixtures.scrape import SERVED, Scrape, health, wait_for
from tests.meta_client.outbox.conftest import TABLES, OutboxWorld


def outbox(on: OutboxWorld, command: str, *words: str) -> tuple[int, str, str]:
    zk = ("--zk", on.world.zookeeper) if command == "relay" else ()
    done = run_metaq("outbox", command, "--database", on.url, *zk, *words)
    return done.returncode, done.stdout, done.stderr


def listed(on: OutboxWorld) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(outbox(on, "list", "--json")[1])
    return found


def test_init_twice_then_send_relay_and_list(outboxed: OutboxWorld) -> None:
    for name in TABLES:
        outboxed.world.deciding.execute(f"DROP TABLE {name}")
    status, _, said = outbox(outboxed, "list")
    assert status == 2
    assert "run `metaq outbox init --database URL` once" in said
    table_id = outboxed.world.deciding.identity.name.table_id
    for _ in range(2):
        assert outbox(outboxed, "init") == (0, f"outbox metaq_outbox, decision table {table_id}\n", "")
    assert outbox(outboxed, "list") == (0, "0 wait; last moved: never; 0 set aside\n", "")
    outboxed.work(1, 2)
    found = listed(outboxed)
    assert (found["waiting"], found["aside"], found["relayed_age_s"], found["rows"]) == (2, 0, None, [])
    assert 0 <= found["oldest_age_s"] < 60
    status, said, _ = outbox(outboxed, "relay", "--once")
    assert (status, said) == (0, "moved=2 refused=0 failed_passes=0\n")
    outboxed.world.check([1, 2])
    assert outbox(outboxed, "list")[1].startswith("0 wait; last moved: ")


def test_the_statements_of_a_migration(outboxed: OutboxWorld) -> None:
    status, statements, _ = outbox(outboxed, "init", "--sql")
    assert status == 0
    for name in TABLES:
        outboxed.world.deciding.execute(f"DROP TABLE {name}")
    for statement in filter(str.strip, statements.split(";\n")):
        outboxed.world.deciding.execute(statement)
    outboxed.work(1)
    assert outbox(outboxed, "relay", "--once")[0] == 0
    outboxed.world.check([1])


def test_partitions_of_a_broker_that_is_down_are_named(on_postgres: OutboxWorld) -> None:
    """A message whose partition is on a broker that no client has seen waits, instead of going to another one."""
    on_postgres.work(*range(20))
    status, said, _ = outbox(on_postgres, "relay", "--once", "--expect", "orders=0:4,7:4")
    assert status == 1
    numbers = on_postgres.world.messages()
    assert 0 < len(numbers) < 20
    assert said.splitlines()[-1] == f"moved={len(numbers)} refused=0 failed_passes=0"
    assert on_postgres.status().waiting == 20 - len(numbers)
    for wrong in ("orders", "orders=", "orders=0:0", "orders=0:4,0:5", "=0:4", "orders=0:4,"):
        status, _, said = outbox(on_postgres, "relay", "--once", "--expect", wrong)
        assert status == 2
        assert "write topic, brokers and counts like orders=0:4,1:4" in said
    for clash in (("--round-robin",), ("--expect", "orders=1:4")):
        assert outbox(on_postgres, "relay", "--once", "--expect", "orders=0:4", *clash)[0] == 2


def test_a_broker_that_never_comes_back_is_waited_for_no_longer(on_postgres: OutboxWorld) -> None:
    name = on_postgres.world.deciding.identity.name
    lost, other = (BatchBranch(name.new_gtrid(), broker_id) for broker_id in (7, 8))
    values = ", ".join(f"('{each.gtrid}', 'commit', '{each.broker_id}')" for each in (lost, other))
    on_postgres.world.deciding.execute(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES {values}")
    with on_postgres.engine.connect() as connection:
        rows.write_state(connection, RelayState((lost, other)), is_moved=True)
        connection.commit()
    on_postgres.work(*range(20))
    assert outbox(on_postgres, "relay", "--once", "--expect", "orders=0:4,7:4")[0] == 1
    deferred = 20 - len(on_postgres.world.messages())
    assert 0 < deferred < 20
    found = listed(on_postgres)
    assert [each["broker_id"] for each in found["unconfirmed"]] == [7, 8]
    assert (found["waiting"], found["deferred"]) == (deferred, {"7": deferred})
    status, said, _ = outbox(on_postgres, "list")
    assert (status, said.splitlines()[1:]) == (
        0,
        [
            f"messages for broker 7 wait until it has committed {lost.gtrid}",
            f"messages for broker 8 wait until it has committed {other.gtrid}",
            f"{deferred} of them wait for broker 7, and others pass them",
        ],
    )
    status, _, told = outbox(on_postgres, "release", "7")
    assert (status, "--yes skips it" in told) == (130, True)
    for broker_id, branches, messages in ((9, 0, 0), (7, 1, deferred), (8, 1, 0)):
        said = f"{branches} branches given up, {messages} messages may go elsewhere\n"
        assert outbox(on_postgres, "release", str(broker_id), "--yes") == (0, said, "")
    assert outbox(on_postgres, "relay", "--once")[0] == 0
    on_postgres.world.check(list(range(20)))


def test_what_is_set_aside_is_listed_with_its_reason_and_retried(on_postgres: OutboxWorld) -> None:
    on_postgres.work(1, 2)
    with on_postgres.engine.connect() as connection:
        connection.execute(text("UPDATE metaq_outbox SET partition = E'0-9\\033[2J' WHERE id = 1"))
        connection.commit()
    status, said, warned = outbox(on_postgres, "relay", "--once", "--json")
    assert status == 1
    assert json.loads(said.splitlines()[-1]) == {"moved": 1, "refused": 1, "failed_passes": 0}
    assert "warning: not all of it was moved: see metaq outbox list" in warned
    status, said, _ = outbox(on_postgres, "list")
    assert status == 1
    assert said.startswith("0 wait; last moved: ")
    assert "is no partition" in said
    assert "\033" not in said
    (row,) = listed(on_postgres)["rows"]
    assert (row["id"], row["topic"], row["attribute"], row["bytes"]) == (1, "orders", "1", 1)
    on_postgres.world.deciding.execute("UPDATE metaq_outbox_aside SET partition = NULL")
    assert outbox(on_postgres, "retry")[0] == 2
    on_postgres.world.deciding.execute("UPDATE metaq_outbox_aside SET id = -1")  # as where ids began again
    assert outbox(on_postgres, "retry", "-1", "7") == (0, "1 wait again\n", "")
    assert outbox(on_postgres, "retry", "--all") == (0, "0 wait again\n", "")
    assert outbox(on_postgres, "relay", "--once")[0] == 0
    on_postgres.world.check([1, 2])


def test_a_relay_that_runs_tells_what_it_does_and_what_it_waits_for(on_postgres: OutboxWorld, tmp_path: Path) -> None:
    log = tmp_path / "relay.log"
    words = ["outbox", "relay", "--database", on_postgres.url, "--zk", on_postgres.world.zookeeper, "--admin-port", "0"]
    with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
        process = start_metaq(words, stdin=nothing, stdout=out, stderr=out)
    try:
        url = wait_for(lambda: SERVED.search(log.read_text()), bool)[1]
        wait_for(lambda: health(url, "ready")[0], lambda status: status == 200)
        assert Scrape(url).families == {family.name for family in (*FAMILIES, *LOG)} - {WAITING_AGE.name}
        on_postgres.work(1)
        wait_for(lambda: Scrape(url).get("metaq_outbox_messages_moved_total"), lambda count: count == 1)
        on_postgres.work(2, topic="nowhere")
        status, told = wait_for(lambda: health(url, "ready"), lambda found: found[0] == 503)
        assert (status, told["why_not"]) == (503, ["messages of topic nowhere wait for a broker"])
        wait_for(lambda: Scrape(url).get("metaq_outbox_messages_waiting"), lambda count: count == 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_once_ends_with_a_warning_where_the_database_fails(on_postgres: OutboxWorld) -> None:
    on_postgres.work(*range(50))
    database = ("--database", on_postgres.url, "--zk", on_postgres.world.zookeeper)
    with tempfile.TemporaryFile() as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        words = ("outbox", "relay", "--once", "--rows", "1", *database)
        relay = start_metaq(words, stdin=nothing, stdout=out, stderr=err)
        deadline = time.monotonic() + 30
        while on_postgres.status().waiting == 50:
            assert time.monotonic() < deadline
        on_postgres.world.deciding.execute("ALTER TABLE metaq_outbox RENAME TO away")
        assert relay.wait() == 1
        err.seek(0)
        told = err.read().decode()
    assert 'warning: not all of it was moved: relation "metaq_outbox" does not exist' in told
    assert "Traceback" not in told


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = run_metaq("outbox", "list", "--database", f"sqlite:///{tmp_path}/typo.db")
    assert done.returncode == 2
    assert "typo.db is not there" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_url_that_leads_nowhere_is_told_in_a_line_without_its_password(tmp_path: Path) -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/shop", "mariadb://me:secret@127.0.0.1:1/shop"):
        done = run_metaq("outbox", "list", "--database", url)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: the database gave no answer: ")
        assert "secret" not in done.stderr
