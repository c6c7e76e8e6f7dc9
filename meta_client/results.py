"""What a producer gets back."""

from typing import NamedTuple

from zk.nodes import Partition


class SendResult(NamedTuple):
    """Where a message went. *offset* is None in a transaction: it is known when that commits."""

    message_id: int  # any int64, neither ordered nor unique for ever (spec 3.4)
    partition: Partition  # of the topic, written `B-p`
    offset: int | None  # bytes since the partition's birth, of the message's first byte
