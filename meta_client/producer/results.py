"""Result of a send."""

from typing import NamedTuple

from zk.tree.nodes import Partition


class SendResult(NamedTuple):
    """Place of a message. *offset* is None in a transaction: it is assigned by the commit."""

    message_id: int  # any int64, neither ordered nor unique forever (spec 3.4)
    partition: Partition  # written `B-p`
    offset: int | None  # bytes since the partition's birth, of the message's first byte
