"""The part of an outbox in a service of tasks: the rules of the twin, meta_client/outbox/outbox.py."""

from typing import Any

from meta_client.aio.bridge.bridge import run
from meta_client.aio.transactions.databases import sync_connection
from meta_client.outbox.outbox import Outbox as Rules
from zk.tree.nodes import Partition


class Outbox:
    """The outbox of a database (`metaq outbox init`). Keeps nothing, and talks to no broker. Any task."""

    async def send(
        self,
        connection: Any,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
    ) -> None:
        """Add one message to the transaction of *connection*, as meta_client.outbox.Outbox does.

        *connection*: as for meta_client.aio's Client.transaction.
        """
        await run(_send, connection, topic, payload, attribute, partition)


def _send(
    connection: Any, topic: str, payload: bytes, attribute: str | None, partition: Partition | str | None
) -> None:
    Rules().send(sync_connection(connection), topic, payload, attribute, partition)
