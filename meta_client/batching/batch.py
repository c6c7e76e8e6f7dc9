"""A batch of messages for one partition, and what a caller holds of each.

A handle is two words: the batch it is in and its place there. Everything else is kept once a batch, and worked out
when somebody asks.
"""

import itertools
import threading

from journal.checksum import crc32
from meta_client.errors import Destination, ReplyTimeout, SendFailed
from meta_client.protocol.answers import PutPlace
from meta_client.protocol.checksum import CRC31_MASK
from meta_client.protocol.messages import HEADER, HEADER_BYTES
from meta_client.results import SendResult
from zk.nodes import Partition

_pack_header = HEADER.pack


class Batch:
    """Messages in the order they were added. Filled under the sender's lock; settled once, by the sender's thread."""

    __slots__ = (
        "_base",
        "_failure",
        "_first_id",
        "_lengths",
        "_pieces",
        "_places",
        "_settled",
        "_starts",
        "attempts",
        "bytes",
        "deadline",
        "due",
        "failures",
        "number",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, partition: Partition, due: float, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.number = -1  # given when it is sealed
        self.due = due  # monotonic seconds: it waits for company until then
        self.deadline = deadline  # after which it is not tried again
        self.attempts = 0  # times that it may have reached the broker
        self.failures = 0  # times that it was not heard of again
        self.bytes = 0  # of the frames
        self._pieces: list[bytes] = []
        self._lengths: list[int] = []
        self._starts: list[int] | None = None
        self._places: list[PutPlace] | None = None  # from a broker that took them one by one
        self._first_id = self._base = 0
        self._failure: SendFailed | None = None
        self._settled = threading.Lock()  # held until the outcome is here: the cheapest event there is
        self._settled.acquire()

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, flag: int, body: bytes) -> "SendHandle":
        """Add one message. The sender's lock must be held: this is the path of every message."""
        length = len(body)
        pieces = self._pieces
        pieces.append(_pack_header(length, crc32(body) & CRC31_MASK, 0, flag))
        pieces.append(body)
        lengths = self._lengths
        lengths.append(length)
        self.bytes += HEADER_BYTES + length
        return SendHandle(self, len(lengths) - 1)

    def frames(self) -> bytes:
        """What an mput carries."""
        return b"".join(self._pieces)

    def messages(self) -> list[tuple[int, bytes]]:
        """(flag, body) of each message, for a broker that takes one at a time."""
        headers = map(HEADER.unpack, self._pieces[::2])
        return [(flag, body) for (_, _, _, flag), body in zip(headers, self._pieces[1::2], strict=True)]

    def settle(self, place: PutPlace) -> None:
        """It is stored there, all of it."""
        self._first_id = place.message_id
        self._base = place.offset or 0
        self._pieces = []  # handles live on: the bytes need not
        self._settled.release()

    def settle_each(self, places: list[PutPlace]) -> None:
        """They are stored there, one by one."""
        self._places = places
        self._pieces = []
        self._settled.release()

    def fail(self, failure: SendFailed) -> None:
        """It is given up."""
        self._failure = failure
        self._pieces = []
        self._settled.release()

    @property
    def failure(self) -> SendFailed | None:
        return self._failure

    @property
    def is_settled(self) -> bool:
        return not self._settled.locked()

    def wait(self, timeout_s: float | None) -> None:
        """Return once it is settled. Raises ReplyTimeout; it goes on being sent then."""
        if not self._settled.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            where = Destination(self.topic, self.partition)
            raise ReplyTimeout(f"send to {where}: not settled within {timeout_s:g} s: wait on, it is still being sent")
        self._settled.release()

    def result_of(self, index: int) -> SendResult:
        """Where message *index* went. Raises SendFailed. Only once settled."""
        if self._failure is not None:
            raise self._failure
        if self._places is not None:
            place = self._places[index]
            return SendResult(place.message_id, self.partition, place.offset)
        if self._starts is None:
            sizes = (HEADER_BYTES + length for length in self._lengths)
            self._starts = list(itertools.accumulate(sizes, initial=self._base))
        return SendResult(self._first_id + index, self.partition, self._starts[index])


class SendHandle:
    """A message on its way. Any thread; may be dropped at will, the message goes all the same."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._batch.is_settled

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Where the message went, once the broker has acknowledged it. Raises SendFailed (the subclass tells
        whether it may be stored), ReplyTimeout after *timeout_s*: it is still being sent then."""
        self._batch.wait(timeout_s)
        return self._batch.result_of(self._index)
