"""An outbox: messages as rows of the caller's transaction, which a relay moves to brokers later, each exactly once.

    Outbox().send(connection, "orders", b"...")     # in a service, in its transaction; no broker is needed
    metaq outbox relay --database URL               # anywhere, and as many as you like

Read: rows (the table) -> contents (counts of it) -> outbox (what a service does) -> engines (a database by its URL) ->
errors -> relay -> relay_metrics.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta_client.outbox.outbox import Outbox
    from meta_client.outbox.relay import Relay

__all__ = ["Outbox", "Relay"]

# Imported when first used: SQLAlchemy is an extra.
_HOMES = {"Outbox": "meta_client.outbox.outbox", "Relay": "meta_client.outbox.relay"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
