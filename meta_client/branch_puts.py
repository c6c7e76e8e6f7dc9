"""Messages on their way into an XA branch: gathered by partition, and what a caller holds of each.

A branch belongs to its producer's thread, and so does everything here.
"""

from collections.abc import Callable

from journal.xid import XaKey
from meta_client.errors import Destination, NoBroker, SendFailed
from meta_client.opaques import next_opaque
from meta_client.pending_reply import PendingReply
from meta_client.protocol.checksum import crc31
from meta_client.protocol.frame_columns import encode_frames
from meta_client.protocol.limits import BATCH_MESSAGES_MAX
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import MultiPut, Put
from meta_client.puts import Outgoing, PendingSend
from meta_client.results import SendResult
from meta_client.transport import Transport
from zk.nodes import Partition

RESULT_TIMEOUT_S = 5.0  # as for a verb
BATCH_BYTES = 256 * 1024  # a batch this large goes at once; above, the broker's answer is no rarer to speak of


class BranchBatch:
    """Messages for one partition, in their order: one put, or one mput. Open, then sent, then settled."""

    __slots__ = ("_land", "_messages", "_outcome", "_pending", "bytes", "partition", "topic")

    def __init__(self, topic: str, partition: Partition, land: Callable[[], None]) -> None:
        """*land* sends what the branch has waiting, this batch too."""
        self.topic = topic
        self.partition = partition
        self.bytes = 0  # of the frames
        self._land = land
        self._messages: list[Outgoing] = []
        self._pending: PendingSend | None = None
        self._outcome: SendResult | SendFailed | None = None  # of the first message; the others' follow from it

    def has_room(self, size: int) -> bool:
        """Whether a message of *size* bytes in its frame fits. A single one always does."""
        return not self._messages or (self.bytes + size <= BATCH_BYTES and len(self._messages) < BATCH_MESSAGES_MAX)

    def add(self, message: Outgoing) -> "BranchHandle":
        """Add one message while the batch is open."""
        assert self._pending is None
        self._messages.append(message)
        self.bytes += HEADER_BYTES + len(message.body)
        return BranchHandle(self, len(self._messages) - 1)

    def request(self, key: XaKey) -> Put | MultiPut:
        """What carries it to a broker that knows `mput`."""
        number = self.partition.number
        if len(self._messages) == 1:
            (only,) = self._messages
            return Put(self.topic, number, only.flag, crc31(only.body), key, next_opaque(), only.body)
        messages = self._messages
        frames = encode_frames([message.flag for message in messages], [message.body for message in messages])
        return MultiPut(self.topic, number, len(messages), crc31(frames), None, key, next_opaque(), frames)

    def sent(self, reply: PendingReply, connection: Transport) -> None:
        """It is on its way; *reply* will be its answer."""
        self._pending = PendingSend(reply, self.topic, self.partition, connection)
        self._messages = []  # handles live on: the bytes need not

    def drop(self) -> None:
        """It will never be sent."""
        if self._pending is None and self._outcome is None:
            where = Destination(self.topic, self.partition)
            self._outcome = NoBroker("its branch ended before it was sent", where)
            self._messages = []

    @property
    def is_done(self) -> bool:
        return self._outcome is not None or (self._pending is not None and self._pending.is_done)

    def settle(self, timeout_s: float) -> SendFailed | None:
        """Wait for the answer, once; why it is not in the branch, or may not be. The messages must be sent."""
        if self._outcome is None:
            assert self._pending is not None
            try:
                self._outcome = self._pending.wait(timeout_s)
            except SendFailed as error:
                self._outcome = error
        return self._outcome if isinstance(self._outcome, SendFailed) else None

    def result_of(self, index: int, timeout_s: float) -> SendResult:
        """What became of message *index*. Raises SendFailed; XaError if the branch did not begin."""
        if self._outcome is None and self._pending is None:
            self._land()
        self.settle(timeout_s)
        if isinstance(self._outcome, SendFailed):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome._replace(message_id=self._outcome.message_id + index)


class BranchHandle:
    """A message on its way into a branch. May be dropped at will: the branch's PREPARE looks at it all the same."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: BranchBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._batch.is_done

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Where the message went, as `Producer.send` tells it, which sends it if it waits for company. The
        producer's thread alone. Raises SendFailed, and then the branch can only be rolled back; XaError."""
        return self._batch.result_of(self._index, RESULT_TIMEOUT_S if timeout_s is None else timeout_s)
