"""Tables of an outbox: who may use them, who makes them, how many rows they have."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import text

from meta_client.outbox import Relay, contents, rows, tables
from meta_client.outbox.errors import NoOutbox, RowsChanged
from meta_client.outbox.waits import PassedOver
from tests.meta_client.outbox.conftest import LOCK_WAITS, TABLES, OutboxWorld, drain
from zk.tree.nodes import Partition

ROOT = Path(__file__).parents[3]
RIGHTS = {
    "outbox_service": {"metaq_outbox": "INSERT"},
    "outbox_relay": {
        "metaq_outbox": "SELECT, DELETE",
        "metaq_outbox_deferred": "SELECT, INSERT, DELETE",
        "metaq_outbox_aside": "SELECT, INSERT",
        "metaq_outbox_relay": "SELECT, UPDATE",
        "metaq_decision": "SELECT, INSERT, UPDATE, DELETE",
        "metaq_decision_table": "SELECT, UPDATE (generation)",
    },
}


@pytest.fixture
def roles(on_postgres: OutboxWorld) -> Iterator[dict[str, str]]:
    """URLs of roles with the rights that the documents name."""
    execute = on_postgres.world.deciding.execute
    documents = (ROOT / "docs/outbox.md").read_text() + (ROOT / "docs/transactions.md").read_text()
    for role, rights in RIGHTS.items():
        execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
        for table, names in rights.items():
            assert f"`{names}` on `{table}`" in " ".join(documents.split())
            execute(f"GRANT {names} ON {table} TO {role}")
    execute("GRANT INSERT ON numbers TO outbox_service")
    yield {role: make_conninfo(on_postgres.url, user=role, password="p") for role in RIGHTS}
    execute("".join(f"DROP OWNED BY {role}; DROP ROLE {role};" for role in RIGHTS))


def test_the_rights_that_the_documents_name_are_enough(on_postgres: OutboxWorld, roles: dict[str, str]) -> None:
    execute = on_postgres.world.deciding.execute
    with closing(psycopg.connect(roles["outbox_service"])) as connection:
        for number in (1, 2, 3):
            connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
            on_postgres.outbox.send(connection, "orders", b"%d" % number)
        connection.commit()
    execute("UPDATE metaq_outbox SET partition = 'x' WHERE id = 2")
    execute("UPDATE metaq_outbox SET partition = '7-0' WHERE id = 3")
    with closing(Relay(on_postgres.world.client, roles["outbox_relay"])) as relay:
        relay.check()
        drain(relay)
        assert (relay.counts.moved, relay.counts.refused, relay.trouble) == (1, 1, None)
        assert relay.brokers_away == (7,)
        on_postgres.work(4, 5)  # ids begin again
        execute("UPDATE metaq_outbox SET partition = 'x', id = 2 WHERE payload = '4'")
        execute("UPDATE metaq_outbox SET partition = '7-0', id = 3 WHERE payload = '5'")
        drain(relay)
        assert (relay.counts.refused, relay.trouble, on_postgres.status().waiting) == (2, None, 2)


def test_many_that_are_far_apart_are_estimated(outboxed: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred ones, which thousands of others have passed."""
    monkeypatch.setattr(contents, "COUNTED_MAX", 3)
    outboxed.work(*range(20))
    outboxed.world.deciding.execute("UPDATE metaq_outbox SET id = 1000 * id WHERE id > 1")
    assert (outboxed.status().waiting, outboxed.status().is_estimated) == (20, True)
    monkeypatch.setattr(contents, "COUNTED_MAX", 20)
    assert (outboxed.status().waiting, outboxed.status().is_estimated) == (20, False)


