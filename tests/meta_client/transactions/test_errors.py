"""Mistakes of a caller: each says what was wrong and what to do instead, and leaves everything usable."""

from contextlib import closing
from typing import Any

import asyncpg
import pytest

from meta_client.coordinator.errors import CannotEnlist, PrepareFailed
from meta_client.errors import TransactionMisuse
from meta_client.protocol.answers import BranchStatus
from meta_client.transactions.deciding import ENDED, reason
from meta_client.transactions.names import TableName, xid_of
from meta_client.transactions.postgres_table import says_of
from meta_client.transactions.table import TableIdentity
from tests.fixtures.replicas import wait_until
from tests.meta_client.transactions.conftest import World


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (("orders", "1"), "a payload is bytes, not str: encode it"),
        (("orders", 1), "a payload is bytes, not int: encode it"),
        (("orders", None), "a payload is bytes, not NoneType: encode it"),
        (("orders", b"1", b"paid"), "an attribute is a str, not bytes: decode it"),
    ],
)
def test_a_message_of_the_wrong_type(world: World, message: tuple[Any, ...], said: str) -> None:
    with closing(world.deciding.connect()) as connection:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(TypeError, match=said),
            world.client.transaction(connection) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send(*message)
        with pytest.raises(TypeError, match=said):
            world.client.producer().send(*message)
        with pytest.raises(TypeError, match=said):
            world.client.producer().send_async(*message)
        world.work(2, connection=connection)
    world.check([2])


def test_a_bytearray_is_bytes_as_it_was_when_it_was_sent(world: World) -> None:
    payload: Any = bytearray(b"1")
    with closing(world.deciding.connect()) as connection, world.client.transaction(connection) as transaction:
        connection.execute("INSERT INTO numbers VALUES (1)")
        transaction.send("orders", payload)
        payload[:] = b"9"
    world.check([1])


@pytest.mark.parametrize("connection", [None, "postgresql:///shop", 5, object()])
def test_what_is_no_connection(world: World, connection: object) -> None:
    said = f"a builtins.{type(connection).__name__} can't decide about messages: give a connection of psycopg 3"
    with pytest.raises(CannotEnlist, match=said), world.client.transaction(connection):
        pytest.fail("the block must not be entered")


def test_a_transaction_is_used_once(world: World) -> None:
    with closing(world.deciding.connect()) as connection:
        with pytest.raises(TransactionMisuse, match=r"`with client.transaction\(...\) as transaction` opens it"):
            world.client.transaction(connection).send("orders", b"0")
        with world.client.transaction(connection) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        with pytest.raises(TransactionMisuse, match="is over"):
            transaction.send("orders", b"2")
        with pytest.raises(TransactionMisuse, match="used once: make another one"), transaction:
            pytest.fail("the block must not be entered")
    world.check([1])


def test_a_branch_that_timed_out(world: World) -> None:
    """The broker rolled it back, for its client had gone quiet: that is told, with the time and how to change it."""
    with (
        world.open_client(timeout_s=3.0) as client,
        closing(world.deciding.connect()) as connection,
    ):
        looking = client.producer(world.deciding.identity.name.qualifier)
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(
                PrepareFailed, match=r"not prepared within 3 s .*TransactionConfig.timeout_s.*do the work again"
            ),
            client.transaction(connection) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1").result(60)
            branch = xid_of(transaction.gtrid, 0)
            wait_until(lambda: looking.tpc_status(branch, 0) is BranchStatus.ROLLED_BACK, "it is rolled back")
        world.work(2, connection=connection)
    world.check([2])


def test_the_reason_is_told_by_codes_in_whatever_language_the_server_speaks() -> None:
    identity = TableIdentity(TableName("a" * 32), keep_s=7200)
    ended, wrapped = asyncpg.NotNullViolationError("une valeur NULL viole la contrainte"), Exception("the adapter's")
    ended.column_name = "brokers"
    wrapped.sqlstate, wrapped.__cause__ = ended.sqlstate, ended  # type: ignore[attr-defined]
    assert [reason(says_of(error), error, identity) for error in (ended, wrapped)] == [ENDED, ENDED]
    ended.column_name = "outcome"
    assert (
        reason(says_of(ended), ended, identity)
        == "its database transaction is older than 3600 s, and must not decide any more"
    )
