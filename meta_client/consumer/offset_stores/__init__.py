"""Alternatives to ZooKeeper for a group's offsets: a file, a database, the listener's own database transaction.

Each is an `OffsetStore` (meta_client.consumer.offsets). Its offsets only go forward, except by a reset.

Read: errors, local_file -> row_key -> rows (the table, in SQLAlchemy Core) -> moves (of an offset) -> sql,
in_transaction.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta_client.consumer.offset_stores.in_transaction import TransactionOffsetStore
    from meta_client.consumer.offset_stores.local_file import LocalOffsetStore
    from meta_client.consumer.offset_stores.sql import SqlOffsetStore

__all__ = ["LocalOffsetStore", "SqlOffsetStore", "TransactionOffsetStore"]

# Imported when first used: SQLAlchemy is an extra.
_HOMES = {
    "LocalOffsetStore": "meta_client.consumer.offset_stores.local_file",
    "SqlOffsetStore": "meta_client.consumer.offset_stores.sql",
    "TransactionOffsetStore": "meta_client.consumer.offset_stores.in_transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
