"""Sends into a transaction of the caller's, by each kind of connection; what is refused there."""

from contextlib import closing
from types import SimpleNamespace

import pg8000.native
import pytest
from django.db import connections
from django.db.transaction import atomic
from sqlalchemy import text
from sqlalchemy.orm import Session

from meta_client.errors import NoDatabase, NotInTransaction
from meta_client.protocol.errors import LocalProtocolError
from tests.fixtures.postgres import connect_plain
from tests.meta_client.outbox.conftest import OutboxWorld, drain
from tests.meta_client.transactions.django_shop import use


def test_what_no_broker_would_take_is_refused_at_once(outboxed: OutboxWorld) -> None:
    with closing(outboxed.world.deciding.connect()) as connection:
        with pytest.raises(LocalProtocolError, match="is longer than"):
            outboxed.outbox.send(connection, "orders", bytes(2 << 20), "a")
        with pytest.raises(LocalProtocolError, match="300 characters, an outbox takes 255"):
            outboxed.outbox.send(connection, "o" * 300, b"")
        with pytest.raises(LocalProtocolError, match=r"'a\\x00b' has a zero character, which databases refuse"):
            outboxed.outbox.send(connection, "orders", b"", "a\0b")
        with pytest.raises(TypeError, match="a payload is bytes"):
            outboxed.outbox.send(connection, "orders", "text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is no partition"):
            outboxed.outbox.send(connection, "orders", b"", partition="x")
        connection.commit()
    assert outboxed.status().waiting == 0


def test_a_connection_that_commits_by_itself_is_refused(on_postgres: OutboxWorld) -> None:
    with closing(on_postgres.world.deciding.connect()) as connection:
        connection.autocommit = True
        with pytest.raises(NotInTransaction):
            on_postgres.outbox.send(connection, "orders", b"")
        with connection.transaction():
            on_postgres.outbox.send(connection, "orders", b"1")
            with connection.transaction(force_rollback=True):
                on_postgres.outbox.send(connection, "orders", b"2")
    assert on_postgres.status().waiting == 1


def test_a_connection_without_cursors_is_refused(on_postgres: OutboxWorld) -> None:
    with (
        closing(connect_plain(SimpleNamespace(connect=pg8000.native.Connection), on_postgres.url)) as connection,
        pytest.raises(NoDatabase, match=r"pg8000\.native\.Connection is no PEP 249 connection"),
    ):
        on_postgres.outbox.send(connection, "orders", b"")


def test_a_session_of_sqlalchemy(on_postgres: OutboxWorld) -> None:
    with Session(on_postgres.engine) as session:
        session.execute(text("INSERT INTO numbers VALUES (1)"))
        on_postgres.outbox.send(session, "orders", b"1")
        session.commit()
    drain(on_postgres.relay())
    on_postgres.world.check([1])


def test_inside_django_s_atomic(outboxed: OutboxWorld) -> None:
    alias = use(outboxed.url.removeprefix("sqlite:///"))
    django = connections[alias]
    with atomic(using=alias):
        django.cursor().execute("INSERT INTO numbers VALUES (1)")
        outboxed.outbox.send(django.connection, "orders", b"1")
        with pytest.raises(LookupError), atomic(using=alias):  # noqa: PT012 - the block is what is tested
            outboxed.outbox.send(django.connection, "orders", b"2")
            raise LookupError
    django.close()
    drain(outboxed.relay())
    outboxed.world.check([1])
