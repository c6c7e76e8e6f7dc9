"""Any database behind a plain PEP 249 connection: the caller's session, and the table over a connection of our own.

Uses SQL for everything, because drivers share no connection attribute. A savepoint marks the transaction that was
entered: whatever ends that transaction (an implicit commit, a rollback after a deadlock) also ends the savepoint. An
unknown error leaves the outcome of a COMMIT open.

A driver interrupted by a signal's exception between a query and its result takes every later result for the next
query's. So a connection must echo a token when a block begins, and again when it ends: from there on no such exception
is swallowed.
"""

import functools
import logging
import secrets
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from journal.records.xid import Xid
from meta_client.coordinator.errors import CannotEnlist, PrepareFailed, Unreachable
from meta_client.transactions.dialects import Dialect
from meta_client.transactions.errors import CommitUnknown, OutOfStep
from meta_client.transactions.statements import SqlTable, check_stored, made_by, one_line, reaching
from meta_client.transactions.table import DATABASE, TABLE, Opener, TableIdentity, brokers_text

log = logging.getLogger(__name__)

_SAVEPOINT: Final = "metaq_block"
_AUTOCOMMIT: Final = "the database connection is in autocommit mode: each statement commits alone"

Ask = Callable[[str], Sequence[Sequence[Any]]]  # the rows of a query
Connect = Callable[[], Any]


class Says(Enum):
    """Meaning of a database error."""

    AGAIN = auto()  # serialization failure: the owner repeats the transaction
    DUPLICATE = auto()
    IS_NULL = auto()
    NO_RIGHT = auto()
    NOT_THE_TRANSACTION = auto()  # no transaction, or one without the savepoint
    FAILED_BEFORE = auto()  # an earlier statement failed
    LOST = auto()  # the connection is over


@dataclass(frozen=True, slots=True)
class Known:
    """Facts read once per connection."""

    identity: TableIdentity
    table: str  # quoted, with its schema: the search path may change
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
    def says(self) -> Mapping[object, Says]:
        """Meanings of the database's error codes."""

    @property
    def own(self) -> Sequence[str]:
        """Statements that set up a connection of our own: autocommit, durable, with short lock waits."""

    def state(self, ask: Ask) -> DriverState:
        """Read the connection's state in one SELECT. Raises CannotEnlist if its commits are no decisions."""

    def look_up(self, ask: Ask) -> Known:
        """Find the decision table. Raises CannotEnlist (NoDecisionTable, CopiedTable)."""

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
        """Return the rows of a query."""
        with closing(self.cursor(connection)) as cursor:
            cursor.execute(statement)
            if cursor.description is None:  # out of step: the result of a statement that has no rows
                return ()
            rows: Sequence[Sequence[Any]] = cursor.fetchall()
            return rows


_Remembered = tuple[object, Known, Connect]  # DriverState.session, and what makes another connection
_remembered: weakref.WeakKeyDictionary[object, _Remembered] = weakref.WeakKeyDictionary()  # by connection


