"""A program that works on one transaction and kills itself, with SIGKILL, at a given step. Run by test_crashes."""

import importlib
import os
import signal
import sys
from typing import Any

import psycopg
import sqlalchemy
from django.db import connections
from django.db.transaction import atomic
from sqlalchemy.orm import Session

from meta_client import Client
from meta_client.transactions import Step, TransactionConfig
from meta_client.transactions.django import send_on_commit
from tests.meta_client.transactions.django_shop import use


def connect(driver: str, place: str) -> Any:
    """A connection of *driver*, or an SQLAlchemy session over it."""
    driver, _, framework = driver.partition("+")
    if not framework:
        return importlib.import_module(driver).connect(place)
    return Session(engine_of(place))


def engine_of(place: str, **options: Any) -> sqlalchemy.Engine:
    """An engine over PostgreSQL, where *place* says so in libpq's words, or over an SQLite file."""
    if "=" not in place:
        return sqlalchemy.create_engine(f"sqlite:///{place.removeprefix('sqlite:///')}", **options)
    query = psycopg.conninfo.conninfo_to_dict(place)
    url = sqlalchemy.URL.create("postgresql+psycopg", query={name: str(value) for name, value in query.items()})
    return sqlalchemy.create_engine(url, **options)


def main(driver: str, place: str, zookeeper: str, number: str, step_name: str) -> None:
    def observe(step: Step, gtrid: str) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    config = TransactionConfig(observer=observe)
    if driver.endswith("+django"):
        alias = use(place)
        with Client(zookeeper, transactions=config) as client, atomic(using=alias):
            connections[alias].cursor().execute(f"INSERT INTO numbers VALUES ({number})")
            send_on_commit(client, "orders", number.encode(), using=alias)
            if step_name == "BODY":
                os.kill(os.getpid(), signal.SIGKILL)
    connection, insert = connect(driver, place), f"INSERT INTO numbers VALUES ({number})"
    with Client(zookeeper, transactions=config) as client, client.transaction(connection) as transaction:
        connection.execute(sqlalchemy.text(insert) if isinstance(connection, Session) else insert)
        transaction.send("orders", number.encode()).result()
        if step_name == "BODY":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
