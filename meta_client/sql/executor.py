"""Executes statements of SQLAlchemy Core on one connection."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from meta_client.sql.core import Connection, Executable, exc


class Executor(ABC):
    """One connection, in its current transaction. Raises the database's errors."""

    def __init__(self, connection: Any, error: type[Exception], *, quote: bool | None = None) -> None:
        """*error*: base of the database's errors. *quote*: of names in statements for it, see Column."""
        self.connection = connection
        self.error = error
        self.quote = quote

    @abstractmethod
    def execute(self, statement: Executable, values: Mapping[str, object]) -> int:
        """Execute *statement*, and return how many rows it changed; -1 if the driver does not know."""

    @abstractmethod
    def scalar(self, statement: Executable, values: Mapping[str, object]) -> object:
        """Return the only value that *statement* finds; None without a row."""

    def create(self, probe: Executable, statement: Executable) -> None:
        """Execute *statement*, which makes a table, unless *probe* finds it. Commits or rolls back: for a connection of
        our own."""
        try:
            self.execute(probe, {})
        except self.error:
            self.connection.rollback()
        else:
            return  # it exists: the user may lack the right to create tables
        try:
            self.execute(statement, {})
            self.connection.commit()
        except self.error:
            self.connection.rollback()
            self.execute(probe, {})  # another process made it meanwhile, or this raises the cause


class SqlAlchemyExecutor(Executor):
    """Through a connection of SQLAlchemy."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, exc.DBAPIError)

    def execute(self, statement: Executable, values: Mapping[str, object]) -> int:
        return int(self.connection.execute(statement, values).rowcount)

    def scalar(self, statement: Executable, values: Mapping[str, object]) -> object:
        found: object = self.connection.scalar(statement, values)
        return found
