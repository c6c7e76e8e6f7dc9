"""Exactly once in the database: a batch that comes again, in part, or to two owners at once, counts once."""

import contextlib
import threading
from decimal import Decimal

import msgspec
import psycopg
import pytest

from meta_broker.demo.consumers import Summing
from meta_broker.demo.orders import LINES_TOPIC, LineMessage, encode
from meta_broker.demo.schema import TABLES
from meta_client import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores.errors import TakenMeanwhile
from tests.fixtures.postgres import Database
from zk.tree.nodes import Partition

PARTITION = Partition(0, 3)


@pytest.fixture(autouse=True)
def tables(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute(TABLES)
        connection.execute("INSERT INTO invoices VALUES ('1', now(), NULL, 'France')")
    assert stored(database) is None


def stored(database: Database) -> int | None:
    return Summing(database.dsn).offsets.load(LINES_TOPIC, PARTITION)


def batch(first: int, last: int) -> Batch:
    """Messages number *first* to *last*, ten bytes each, a pound each; odd ones are from France."""
    messages = [
        ReceivedMessage(
            LINES_TOPIC,
            PARTITION,
            number * 10,
            number,
            0,
            "1",
            encode(LineMessage("1", number, "France" if number % 2 else "EIRE", "X", 1, Decimal(1))),
            number * 10 + 10,
        )
        for number in range(first, last)
    ]
    return Batch(LINES_TOPIC, PARTITION, first * 10, last * 10, messages)


def take(database: Database, *batches: Batch) -> None:
    for one in batches:
        Summing(database.dsn).on_batch(one)


def sums(database: Database) -> list[tuple[str, int, Decimal]]:
    with psycopg.connect(database.dsn) as connection:
        return [(c, n, a) for c, n, a in connection.execute("SELECT * FROM revenue ORDER BY country")]


def test_batches_add_up_and_move_the_position(database: Database) -> None:
    take(database, batch(0, 3), batch(3, 4))
    assert sums(database) == [("EIRE", 2, Decimal(2)), ("France", 2, Decimal(2))]
    assert stored(database) == 40


def test_a_batch_that_comes_again_counts_once(database: Database) -> None:
    take(database, batch(0, 4), batch(0, 4), batch(0, 2))
    assert database.value("SELECT sum(lines) FROM revenue") == 4


def test_a_batch_of_which_a_part_was_counted(database: Database) -> None:
    take(database, batch(0, 4), batch(2, 8))
    assert database.value("SELECT sum(lines) FROM revenue") == 8
    assert stored(database) == 80


def test_what_fails_counts_nothing(database: Database) -> None:
    broken = batch(0, 4)
    broken.messages[3] = broken.messages[3]._replace(payload=b"not ours")
    with pytest.raises(msgspec.DecodeError):
        take(database, broken)
    assert sums(database) == []
    assert stored(database) is None


def test_two_owners_at_once(database: Database) -> None:
    def own() -> None:
        for first in range(0, 100, 5):
            taken = False
            while not taken:  # an error brings the batch again
                with contextlib.suppress(TakenMeanwhile, psycopg.errors.UniqueViolation):
                    take(database, batch(first, first + 5))
                    taken = True

    owners = [threading.Thread(target=own) for _ in range(4)]
    for owner in owners:
        owner.start()
    for owner in owners:
        owner.join()
    assert database.value("SELECT sum(lines) FROM revenue") == 100
    assert database.value("SELECT sum(amount) FROM revenue") == 100


def test_a_message_before_its_row_is_noticed(database: Database) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute("DELETE FROM invoices")
    take(database, batch(0, 4))
    assert database.value("SELECT string_agg(invoice, ',') FROM orphans") == "1"
