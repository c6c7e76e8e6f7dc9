"""Other places for a group's offsets than ZooKeeper: a file, a database, the listener's own database transaction.

Each is an `OffsetStore` (meta_client.consumer.offsets). Offsets only go forward in it, unless a reset is asked for.

Read: errors, local_file -> places (pure: the table, and every way to move an offset) -> dbapi_rows, sqlalchemy_rows
(the two ways to speak to a database) -> sql, in_transaction.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta_client.offset_stores.in_transaction import TransactionOffsetStore
    from meta_client.offset_stores.local_file import LocalOffsetStore
    from meta_client.offset_stores.sql import SqlOffsetStore

__all__ = ["LocalOffsetStore", "SqlOffsetStore", "TransactionOffsetStore"]

# Imported when first used: SQLAlchemy is an extra.
_HOMES = {
    "LocalOffsetStore": "meta_client.offset_stores.local_file",
    "SqlOffsetStore": "meta_client.offset_stores.sql",
    "TransactionOffsetStore": "meta_client.offset_stores.in_transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
