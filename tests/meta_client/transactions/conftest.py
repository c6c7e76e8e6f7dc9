"""A database that decides: PostgreSQL and SQLite, each with its decision table and a table of numbers."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from meta_client.transactions.databases import init, table_at
from meta_client.transactions.table import KEEP_S, DecisionTable, Identity
from tests.fixtures.postgres import Database

NUMBERS = "CREATE TABLE numbers (n int PRIMARY KEY)"


@dataclass
class Deciding:
    """A database with a decision table. *connect* is a caller's connection, of the driver."""

    url: str
    identity: Identity
    connect: Callable[[], Any]
    failures: type[Exception]
    mark: str

    def rows(self) -> dict[str, str]:
        """Every row of the decision table, by gtrid."""
        return dict(self.query("SELECT gtrid, outcome FROM metaq_decision"))

    def numbers(self) -> list[int]:
        return [n for (n,) in self.query("SELECT n FROM numbers ORDER BY n")]

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return [tuple(row) for row in connection.execute(text).fetchall()]

    def execute(self, text: str) -> None:
        with closing(self.connect()) as connection:
            connection.execute(text)
            connection.commit()

    def table(self) -> DecisionTable:
        return table_at(self.url)


def make_postgres(database: Database) -> Deciding:
    url = conninfo_url(database.dsn)
    deciding = Deciding(url, init(url, KEEP_S), lambda: psycopg.connect(database.dsn), psycopg.Error, "%s")
    deciding.execute(NUMBERS)
    return deciding


def conninfo_url(dsn: str) -> str:
    """libpq's own form will do."""
    return dsn


def make_sqlite(directory: Path) -> Deciding:
    path = directory / "shop.db"
    url = f"sqlite:///{path}"
    identity = init(url, KEEP_S)
    deciding = Deciding(url, identity, lambda: sqlite3.connect(path, timeout=1), sqlite3.Error, "?")
    deciding.execute(NUMBERS)
    return deciding


@pytest.fixture(params=["postgres", "sqlite"])
def deciding(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deciding]:
    if request.param == "sqlite":
        yield make_sqlite(tmp_path)
    else:
        yield make_postgres(request.getfixturevalue("database"))
