"""A relay dies at each step of a batch: the next one moves what it did not, each message once and in order."""

import threading
import time
from contextlib import closing

import pytest
from sqlalchemy import text

from meta_client import Client
from meta_client.outbox import Relay, rows
from meta_client.outbox.relay_state import BatchBranch, RelayState
from meta_client.transactions import TransactionConfig
from meta_client.transactions.databases import init
from meta_client.transactions.generation import Generations
from meta_client.transactions.table import KEEP_S
from tests.fixtures.forked import run_metaq, start_module
from tests.meta_client.outbox.conftest import LOCK_WAITS, OutboxWorld, drain
from tests.meta_client.transactions.test_restored import EMPTY, raise_generation
from zk.decisions.generation import read_generation
from zk.session.session import ZooKeeperSession


@pytest.mark.parametrize("step", ["PREPARED", "RECORDED", "DECIDED", "COMMIT_SENT"])
def test_a_relay_is_killed(outboxed: OutboxWorld, step: str) -> None:
    outboxed.work(*range(20))
    world = outboxed.world
    assert start_module("tests.meta_client.outbox.relaying", outboxed.url, world.zookeeper, step).wait() == -9
    is_decided = step in ("DECIDED", "COMMIT_SENT")
    assert outboxed.status().waiting == (0 if is_decided else 20)
    outboxed.work(*range(20, 30))
    config = TransactionConfig(age_s=0.5, interval_s=0.1)
    with Client(world.zookeeper, transactions=config) as client, Relay(client, outboxed.url) as relay:
        deadline = time.monotonic() + 60
        while outboxed.status().waiting or world.prepared():
            assert time.monotonic() < deadline, relay.trouble
            time.sleep(0.05)
        assert relay.counts.moved == (10 if is_decided else 30)
    world.check(list(range(30)))