def test_many_are_counted_by_their_ids(outboxed: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    outboxed.work(*range(5))
    with outboxed.engine.connect() as connection:
        rows.WAITING.set_aside(connection, 2, "x" * 2_000)
        assert outboxed.status()[::2] == (4, 1)
        monkeypatch.setattr(contents, "COUNTED_MAX", 3)
        assert outboxed.status()[::2] == (4, 1)
        (row,) = contents.aside_rows(connection, 10)
        assert (row.id, row.topic, row.attribute, row.bytes, len(row.reason)) == (2, "orders", "1", 1, 1_000)
        assert rows.retry(connection, [1, 2, 3]) == 1
        assert rows.retry(connection, None) == 0
        found = rows.WAITING.oldest(connection, 10, 1_000, passed_over=())
        assert [row.payload for row in found] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("outboxed", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize("table", ["metaq_outbox", "metaq_outbox_aside"])
def test_a_message_that_another_process_takes_does_not_change_tables(outboxed: OutboxWorld, table: str) -> None:
    """A relay has sent it, or an operator given it up, in a transaction that commits meanwhile."""
    outboxed.work(1)
    with outboxed.engine.connect() as connection, outboxed.engine.connect() as other, ThreadPoolExecutor() as thread:
        if is_aside := table == "metaq_outbox_aside":
            rows.WAITING.set_aside(connection, 1, "refused")
        other.execute(text(f"DELETE FROM {table}"))
        waiting = thread.submit(
            *((rows.retry, connection, None) if is_aside else (rows.WAITING.set_aside, connection, 1, "no"))
        )
        deadline = time.monotonic() + 60
        while outboxed.world.deciding.query(LOCK_WAITS[outboxed.world.deciding.kind]) == [(0,)]:
            assert time.monotonic() < deadline
        other.commit()
        with pytest.raises(RowsChanged):
            waiting.result(60)
        connection.rollback()
    assert outboxed.status()[::2] == (0, 0)


def test_without_an_outbox_the_command_is_named(on_postgres: OutboxWorld) -> None:
    on_postgres.world.deciding.execute("DROP TABLE metaq_outbox_relay")
    with pytest.raises(NoOutbox, match=r"metaq_outbox_relay.* does not exist.*; run `metaq outbox init"):
        on_postgres.relay().check()
    with on_postgres.engine.connect() as connection:
        tables.create(connection)
        connection.execute(text("DELETE FROM metaq_outbox_relay"))
        connection.commit()
    with pytest.raises(NoOutbox, match="is empty"):
        on_postgres.relay().check()


@pytest.mark.parametrize("column", ["metaq_outbox.payload", "metaq_outbox_aside.reason", "metaq_outbox_relay.state"])
def test_tables_of_another_version_are_told(outboxed: OutboxWorld, column: str) -> None:
    table, name = column.split(".")
    outboxed.world.deciding.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO other")
    with pytest.raises(
        NoOutbox, match=rf"{name}.*another version: alter them to what `metaq outbox init --sql` prints"
    ):
        outboxed.relay().check()


def test_an_outbox_is_made_by_several_at_once(on_postgres: OutboxWorld) -> None:
    """Make the tables as services do that begin together."""
    for table in TABLES:
        on_postgres.world.deciding.execute(f"DROP TABLE {table}")

    def make(_: int) -> None:
        with on_postgres.engine.connect() as connection:
            tables.create(connection)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(4)))
    on_postgres.relay().check()


