"""Any database behind a plain PEP 249 connection: the caller's session, and the table over a connection of our own.

Uses SQL for everything, because drivers share no connection attribute. A savepoint marks the transaction that was
entered: whatever ends that transaction (an implicit commit, a rollback after a deadlock) also ends the savepoint. An
unknown error leaves the outcome of a COMMIT open.

A driver interrupted by a signal's exception between a query and its result takes every later result for the next
query's. So a connection must echo a token when a block begins, and again when it ends: from there on no such exception
is swallowed.
"""

import functools
import secrets
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Protocol

from meta_client.coordinator.errors import CannotEnlist
from meta_client.protocol.errors import one_line
from meta_client.transactions.deciding import AUTOCOMMIT, ENDED, FAILED, UNDONE, DecidingSession, Says
from meta_client.transactions.dialects import Dialect
from meta_client.transactions.errors import OutOfStep
from meta_client.transactions.statements import SqlTable, made_by, reaching
from meta_client.transactions.table import IDENTITY, Opener, TableIdentity

_SAVEPOINT: Final = "metaq_block"

Ask = Callable[[str], Sequence[Sequence[Any]]]  # the rows of a query
Connect = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Known:
    """Facts read once per connection."""

    identity: TableIdentity
    prefix: str  # of its name, a quoted schema with a point: the search path may change; for statements with values
    schema: str


@dataclass(frozen=True, slots=True)
class DriverState:
    """Facts read at each use."""

    session: object = None  # changes when the driver reconnects
    began: tuple[object, ...] = ()  # {began} of Dialect.is_young, taken before PREPARE
    may_commit_alone: bool = True  # autocommit, unless a transaction was begun


class Kind(Protocol):
    """A kind of database."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def own(self) -> Sequence[str]:
        """Statements that set up a connection of our own: autocommit, and what the dialect's `opening` does not set:
        durable, with short lock waits."""

    def state(self, ask: Ask) -> DriverState:
        """Read the connection's state in one SELECT. Raises CannotEnlist if its commits are no decisions."""

    def look_up(self, ask: Ask, schema: str | None = None) -> Known:
        """Find the decision table, in *schema* or where the connection looks. Raises CannotEnlist (NoDecisionTable,
        CopiedTable)."""

    @property
    def brokers(self) -> str:
        """Value of the row's brokers, from %s."""

    def holds(self, ask: Ask, prefix: str, gtrid: str) -> bool:
        """Return whether the row of *gtrid* is there. Its transaction has not ended."""

    def says(self, code: object) -> Says | None:
        """Return the meaning of an error code of the database."""

    def has_rolled_back(self, code: object) -> bool:
        """True if a COMMIT that raised *code* is rolled back for certain."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A PEP 249 module together with one kind of database."""

    kind: Kind
    error: type[Exception]
    closed: type[Exception]  # those raised for a closed connection: InterfaceError
    mark: str  # parameter marker
    code: Callable[[Exception], object]  # the database's error code; None for the driver's own errors
    cursor: Callable[[Any], Any]  # a cursor with sequences as rows, whatever the connection's default
    is_autocommit: Callable[[Any], bool]  # then commit() and rollback() send nothing
    make_own: Callable[[Any], None]  # enable autocommit
    abandon: Callable[[Any], None]  # close the connection so that the owner's close() does not raise
    connect_as: Callable[[Any, Known], Connect | None]  # makes equal connections, if the driver keeps its parameters
    is_always_in_step: bool = False  # no exception comes between a query and its result: libpq

    def query(self, connection: Any, statement: str) -> Sequence[Sequence[Any]]:
        with closing(self.cursor(connection)) as cursor:
            cursor.execute(statement)
            if cursor.description is None:  # out of step: the result of a statement that has no rows
                return ()
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows


_Remembered = tuple[object, Known, Connect]  # DriverState.session, and what makes another connection
_remembered: weakref.WeakKeyDictionary[object, _Remembered] = weakref.WeakKeyDictionary()  # by connection


