"""A service of many threads that writes rows and messages, until it is killed. Its transactions are numbered by lives.

Some requests fail in the middle, some take their time between PREPARE and COMMIT, some lose their patience.
"""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping

import psycopg
import sqlalchemy
from django.db import Error as DjangoError
from django.db import connections, transaction
from sqlalchemy.orm import Session

from meta_client import Client, SendFailed, TransactionConfig
from meta_client.coordinator import CoordinatorError
from meta_client.transactions import Step, Transaction
from meta_client.transactions.django import send_on_commit
from tests.meta_client.transactions.crashing import engine_of
from tests.meta_client.transactions.django_shop import use

THREADS = 8
BASE = 1_000_000  # numbers of a life; of a thread in it, a hundredth


Write = Callable[[Client, int, random.Random], None]


class _Cancelled(Exception):
    pass


def main(dsn: str, zookeeper: str, life: str, way: str) -> None:
    chance = random.Random(int(life))

    def observe(step: Step, gtrid: str) -> None:
        if step is Step.PREPARED and chance.random() < 0.02:
            time.sleep(chance.uniform(0.0, 1.5))  # resolvers look after half a second
        if step in (Step.PREPARED, Step.RECORDED) and chance.random() < 0.02:
            raise _Cancelled

    write = WAYS[way](dsn)
    config = TransactionConfig(observer=observe, age_s=0.5, interval_s=0.2)
    with Client(zookeeper, transactions=config) as client:
        threads = [
            threading.Thread(target=work, args=(client, write, int(life) * BASE + number * BASE // 100), daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        print("works", flush=True)
        for thread in threads:
            thread.join()


def work(client: Client, write: Write, first: int) -> None:
    chance, number = random.Random(first), first
    while True:
        number += 1
        try:
            write(client, number, chance)
        except _Cancelled:
            continue
        except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError, DjangoError, CoordinatorError, SendFailed):
            time.sleep(0.05)  # somebody is down


def send(open_one: Transaction, number: int, chance: random.Random) -> None:
    open_one.send("orders", str(number).encode())
    if number % 3 == 0:
        open_one.send("bills", str(number).encode())
    if chance.random() < 0.05:
        raise _Cancelled


def with_psycopg(dsn: str) -> Write:
    """A connection for each thread."""
    own = threading.local()

    def write(client: Client, number: int, chance: random.Random) -> None:
        if not hasattr(own, "connection") or own.connection.closed:
            own.connection = psycopg.connect(dsn, connect_timeout=5)
        with client.transaction(own.connection, wait=chance.random() < 0.2) as open_one:
            own.connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
            send(open_one, number, chance)

    return write


def with_sqlalchemy(dsn: str) -> Write:
    """A session for each transaction, and fewer connections than threads."""
    engine = engine_of(dsn, pool_size=THREADS - 2, max_overflow=0)

    def write(client: Client, number: int, chance: random.Random) -> None:
        with Session(engine) as session:
            session.execute(sqlalchemy.text("SELECT 1"))
            with client.transaction(session, wait=chance.random() < 0.2) as open_one:
                session.execute(sqlalchemy.text(f"INSERT INTO numbers VALUES ({number})"))
                send(open_one, number, chance)

    return write


def with_django(dsn: str) -> Write:
    """An atomic block, and often a failed one inside."""
    alias = use(dsn)

    def write(client: Client, number: int, chance: random.Random) -> None:
        with transaction.atomic(using=alias):
            connections[alias].cursor().execute("INSERT INTO numbers VALUES (%s)", (number,))
            if chance.random() < 0.2:
                with contextlib.suppress(_Cancelled), transaction.atomic(using=alias):
                    send_on_commit(client, "orders", b"-1", using=alias)
                    raise _Cancelled
            send_on_commit(client, "orders", str(number).encode(), using=alias)
            if number % 3 == 0:
                send_on_commit(client, "bills", str(number).encode(), using=alias)
            if chance.random() < 0.05:
                raise _Cancelled

    return write


WAYS: Mapping[str, Callable[[str], Write]] = {
    "psycopg": with_psycopg,
    "sqlalchemy": with_sqlalchemy,
    "django": with_django,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