def test_a_topic_with_a_space_at_its_end_holds_back_no_other_one(
    outboxed: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL's collations compare as if there were none."""
    monkeypatch.setattr("meta_client.outbox.waits.PASS_OVER_S", 60.0)
    outboxed.work(1, topic="orders ")
    relay = outboxed.relay(rows_max=1)
    drain(relay)
    assert relay.waiting_for == ("orders ",)
    outboxed.work(2)
    drain(relay)
    assert (relay.counts.moved, outboxed.world.messages()) == (1, [2])


def test_ids_that_begin_again(outboxed: OutboxWorld) -> None:
    """TRUNCATE in MySQL does so: messages of before are set aside, and deferred, under the ids of new ones."""
    outboxed.work(1, 2)
    with outboxed.engine.connect() as connection:
        for row_id in (1, 2):
            rows.WAITING.set_aside(connection, row_id, "of before")
        for number in (3, 4):
            outboxed.work(number)
            outboxed.world.deciding.execute("UPDATE metaq_outbox SET id = 1")
            rows.WAITING.set_aside(connection, 1, "new")
        found = {row.id: row.reason for row in contents.aside_rows(connection, 10)}
        assert found == {-2: "new", -1: "new", 1: "of before", 2: "of before"}
        connection.rollback()
        outboxed.work(5)
        outboxed.world.deciding.execute("UPDATE metaq_outbox SET id = 1")
        assert rows.retry(connection, [1]) == 1
        assert rows.retry(connection, None) == 3
        waiting = [(row.id, row.payload) for row in rows.WAITING.oldest(connection, 10, 1_000, passed_over=())]
        assert waiting == [(-3, b"1"), (-2, b"4"), (-1, b"3"), (1, b"5"), (2, b"2")]
    drain(outboxed.relay())
    assert outboxed.world.messages() == [1, 2, 3, 4, 5]


def test_ids_that_begin_again_while_messages_are_deferred(outboxed: OutboxWorld) -> None:
    """They go before the new ones."""
    for numbers in ((1, 2, 3), (4, 5), (6,)):
        outboxed.work(*numbers)
        with outboxed.engine.connect() as connection:
            ids = [row.id for row in rows.WAITING.oldest(connection, 10, 1_000, passed_over=())]
        outboxed.world.deciding.execute(f"UPDATE metaq_outbox SET id = id - {min(ids) - 1}")
        with outboxed.engine.connect() as connection:
            waiting = rows.WAITING.oldest(connection, 10, 1_000, passed_over=())
            rows.defer(connection, [(row, Partition(0, 0)) for row in waiting])
            connection.commit()
    with outboxed.engine.connect() as connection:
        found = rows.oldest_deferred(connection, 10, 1_000, PassedOver(), [0])
        assert [row.payload for row in found] == [b"1", b"2", b"3", b"4", b"5", b"6"]


def _waiting(on: OutboxWorld) -> list[tuple[int, bytes]]:
    with on.engine.connect() as connection:
        return [(row.id, row.payload) for row in rows.WAITING.oldest(connection, 10, 1_000, passed_over=())]


def _add(on: OutboxWorld, number: int, row_id: int) -> None:
    on.work(number)
    on.world.deciding.execute(f"UPDATE metaq_outbox SET id = {row_id} WHERE attribute = '{number}'")


def _defer_all(on: OutboxWorld) -> None:
    with on.engine.connect() as connection:
        waiting = rows.WAITING.oldest(connection, 10, 1_000, passed_over=())
        rows.defer(connection, [(row, Partition(7, 0)) for row in waiting])
        connection.commit()


def test_ids_that_begin_again_in_a_batch_that_has_some_below_0(outboxed: OutboxWorld) -> None:
    """One that was set aside got such an id, and is deferred with others."""
    _add(outboxed, 1, 10)
    _defer_all(outboxed)
    _add(outboxed, 2, -1)
    _add(outboxed, 3, 10)
    _defer_all(outboxed)
    with outboxed.engine.connect() as connection:
        found = rows.oldest_deferred(connection, 10, 1_000, PassedOver(), [7])
    assert [row.payload for row in found] == [b"1", b"2", b"3"]


def test_a_release_after_ids_began_again(outboxed: OutboxWorld) -> None:
    """It puts back those with ids below 0, and before messages that have their ids by now."""
    for number, row_id in ((1, -4), (2, -3), (3, 1), (4, 2)):
        _add(outboxed, number, row_id)
    _defer_all(outboxed)
    _add(outboxed, 5, 1)
    _add(outboxed, 6, 2)
    with outboxed.engine.connect() as connection:
        assert rows.release(connection, 7) == (0, 4)
        assert contents.deferred_counts(connection) == {}
    assert [payload for _, payload in _waiting(outboxed)] == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_the_relay_s_row_is_made_again(outboxed: OutboxWorld) -> None:
    """By the command that relays name: it knows for which brokers messages are deferred."""
    outboxed.work(1, 2)
    with outboxed.engine.connect() as connection:
        waiting = rows.WAITING.oldest(connection, 10, 1_000, passed_over=())
        rows.defer(connection, [(row, Partition(0, 0)) for row in waiting])
        connection.commit()
    outboxed.world.deciding.execute("DELETE FROM metaq_outbox_relay")
    relay = outboxed.relay()
    drain(relay)
    assert "metaq_outbox_relay is empty; run `metaq outbox init" in str(relay.trouble)
    with outboxed.engine.connect() as connection:
        tables.create(connection)
    drain(relay)
    outboxed.world.check([1, 2])


KEPT_BADLY = {
    "may hide rows of {} from this role; ALTER TABLE {} DISABLE": (
        "ENABLE ROW LEVEL SECURITY",
        "DISABLE ROW LEVEL SECURITY",
    ),
    "{} is unlogged: a crash would empty it; ALTER TABLE {} SET LOGGED": ("SET UNLOGGED", "SET LOGGED"),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("reason", KEPT_BADLY)
def test_rows_that_are_hidden_or_would_be_lost(
    on_postgres: OutboxWorld, roles: dict[str, str], table: str, reason: str
) -> None:
    """Row-level security that is switched on for all tables of a schema: messages would wait without a word. Or a queue
    that somebody has made faster."""
    change, back = KEPT_BADLY[reason]
    on_postgres.work(1)
    on_postgres.world.deciding.execute(f"ALTER TABLE {table} {change}")
    with closing(Relay(on_postgres.world.client, roles["outbox_relay"])) as relay:
        for _ in range(3):
            assert not relay.run_pass()
            assert reason.format(table, table) in str(relay.trouble)
        on_postgres.world.deciding.execute(f"ALTER TABLE {table} {back}")
        drain(relay)
    on_postgres.world.check([1])