class DbapiSession:
    """One connection at any isolation level, with or without autocommit, in or outside a transaction."""

    survives_release = False

    def __init__(
        self, connection: Any, driver: Driver, connect: Connect | None = None, *, is_managed: bool = False
    ) -> None:
        """*connect* makes another connection where the parameters of this one cannot. *is_managed*: a framework calls
        the connection's commit() and rollback()."""
        self._connection = connection
        self._driver = driver
        self._connect = connect
        self._is_managed = is_managed
        self._by_sql = False  # commit by a statement
        self._state = DriverState()
        self._known: Known
        self._another: Connect

    def driver_connection(self) -> object:
        return self._connection

    def begin(self) -> TableIdentity:
        driver, kind = self._driver, self._driver.kind
        ask = functools.partial(driver.query, self._connection)
        try:
            self._by_sql = not self._is_managed and driver.is_autocommit(self._connection)
            self._state = kind.state(self._ask_in_step)
            found = _remembered.get(self._connection)
            if found is None or found[0] != self._state.session:
                known = kind.look_up(ask)
                found = self._state.session, known, driver.connect_as(self._connection, known) or _cannot_connect
                _remembered[self._connection] = found
            self._known, self._another = found[1], self._connect or found[2]
            if self._another is _cannot_connect:
                _cannot_connect()
            self._enter()
        except driver.error as error:
            if self._says(error) is Says.FAILED_BEFORE:
                raise CannotEnlist("a statement failed in the connection's transaction: roll it back first") from error
            if not self._is_managed:  # the framework must see the failure itself
                self.rollback()
            if self._says(error) is Says.AGAIN:
                raise
            if isinstance(error, driver.closed):
                raise CannotEnlist("the database connection is closed: open a new one") from error
            if driver.code(error) is None or self._says(error) is Says.LOST:
                raise Unreachable(DATABASE, one_line(error)) from error
            raise CannotEnlist(f"the database connection can't take part: {one_line(error)}") from error
        return self._known.identity

    def _ask_in_step(self, select: str) -> Sequence[Sequence[Any]]:
        """Return the rows of *select*, "SELECT ...". Raises OutOfStep if they answer another query."""
        token = secrets.token_hex(8)
        rows = self._driver.query(self._connection, f"SELECT '{token}', {select.removeprefix('SELECT')}")
        if not rows or rows[0][0] != token:
            self._driver.abandon(self._connection)
            raise OutOfStep
        return [row[1:] for row in rows]

    def _enter(self) -> None:
        if self._is_managed and self._driver.is_autocommit(self._connection):
            raise CannotEnlist(_AUTOCOMMIT)
        if self._state.may_commit_alone and not self._is_in_transaction():
            if self._is_managed:
                raise CannotEnlist(_AUTOCOMMIT)
            self._do("START TRANSACTION")
        self._do(f"SAVEPOINT {_SAVEPOINT}")

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
        try:
            if not self._driver.is_always_in_step:
                self._ask_in_step("SELECT 1")
            self._do(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            self._do(f"SAVEPOINT {_SAVEPOINT}")
        except OutOfStep as error:
            return str(error)
        except self._driver.error as error:
            match self._says(error):
                case Says.NOT_THE_TRANSACTION:
                    return (
                        "its transaction was ended inside the block, by COMMIT, ROLLBACK, a deadlock, or a statement "
                        "that commits by itself, as CREATE TABLE does in MySQL; what such a commit has stored stays: "
                        "leave COMMIT and ROLLBACK to the block's end, and let the database's errors out"
                    )
                case Says.FAILED_BEFORE:
                    return "a statement failed and the block went on: let the error out, or use a savepoint"
            self._driver.abandon(self._connection)  # this may be an earlier question's answer: implies rollback
            return f"the connection is lost: {one_line(error)}"
        return None

    def decide(self, gtrid: str, brokers: Collection[int]) -> None:
        known, mark = self._known, self._driver.mark
        statement = self._driver.kind.dialect.insert_decision(known.table, mark, mark, mark, began=mark)
        values = gtrid, *self._state.began, known.identity.age_s_max, brokers_text(brokers)
        xid = Xid(1, gtrid.encode(), b"")
        try:
            check_stored(self._do(statement, values), gtrid)
        except self._driver.error as error:
            if self._says(error) is Says.AGAIN:
                raise
            raise PrepareFailed(xid, DATABASE, self._reason(error)) from error

    def commit(self) -> None:
        try:
            if self._by_sql:
                self._do("COMMIT")
            else:
                self._connection.commit()
        except self._driver.error as error:
            if self.is_unknown(error):
                raise CommitUnknown(one_line(error)) from error
            self.rollback()
            raise
        except Exception as error:  # from a signal handler or the driver itself, so not the database's answer
            raise CommitUnknown(one_line(error), is_foreign=True) from error

    def is_unknown(self, error: Exception) -> bool:
        return not isinstance(error, self._driver.error) or not self._driver.kind.has_rolled_back(
            self._driver.code(error)
        )

    def make_durable(self) -> None:
        """Do nothing: a COMMIT that was answered is durable."""

    def has_refused(self, error: Exception) -> bool:
        return isinstance(error, self._driver.error)

    def rollback(self) -> None:
        try:
            if self._by_sql:
                self._do("ROLLBACK")
            else:
                self._connection.rollback()
        except Exception as error:
            log.warning("database connection could not be rolled back, and is closed reason=%s", one_line(error))
            self._driver.abandon(self._connection)

    def opener(self) -> Opener:
        return functools.partial(open_over, self._driver, self._another)

    def _do(self, statement: str, values: tuple[object, ...] = ()) -> int:
        """Execute a statement; return the count of changed rows."""
        with closing(self._driver.cursor(self._connection)) as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)

    def _says(self, error: Exception) -> Says | None:
        return self._driver.kind.says.get(self._driver.code(error))

    def _reason(self, error: Exception) -> str:
        match self._says(error):
            case Says.DUPLICATE:
                return "a resolver has rolled it back meanwhile, so long did it take to COMMIT: do it again"
            case Says.IS_NULL:
                age_s = self._known.identity.age_s_max
                return f"its database transaction is older than {age_s} s, and must not decide any more"
            case Says.NO_RIGHT:
                return f"{one_line(error)}: its user needs SELECT, INSERT, UPDATE, DELETE on {self._known.table}"
        return one_line(error)


def _cannot_connect() -> Any:
    raise CannotEnlist(
        "the database connection does not tell how it was made, and a resolver needs another one like it: "
        "give client.transaction(connection, connect=make_one)"
    )


def open_over(driver: Driver, connect: Connect) -> SqlTable:
    """Open the decision table over a connection from *connect*. Raises Unreachable, NoDecisionTable, CopiedTable,
    CannotEnlist."""
    connection = made_by(connect)
    ask = functools.partial(driver.query, connection)
    with reaching(driver.error, undo=connection.close):
        driver.make_own(connection)
        with closing(driver.cursor(connection)) as cursor:
            for statement in driver.kind.own:
                cursor.execute(statement)
        driver.kind.state(ask)
        known = driver.kind.look_up(ask)
    statements = driver.kind.dialect.statements(known.table.removesuffix(TABLE), driver.mark)

    def is_lock(error: Exception) -> bool:
        return driver.kind.says.get(driver.code(error)) is Says.AGAIN

    return SqlTable(connection, known.identity, statements, (driver.error,), is_lock)
