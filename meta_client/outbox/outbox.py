"""The part of an outbox in a service: adds messages to its transactions."""

from typing import Any

from meta_client.outbox.rows import add_row
from meta_client.outbox.tables import TOPIC_MAX
from meta_client.producer.outgoing import message_too_long, parse_partition, payload_bytes
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import DATA_BYTES_MAX, encode_body
from meta_client.sql.connections import executor_in_transaction
from meta_client.tracing import TRACING
from zk.tree.nodes import Partition
from zk.tree.paths import check_name


class Outbox:
    """The outbox of a database (`metaq outbox init`). Keeps nothing, and talks to no broker. Any thread."""

    def send(
        self,
        connection: Any,
        topic: str,
        payload: bytes,
        attribute: str | None = None,
        partition: Partition | str | None = None,
    ) -> None:
        """Add one message to the transaction of *connection*. Once that has committed, a relay sends it, exactly once;
        a rollback, also of a savepoint around it, takes it back. With tracing its trace context goes along.

        *connection*: a PEP 249 connection, or a Connection or Session of SQLAlchemy, in a transaction that the caller
        commits. As durable as the caller's rows. Raises LocalProtocolError, TypeError, ValueError and zk's InvalidName
        for what no broker would take; NotInTransaction, NoDatabase, and the database's errors.
        """
        whole = payload if type(payload) is bytes else payload_bytes(payload)
        if TRACING.hooks is not None:
            attribute = TRACING.hooks.attribute(topic, attribute)
        _check(topic, whole, attribute)
        place = None if partition is None else str(parse_partition(partition))
        add_row(executor_in_transaction(connection), topic, whole, attribute, place)


def _check(topic: str, payload: bytes, attribute: str | None) -> None:
    if len(check_name(topic)) > TOPIC_MAX:
        raise LocalProtocolError(f"topic {topic[:40]!r}... has {len(topic)} characters, an outbox takes {TOPIC_MAX}")
    if (size := len(encode_body(payload, attribute)[1])) > DATA_BYTES_MAX:
        raise message_too_long(topic, size)
    if attribute is not None and "\0" in attribute:
        raise LocalProtocolError(f"attribute {attribute[:40]!r} has a zero character, which databases refuse")
