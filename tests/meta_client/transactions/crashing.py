"""A program that works on one transaction and kills itself, with SIGKILL, at a given step. Run by test_crashes."""

import asyncio
import importlib
import os
import signal
from typing import Any

import psycopg
import pymysql
import sqlalchemy
from django.db import connections
from django.db.transaction import atomic
from sqlalchemy.orm import Session

from meta_client import Client, aio
from meta_client.transactions import CommitStep, TransactionConfig
from meta_client.transactions.frameworks.django import send_on_commit
from meta_client.transactions.mysql import parameters
from tests.meta_client.aio.transactions.ways import opened
from tests.meta_client.transactions.django_shop import use


def connect(driver: str, place: str) -> Any:
    """A connection of *driver*, or an SQLAlchemy session over it."""
    driver, _, framework = driver.partition("+")
    if framework:
        return Session(engine_of(place))
    if driver == "pymysql":
        return pymysql.connect(**parameters(place))
    return importlib.import_module(driver).connect(place)


def engine_of(place: str, **options: Any) -> sqlalchemy.Engine:
    """An engine over PostgreSQL, where *place* is in libpq's words, over MariaDB, MySQL or an SQLite file."""
    if place.startswith(("mariadb://", "mysql://")):
        return sqlalchemy.create_engine(place.replace("://", "+pymysql://", 1), **options)
    if "=" not in place:
        return sqlalchemy.create_engine(f"sqlite:///{place.removeprefix('sqlite:///')}", **options)
    query = psycopg.conninfo.conninfo_to_dict(place)
    url = sqlalchemy.URL.create("postgresql+psycopg", query={name: str(value) for name, value in query.items()})
    return sqlalchemy.create_engine(url, **options)


async def work_in_a_task(
    way: str, place: str, zookeeper: str, config: TransactionConfig, number: str, *, dies: bool
) -> None:
    """Do as main, over the asynchronous *way*."""
    async with (
        opened(way, place) as one,
        aio.Client(zookeeper, transactions=config) as client,
        client.transaction(one.connection) as transaction,
    ):
        await one.execute(f"INSERT INTO numbers VALUES ({number})")
        await (await transaction.send("orders", number.encode()))
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


def main(driver: str, place: str, zookeeper: str, number: str, step_name: str) -> None:
    def observe(step: CommitStep, gtrid: str) -> None:
        if step.name == step_name:
            os.kill(os.getpid(), signal.SIGKILL)

    config = TransactionConfig(observer=observe)
    if driver.endswith("+tasks"):
        way = driver.removesuffix("+tasks")
        asyncio.run(work_in_a_task(way, place, zookeeper, config, number, dies=step_name == "BODY"))
    if driver.endswith("+django"):
        alias = use(place)
        with Client(zookeeper, transactions=config) as client, atomic(using=alias):
            connections[alias].cursor().execute(f"INSERT INTO numbers VALUES ({number})")
            send_on_commit(client, "orders", number.encode(), using=alias)
            if step_name == "BODY":
                os.kill(os.getpid(), signal.SIGKILL)
    connection, insert = connect(driver, place), f"INSERT INTO numbers VALUES ({number})"
    is_session = isinstance(connection, Session)
    with Client(zookeeper, transactions=config) as client, client.transaction(connection) as transaction:
        (connection if is_session else connection.cursor()).execute(sqlalchemy.text(insert) if is_session else insert)
        transaction.send("orders", number.encode()).result()
        if step_name == "BODY":
            os.kill(os.getpid(), signal.SIGKILL)