def test_a_database_that_was_restored_is_not_moved_from(
    on_postgres: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were moved are there again."""
    monkeypatch.setattr("meta_client.outbox.relay.CHECK_S", 0.0)  # here no connection is lost by the restore
    world = on_postgres.world
    on_postgres.work(1)
    with on_postgres.engine.connect() as connection:
        before = connection.execute(text("SELECT * FROM metaq_outbox")).mappings().one()
    with (
        on_postgres.engine.connect() as connection,
        on_postgres.relay() as relay,
        closing(world.deciding.table()) as table,
    ):
        with world.open_client() as client:
            Generations(client.session, world.deciding.identity.name).accept(table)
        world.check([1])
        assert table.advance(table.generation(), 0)
        columns = ", ".join(dict(before))
        values = ", ".join(f":{name}" for name in dict(before))
        connection.execute(text(f"INSERT INTO metaq_outbox ({columns}) VALUES ({values})"), dict(before))
        connection.commit()
        deadline = time.monotonic() + 60
        while "was restored to an earlier time" not in str(relay.trouble):
            assert time.monotonic() < deadline, relay.trouble
            time.sleep(0.05)
        connection.execute(text("DELETE FROM metaq_outbox"))
        connection.commit()
    world.check([1])


@pytest.mark.parametrize("how", EMPTY)
def test_decisions_that_were_lost_stop_a_relay_and_what_its_own_row_names_is_committed(
    outboxed: OutboxWorld, how: str
) -> None:
    """A relay dies before its broker's COMMIT, then the decision table is emptied: nothing but the relay's row tells
    that the batch was decided, and later messages must not overtake it."""
    world = outboxed.world
    if world.deciding.kind == "sqlite" and how == "truncated":
        pytest.skip("SQLite has no TRUNCATE")
    outboxed.work(*range(20))
    raise_generation(world)
    assert start_module("tests.meta_client.outbox.relaying", outboxed.url, world.zookeeper, "DECIDED").wait() == -9
    world.deciding.execute(EMPTY[how])
    init(outboxed.url, KEEP_S)
    outboxed.work(*range(20, 30))
    assert (len(world.prepared()), world.messages()) == (1, [])
    relay = outboxed.relay()
    relay.run_pass()
    assert "rows of metaq_decision were deleted" in str(relay.trouble)
    assert (relay.counts.moved, outboxed.status().waiting, world.prepared()) == (0, 10, [])
    assert world.messages() == list(range(20))
    accepted = run_metaq("txn", "init", "--restored", "--yes", "--database", outboxed.url, "--zk", world.zookeeper)
    assert accepted.returncode == 0, accepted.stderr
    drain(relay)
    assert (relay.counts.moved, relay.trouble) == (10, None)
    world.check(list(range(30)))


def test_a_generation_that_is_raised_while_a_relay_looks_is_no_restoration(
    outboxed: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In MySQL, whose reads show the state of a transaction's first one."""
    world, raised = outboxed.world, list[int]()
    outboxed.work(1)

    def read(session: ZooKeeperSession, table_id: str) -> object:
        if not raised:
            raised.append(0)
            with closing(world.deciding.table()) as table:
                raised.append(Generations(world.client.session, world.deciding.identity.name).accept(table))
        return read_generation(session, table_id)

    monkeypatch.setattr("meta_client.transactions.generation.read_generation", read)
    relay = outboxed.relay()
    relay.run_pass()
    assert (relay.trouble, relay.counts.moved, len(raised)) == (None, 1, 2)
    world.check([1])


def test_a_relay_that_hangs_gives_way_when_it_goes_on(on_postgres: OutboxWorld) -> None:
    """Another one waits for its lock, says so, and moves what is left."""
    world = on_postgres.world
    on_postgres.work(*range(10))
    with on_postgres.engine.connect() as hanging:
        assert rows.lock(hanging) is not None
        with on_postgres.relay() as relay:
            deadline = time.monotonic() + 60
            while relay.trouble is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert "lock timeout" in relay.trouble
            assert relay.counts.moved == 0
            hanging.rollback()
            world.check(list(range(10)))


@pytest.mark.parametrize("outboxed", ["postgres", "mariadb"], indirect=True)
def test_a_relay_that_waited_for_another_sees_what_that_did(outboxed: OutboxWorld) -> None:
    """Rows that it moved, and its batch that a broker has not committed."""
    outboxed.work(*range(10))
    deciding = outboxed.world.deciding
    gtrid = deciding.identity.name.new_gtrid()
    relay = outboxed.relay()
    with outboxed.engine.connect() as other:
        rows.lock(other)
        waiting = threading.Thread(target=relay.run_pass)
        waiting.start()
        deadline = time.monotonic() + 60
        while deciding.query(LOCK_WAITS[deciding.kind]) == [(0,)]:
            assert time.monotonic() < deadline
        other.execute(text("DELETE FROM metaq_outbox WHERE id <= 5"))
        other.execute(text(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{gtrid}', 'commit', '7')"))
        rows.write_state(other, RelayState((BatchBranch(gtrid, 7),)), is_moved=True)
        other.commit()
        waiting.join()
        relay.run_pass()  # the first one tried to commit the branch
        assert (relay.counts.moved, relay.trouble, relay.waiting_for) == (5, None, ())
        assert relay.brokers_away == (7,)
        assert rows.lock(other).batches[0] == BatchBranch(gtrid, 7)


def test_a_relay_with_nothing_to_move_leaves_a_batch_to_the_one_at_work_for_a_while(on_postgres: OutboxWorld) -> None:
    deciding = on_postgres.world.deciding
    gtrid = deciding.identity.name.new_gtrid()
    relay = on_postgres.relay()
    with on_postgres.engine.connect() as other:
        other.execute(text(f"INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES ('{gtrid}', 'commit', '7')"))
        rows.write_state(other, RelayState((BatchBranch(gtrid, 7),)), is_moved=True)
        other.commit()
    drain(relay)
    assert not relay.brokers_away
    deadline = time.monotonic() + 60
    while relay.brokers_away != (7,):
        assert time.monotonic() < deadline, relay.trouble
        relay.run_pass()
