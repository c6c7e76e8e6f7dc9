"""Errors beyond those of meta_client.coordinator.errors, by what the caller does next."""

from collections.abc import Sequence
from typing import Final

from meta_client.coordinator.errors import CannotEnlist, CoordinatorError, Unreachable
from meta_client.transactions.table import DATABASE

INIT: Final = "metaq txn init --database URL"


class NoDecisionTable(CannotEnlist):
    """The database has no decision table, or this role may not use it. Nothing was begun; the message names the command
    that creates it."""

    def __init__(self, database: str, why: str = "it has none") -> None:
        super().__init__(
            f"database {database} can't decide about messages: {why}; run `{INIT}` once, or its --sql in a migration"
        )


class CopiedTable(CannotEnlist):
    """The decision table was copied or moved here from another database or schema. Nothing was begun: two tables of one
    name would decide differently. The message says how to make this one the only one."""

    def __init__(self, database: str, home: str, here: str) -> None:
        super().__init__(
            f"the decision table of {database} was made elsewhere ({home}; this is {here}): if the original "
            f"may still be used, make this one a table of its own with `metaq txn init --copied --database URL`; if it "
            f"was moved here for good, `metaq txn init --moved --database URL`"
        )


class RowLocked(Unreachable):
    """A transaction that has not ended holds the row, or keeps others from writing it. Ask again."""


class RowGone(Unreachable):
    """The row was deleted while it was looked at: its transaction has ended at every broker. Ask a broker how."""


class OtherTable(Unreachable):
    """The connection reaches another decision table, whose rows say nothing about the transactions of this one: let
    connect= open the database of the transaction."""

    def __init__(self, table_id: str) -> None:
        super().__init__(
            DATABASE,
            f"it has another decision table now: {table_id}; let connect=, if given, reach the database of the "
            f"transaction's connection",
        )


class RestoredTable(Unreachable):
    """The decision table was restored to an earlier time, is a copy, or was emptied: a row that is not in it may have
    been there. The message says what to do first."""

    def __init__(self, reason: str) -> None:
        Exception.__init__(self, reason)  # the database did answer
        self.participant = DATABASE


class OutOfStep(CannotEnlist):
    """The connection's driver returns results of earlier queries, and was closed. Nothing was begun: open a new one."""

    def __init__(self) -> None:
        super().__init__(
            "the database connection gives answers to earlier questions, as after an exception that a signal's handler "
            "raised inside the driver: it is closed, open a new one"
        )


class NotConfirmed(CoordinatorError):
    """Rows and messages are committed, but *brokers* have not said so in the time that was given. Don't do the work
    again: the messages are visible there once a resolver has told them."""

    def __init__(self, gtrid: str, brokers: Sequence[int]) -> None:
        super().__init__(
            f"transaction {gtrid} is decided and will commit, but broker {', '.join(map(str, brokers))} has not "
            f"confirmed in time: a resolver tells it"
        )
        self.brokers = tuple(brokers)
