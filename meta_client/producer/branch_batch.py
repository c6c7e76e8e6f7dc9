"""Messages sent into an XA branch: gathered by partition, and the caller's handle of each message.

A branch, and everything here, belongs to its producer's thread.
"""

from collections.abc import Callable

from journal.records.xid import XaKey
from meta_client.errors import Destination, NoBroker, SendFailed
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.producer.outgoing import Outgoing, PendingSend
from meta_client.producer.results import SendResult
from meta_client.protocol.checksum import crc31
from meta_client.protocol.frame_columns import encode_frames
from meta_client.protocol.limits import BATCH_MESSAGES_MAX
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import MultiPut, Put
from zk.tree.nodes import Partition

RESULT_TIMEOUT_S = 5.0  # as of a verb
BATCH_BYTES = 256 * 1024  # a batch this large is sent at once; larger ones save hardly any answers


class BranchBatch:
    """Messages for one partition in order: one put, or one mput. Open, then sent, then settled."""

    __slots__ = ("_flush", "_messages", "_outcome", "_pending", "bytes", "partition", "topic")

    def __init__(self, topic: str, partition: Partition, flush: Callable[[], None]) -> None:
        """*flush* sends everything the branch has gathered, this batch included."""
        self.topic = topic
        self.partition = partition
        self.bytes = 0  # of the frames
        self._flush = flush
        self._messages: list[Outgoing] = []
        self._pending: PendingSend | None = None
        self._outcome: SendResult | SendFailed | None = None  # of the first message; the others follow from it

    def has_room(self, size: int) -> bool:
        """Return True if a frame of *size* bytes fits. A single message always does."""
        return not self._messages or (self.bytes + size <= BATCH_BYTES and len(self._messages) < BATCH_MESSAGES_MAX)

    def add(self, message: Outgoing) -> "BranchHandle":
        assert self._pending is None
        self._messages.append(message)
        self.bytes += HEADER_BYTES + len(message.body)
        return BranchHandle(self, len(self._messages) - 1)

    def request(self, key: XaKey) -> Put | MultiPut:
        """Return the put or mput of the batch, for a broker with `mput`."""
        number = self.partition.number
        if len(self._messages) == 1:
            (only,) = self._messages
            return Put(self.topic, number, only.flag, crc31(only.body), key, next_opaque(), only.body)
        messages = self._messages
        frames = encode_frames([message.flag for message in messages], [message.body for message in messages])
        return MultiPut(self.topic, number, len(messages), crc31(frames), None, key, next_opaque(), frames)

    def sent(self, reply: PendingReply, connection: Transport) -> None:
        """Mark as sent; *reply* is its pending reply."""
        self._pending = PendingSend(reply, self.topic, self.partition, connection)
        self._messages = []  # handles outlive the batch: free the bytes

    def discard(self) -> None:
        """Settle as never sent, unless it was."""
        if self._pending is None and self._outcome is None:
            where = Destination(self.topic, self.partition)
            self._outcome = NoBroker("its branch ended before it was sent", where)
            self._messages = []

    @property
    def is_done(self) -> bool:
        return self._outcome is not None or (self._pending is not None and self._pending.is_done)

    def await_replies(self, timeout_s: float) -> SendFailed | None:
        """Wait for the answer; return the failure if messages are not, or may not be, in the branch. Only once sent."""
        if self._outcome is None:
            assert self._pending is not None
            try:
                self._outcome = self._pending.wait(timeout_s)
            except SendFailed as error:
                self._outcome = error
        return self._outcome if isinstance(self._outcome, SendFailed) else None

    def result_of(self, index: int, timeout_s: float) -> SendResult:
        """Return the place of message *index*; flush if it is not sent. Raises SendFailed; XaError if the branch did
        not begin."""
        if self._outcome is None and self._pending is None:
            self._flush()
        self.await_replies(timeout_s)
        if isinstance(self._outcome, SendFailed):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome._replace(message_id=self._outcome.message_id + index)


class BranchHandle:
    """Handle of a message sent into a branch. May be dropped: PREPARE checks every message."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: BranchBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """True if `result` would return or raise at once."""
        return self._batch.is_done

    @property
    def partition(self) -> Partition:
        """Partition that was chosen for the message."""
        return self._batch.partition

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Return the place of the message, as `Producer.send` does; flush if it is not sent. The producer's thread
        alone. Raises SendFailed (then the branch can only be rolled back), XaError."""
        return self._batch.result_of(self._index, RESULT_TIMEOUT_S if timeout_s is None else timeout_s)