class DbapiSession(DecidingSession):
    """One connection at any isolation level, with or without autocommit, in or outside a transaction."""

    undo_failures = (Exception,)  # a driver that is out of step may trip over itself

    def __init__(
        self, connection: Any, driver: Driver, connect: Connect | None = None, *, is_managed: bool = False
    ) -> None:
        """*connect* makes another connection where the parameters of this one cannot. *is_managed*: a framework calls
        the connection's commit() and rollback()."""
        self._connection = connection
        self._driver = driver
        self.failures = (driver.error,)
        self._connect = connect
        self._is_managed = is_managed
        self._by_sql = False  # commit by a statement
        self._state = DriverState()
        self._known: Known
        self._another: Connect

    def driver_connection(self) -> object:
        return self._connection

    def _enter(self) -> TableIdentity:
        driver, kind = self._driver, self._driver.kind
        try:
            self._by_sql = not self._is_managed and driver.is_autocommit(self._connection)
            self._state = kind.state(self._ask_in_step)
        except driver.closed as error:
            raise CannotEnlist("the database connection is closed: open a new one") from error
        found = _remembered.get(self._connection)
        if found is None or found[0] != self._state.session:
            known = kind.look_up(functools.partial(driver.query, self._connection))
            found = self._state.session, known, driver.connect_as(self._connection, known) or _cannot_connect
            _remembered[self._connection] = found
        self._known, self._another = found[1], self._connect or found[2]
        if self._another is _cannot_connect:
            _cannot_connect()
        may_commit_alone = self._state.may_commit_alone and not self._is_in_transaction()
        if self._is_managed and (may_commit_alone or driver.is_autocommit(self._connection)):
            raise CannotEnlist(AUTOCOMMIT)
        if may_commit_alone:
            self._has_begun = True
            self._do("START TRANSACTION")
        self._do(f"SAVEPOINT {_SAVEPOINT}")
        return self._known.identity

    def _ask_in_step(self, select: str) -> Sequence[Sequence[Any]]:
        """Return the rows of *select*, "SELECT ...". Raises OutOfStep if they answer another query."""
        token = secrets.token_hex(8)
        rows = self._driver.query(self._connection, f"SELECT '{token}', {select.removeprefix('SELECT')}")
        if not rows or rows[0][0] != token:
            self._driver.abandon(self._connection)
            raise OutOfStep
        return [row[1:] for row in rows]

    def _is_in_transaction(self) -> bool:
        try:
            self._do(f"SAVEPOINT {_SAVEPOINT}")
            self._do(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except self._driver.error as error:
            if self._says(error) is not Says.NOT_THE_TRANSACTION:
                raise
            return False
        return True

    def problem(self) -> str | None:
        return self._explained(self._renew)

    def lost(self) -> str | None:
        return self.problem() if self._gtrid is None else self._explained(self._look)

    def _renew(self) -> str | None:
        if not self._driver.is_always_in_step:
            self._ask_in_step("SELECT 1")
        self._do(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        self._do(f"SAVEPOINT {_SAVEPOINT}")
        return None

    def _look(self) -> str | None:
        self._do(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        assert self._gtrid is not None
        return None if self._driver.kind.holds(self._ask_in_step, self._prefix, self._gtrid) else UNDONE

    @property
    def _prefix(self) -> str:
        """Return the prefix for a statement without values."""
        return self._known.prefix.replace("%%", "%")

    def _explained(self, work: Callable[[], str | None]) -> str | None:
        """Return what *work* says of the transaction, or the reason why it failed."""
        try:
            return work()
        except OutOfStep as error:
            return str(error)
        except self._driver.error as error:
            match self._says(error):
                case Says.NOT_THE_TRANSACTION:
                    return ENDED
                case Says.FAILED_BEFORE:
                    return FAILED
            self._driver.abandon(self._connection)  # this may be an earlier question's answer: implies rollback
            return f"the connection is lost or not to be trusted, and is closed: {one_line(error)}"

    def _insert(self, gtrid: str, brokers: str) -> int:
        known, mark, kind = self._known, self._driver.mark, self._driver.kind
        table_id = known.identity.name.table_id
        statement = kind.dialect.insert_decision(known.prefix, table_id, mark, mark, kind.brokers, began=mark)
        return self._do(statement, (gtrid, *self._state.began, known.identity.age_s_max, brokers))

    def _is_made_again(self) -> bool:
        if self._driver.kind.dialect.inserts_by_id:
            return False
        found = self._driver.query(self._connection, f"SELECT table_id FROM {self._prefix}{IDENTITY}")  # noqa: S608
        return [str(row[0]) for row in found] != [self._known.identity.name.table_id]

    def _forget(self) -> None:
        _remembered.clear()

    def commit(self) -> None:
        self._check_row()
        if self._by_sql:
            self._do("COMMIT")
        else:
            self._connection.commit()

    def _has_rolled_back(self, error: Exception) -> bool:
        return self._driver.kind.has_rolled_back(self._driver.code(error))

    def _roll_back(self) -> None:
        if self._by_sql:
            self._do("ROLLBACK")
        else:
            self._connection.rollback()

    def _abandon(self) -> None:
        self._driver.abandon(self._connection)

    def opener(self) -> Opener:
        return functools.partial(open_over, self._driver, self._another, self._known.schema)

    def _do(self, statement: str, values: tuple[object, ...] = ()) -> int:
        """Execute a statement; return the count of changed rows."""
        with closing(self._driver.cursor(self._connection)) as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)

    def _says(self, error: Exception) -> Says | None:
        code = self._driver.code(error)
        return Says.NO_ANSWER if code is None else self._driver.kind.says(code)


def _cannot_connect() -> Any:
    raise CannotEnlist(
        "the database connection does not tell how it was made, and a resolver needs another one like it: "
        "give client.transaction(connection, connect=make_one)"
    )


def open_over(driver: Driver, connect: Connect, schema: str | None = None) -> SqlTable:
    """Open the decision table over a connection from *connect*, in *schema* or where that looks. Raises Unreachable,
    NoDecisionTable, CopiedTable, CannotEnlist."""
    connection = made_by(connect)
    ask, looking = functools.partial(driver.query, connection), driver.kind.dialect.looking
    with reaching(driver.error, undo=connection.close):
        driver.make_own(connection)
        with closing(driver.cursor(connection)) as cursor:
            for statement in (*driver.kind.own, *([looking] if looking else ())):
                cursor.execute(statement)
            driver.kind.state(ask)
            known = driver.kind.look_up(ask, schema)
            if looking:
                cursor.execute("COMMIT")
    statements = driver.kind.dialect.statements(known.prefix, driver.mark)

    def is_lock(error: Exception) -> bool:
        return driver.kind.says(driver.code(error)) is Says.AGAIN

    return SqlTable(connection, known.identity, statements, (driver.error,), is_lock)
