"""Tables of an outbox in SQLAlchemy Core, and their creation.

metaq_outbox has a row for each message that waits, by id; metaq_outbox_deferred those that wait for a broker while
others pass them; metaq_outbox_aside those that a broker does not take, with the reason. metaq_outbox_relay has one row,
which a relay locks: two relays never move rows at the same time. It has their RelayState.
"""

from functools import lru_cache
from typing import Any, Final

from meta_client.outbox.relay_state import RelayState
from meta_client.sql.core import (
    TIMESTAMP,
    BigInteger,
    Column,
    Connection,
    CreateTable,
    Dialect,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    bytewise_text,
    exc,
    false,
    func,
    insert,
    inspect,
    mysql,
    select,
)
from meta_client.sql.executor import SqlAlchemyExecutor

TABLE: Final = "metaq_outbox"
DEFERRED_TABLE: Final = "metaq_outbox_deferred"
ASIDE_TABLE: Final = "metaq_outbox_aside"
RELAY_TABLE: Final = "metaq_outbox_relay"
TOPIC_MAX: Final = 255  # characters
PLACE_MAX: Final = 21  # "2147483647-2147483647"


class Tables:
    """The four tables. *quote*: see Column."""

    def __init__(self, quote: bool | None) -> None:
        every = MetaData()
        number = BigInteger().with_variant(Integer, "sqlite")
        self.outbox = Table(
            TABLE,
            every,
            Column("id", number, Identity(), primary_key=True, quote=quote),
            *_message(quote),
            Column("added_at", TIMESTAMP(timezone=True), nullable=False, server_default=func.now()),
            mysql_engine="InnoDB",
            sqlite_autoincrement=True,
            quote=quote,
        )
        self.deferred = Table(
            DEFERRED_TABLE,
            every,
            Column("id", number, primary_key=True, autoincrement=False, quote=quote),
            *_message(quote),
            Column("added_at", TIMESTAMP(timezone=True), nullable=False),
            Column("broker_id", Integer, nullable=False),
            Column("destination", bytewise_text(PLACE_MAX), nullable=False),
            mysql_engine="InnoDB",
            quote=quote,
        )
        self.aside = Table(
            ASIDE_TABLE,
            every,
            Column("id", number, primary_key=True, autoincrement=False, quote=quote),
            *_message(quote),
            Column("added_at", TIMESTAMP(timezone=True), nullable=False),
            Column("reason", _any_text(), nullable=False),
            mysql_engine="InnoDB",
            quote=quote,
        )
        self.relay = Table(
            RELAY_TABLE,
            every,
            Column("only_one", Integer, primary_key=True, autoincrement=False),
            Column("relayed_at", TIMESTAMP(timezone=True), nullable=True),
            Column("state", _any_text()),
            mysql_engine="InnoDB",
            quote=quote,
        )
        names = "topic", "payload", "attribute", "partition"
        self.insert = insert(self.outbox).values({name: bindparam(f"the_{name}") for name in names}).inline()


def _message(quote: bool | None) -> tuple[Column[Any], ...]:
    return (
        Column("topic", bytewise_text(TOPIC_MAX), nullable=False, quote=quote),
        Column("payload", LargeBinary().with_variant(mysql.LONGBLOB, "mysql", "mariadb"), nullable=False),
        Column("attribute", _any_text(), quote=quote),
        Column("partition", bytewise_text(PLACE_MAX), quote=quote),
    )


def _any_text() -> Text:
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), "mysql", "mariadb")


tables = lru_cache(maxsize=4)(Tables)
OUTBOX: Final = tables(None).outbox
DEFERRED: Final = tables(None).deferred
ASIDE: Final = tables(None).aside
RELAY: Final = tables(None).relay
_MAKE_ROW: Final = insert(RELAY).values(only_one=1)
_DEFERRED_FOR: Final = select(DEFERRED.c.broker_id).distinct().order_by(DEFERRED.c.broker_id)


def ddl(dialect: Dialect) -> str:
    """Return the SQL that makes the tables, for a migration."""
    made = [*map(CreateTable, (OUTBOX, DEFERRED, ASIDE, RELAY)), _MAKE_ROW]
    compiled = [each.compile(dialect=dialect, compile_kwargs={"literal_binds": True}) for each in made]
    return "".join(f"{str(each).strip()};\n" for each in compiled)


def create(connection: Connection) -> None:
    """Make the tables if missing, and the relay's row, which names brokers of deferred messages. Commits."""
    executor = SqlAlchemyExecutor(connection)
    for table in (OUTBOX, DEFERRED, ASIDE, RELAY):
        executor.create(select(table).limit(1), CreateTable(table))
    if connection.scalar(select(RELAY.c.only_one)) is None:
        brokers = tuple(connection.scalars(_DEFERRED_FOR))
        try:
            connection.execute(_MAKE_ROW.values(state=RelayState(deferred=brokers).dump() if brokers else None))
        except exc.IntegrityError:  # another process made it meanwhile
            connection.rollback()
    connection.commit()


def is_there(connection: Connection) -> bool:
    """Return whether the database has an outbox, complete or not."""
    return inspect(connection).has_table(RELAY_TABLE)


def is_complete(connection: Connection) -> bool:
    """Return whether the relay's row is there. Raises the database's error without the tables or one of their
    columns."""
    for table in (OUTBOX, DEFERRED, ASIDE):
        connection.execute(select(table).where(false()))
    return connection.execute(select(RELAY)).first() is not None
