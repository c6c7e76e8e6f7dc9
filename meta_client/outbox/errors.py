"""Errors of an outbox, beside those of transactions and of its database, by what the caller does next."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from meta_client.coordinator.errors import CannotEnlist, Unreachable
from meta_client.errors import SendRefused
from meta_client.protocol.errors import MetaError, one_line
from meta_client.sql.core import exc
from meta_client.transactions.table import DATABASE

INIT: Final = "metaq outbox init --database URL"
ADOPT: Final = "metaq outbox adopt --database URL"
OTHER: Final = "its tables are those of another version: alter them to what `metaq outbox init --sql` prints"
_COLUMN: Final = re.compile("no such column|Unknown column|column .* does not exist")


class NoOutbox(CannotEnlist):
    """The database has no outbox, or one of another version, or this role may not use it. The message names the command
    to run."""

    def __init__(self, why: str, remedy: str = f"run `{INIT}` once") -> None:
        super().__init__(f"the database has no outbox that can be used: {why}; {remedy}")


@contextmanager
def outbox_errors() -> Iterator[None]:
    """Raise a database's errors as NoOutbox or Unreachable, in one line: the statement and its parameters follow."""
    try:
        yield
    except exc.DBAPIError as error:
        reason = one_line(error.orig or error)
        if _COLUMN.search(reason):
            raise NoOutbox(reason, OTHER) from error
        if isinstance(error, exc.ProgrammingError) or reason.startswith("no such table"):
            raise NoOutbox(reason) from error
        raise Unreachable(DATABASE, reason) from error


class DamagedRow(NoOutbox):
    """The row that relays lock holds what no relay wrote. Nothing was moved: have brokers end what `metaq txn list`
    shows, then set its column `state` to NULL; with rows in metaq_outbox_deferred, to
    `{"deferred": [BROKER, ...]}`, which names each `broker_id` there."""

    def __init__(self, why: str) -> None:
        super().__init__(f"column state of metaq_outbox_relay is damaged ({why})")


class NotAdopted(NoOutbox):
    """Another decision table than the present one decided the last batch: both were dropped and made again, or this is
    a copy. Batches before are committed, and nothing more is moved until an operator says that it may be."""

    def __init__(self, decided: str, here: str) -> None:
        super().__init__(
            f"table {decided} decided its last batch, and {here} decides now: its decision tables were dropped and "
            f"made again, or it is a copy, where messages wait that the original moves",
            f"delete rows whose messages are moved, then run `{ADOPT}`",
        )


class RowsChanged(MetaError):
    """Another program than a relay changed rows while they were moved. Nothing was moved, and relays try again: leave
    rows to them."""


def refusal_in(error: BaseException | None) -> SendRefused | None:
    """Return the broker's refusal of a message that *error* comes from; None if it has another cause."""
    while error is not None and not isinstance(error, SendRefused):
        error = error.__cause__
    return error
