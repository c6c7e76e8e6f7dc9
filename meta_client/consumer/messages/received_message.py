"""A message as a consumer gets it. Pure."""

from typing import NamedTuple, Self

from zk.tree.nodes import Partition


class ReceivedMessage(NamedTuple):  # the cheapest immutable type: one is made per message
    """A message with its place in a partition."""

    topic: str
    partition: Partition
    offset: int  # of its first byte; identifies the message forever, unlike its id
    message_id: int
    flag: int  # as stored; the payload is decompressed regardless
    attribute: str | None
    payload: bytes
    next_offset: int  # of the message after it

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the send, which a traced producer adds; None: there is none."""
        return None


class TracedMessage(ReceivedMessage):
    """A message with a trace context."""

    _traceparent: str

    @classmethod
    def of(cls, message: ReceivedMessage, traceparent: str) -> Self:
        """Return *message* with *traceparent*."""
        traced = cls._make(message)
        traced._traceparent = traceparent
        return traced

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the send."""
        return getattr(self, "_traceparent", None)  # a copy made by _replace has none
