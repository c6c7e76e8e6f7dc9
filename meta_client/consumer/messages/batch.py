"""Batches for a consumer's listener: the messages of one fetch of one partition, in order. Pure."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Self, cast, overload

from journal.checksum import crc32
from meta_client import core
from meta_client.consumer.messages.alike_run import ALIKE_MAX, ALIKE_MIN, AlikeRun, maybe_alike
from meta_client.consumer.messages.batch_columns import Piece, numpy_payloads, record_batch
from meta_client.consumer.messages.received_message import ReceivedMessage, TracedMessage
from meta_client.protocol.checksum import CRC31_MASK
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER, HEADER_BYTES, Message, iter_frames
from meta_client.protocol.requests import Body
from zk.tree.nodes import Partition

if TYPE_CHECKING:
    import numpy
    import pyarrow

# Same as the class with eight arguments, without a Python frame per message.
_new_tuple: Final = cast("Callable[[type[ReceivedMessage], Iterable[object]], ReceivedMessage]", tuple.__new__)

PLAIN_MAX: Final = 64  # after so many messages of several lengths, try again whether the next ones are alike
Crc32 = Callable[[bytes], int]


class Payloads(Sequence[bytes]):
    """The payloads of a batch. Each is copied when it is asked for; iterating is fastest. Immutable, any thread."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self._starts = [0]
        for piece in pieces:
            self._starts.append(self._starts[-1] + _count(piece))

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(map(_payloads, self._pieces))

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return list(self)[index]
        at = range(len(self))[index]
        number = bisect_right(self._starts, at) - 1
        piece, at = self._pieces[number], at - self._starts[number]
        return next(piece.part(at, at + 1).payloads()) if isinstance(piece, AlikeRun) else piece[at].payload

    def to_numpy(self) -> "numpy.ndarray[Any, Any]":
        """Return the payloads as an array of kind V, without copying them: it must not be written to. Needs numpy.
        Raises ValueError unless all have one length, at least 1, and no attributes: `Batch.to_arrow` takes any."""
        made: numpy.ndarray[Any, Any] = numpy_payloads(self._pieces)
        return made


class Batch:
    """Messages of one partition in [offset, next_offset), one at least. Immutable; any thread.

    `messages` makes an object for each message when it is first asked for. `payloads`, `offsets` and `to_arrow` make
    none for plain messages of one length, but keep the memory of the answer in use while they, or the batch, exist.
    """

    __slots__ = ("_messages", "_pieces", "next_offset", "offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: Partition,
        offset: int,
        next_offset: int,
        messages: "list[ReceivedMessage] | None" = None,
        *,
        pieces: Sequence[Piece] | None = None,
    ) -> None:
        """*messages*, or *pieces* of the bytes in [offset, next_offset)."""
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        self._messages = messages
        self._pieces: Sequence[Piece] = [messages or []] if pieces is None else pieces

    @classmethod
    def of(cls, message: ReceivedMessage) -> Self:
        """Return a batch of one message."""
        return cls(message.topic, message.partition, message.offset, message.next_offset, [message])

    @property
    def messages(self) -> list[ReceivedMessage]:
        """The messages in order, the same list each time."""
        if (made := self._messages) is None:
            made = list(chain.from_iterable(map(self._messages_of, self._pieces)))
            self._messages = made
        return made

    def __len__(self) -> int:
        return sum(map(_count, self._pieces))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    @property
    def last(self) -> ReceivedMessage:
        """The last message, as `Consumer.acknowledge` takes it."""
        piece = self._pieces[-1]
        return (self._messages_of(piece.part(piece.count - 1, piece.count)) if isinstance(piece, AlikeRun) else piece)[
            -1
        ]

    @property
    def payloads(self) -> Payloads:
        """The payloads in order."""
        return Payloads(self._pieces)

    @property
    def offsets(self) -> Sequence[int]:
        """The offsets in order."""
        ranges = list(map(self._offsets_of, self._pieces))
        return ranges[0] if len(ranges) == 1 else array("q", chain.from_iterable(ranges))

    def to_arrow(self) -> "pyarrow.RecordBatch":
        """Return columns `offset` and `message_id` (int64), `attribute` (string, null without one) and `payload`
        (binary, decompressed). Needs pyarrow and numpy."""
        return record_batch([(piece, self._offsets_of(piece)) for piece in self._pieces])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # messages are a list

    def __reduce__(self) -> tuple[object, ...]:
        """Let another process have it, as objects."""
        return Batch, self._key()

    def __repr__(self) -> str:
        return f"Batch({self.topic}/{self.partition}, [{self.offset}, {self.next_offset}), {len(self)} messages)"

    def _key(self) -> tuple[object, ...]:
        return self.topic, self.partition, self.offset, self.next_offset, self.messages

    def _offsets_of(self, piece: Piece) -> Sequence[int]:
        if isinstance(piece, AlikeRun):
            return range(self.offset + piece.position, self.offset + piece.end, piece.size)
        return [message.offset for message in piece]

    def _messages_of(self, piece: Piece) -> list[ReceivedMessage]:
        if not isinstance(piece, AlikeRun):
            return piece
        if core.core is not None:
            found, end = _plain_messages(
                self.topic, self.partition, self.offset, piece.body, piece.position, piece.count, None
            )
            if end == piece.end:  # else its offsets are too large
                return found
        offset, size = self.offset, piece.size
        fields = zip(
            *(repeat(self.topic), repeat(self.partition), range(offset + piece.position, offset + piece.end, size)),
            *(piece.ids(), repeat(0), repeat(None), piece.payloads()),
            range(offset + piece.position + size, offset + piece.end + size, size),
            strict=False,  # repeat() is endless
        )
        return list(map(_new_tuple, repeat(ReceivedMessage), fields))


def _count(piece: Piece) -> int:
    return piece.count if isinstance(piece, AlikeRun) else len(piece)


def _payloads(piece: Piece) -> Iterable[bytes]:
    return piece.payloads() if isinstance(piece, AlikeRun) else (message.payload for message in piece)


def decode_batch(
    topic: str, partition: Partition, offset: int, body: Body
) -> tuple[Batch | None, InvalidMessage | None]:
    """Decode the whole messages at the front of a fetch's answer, None if there are none, and the error of the broken
    message after them."""
    pieces: list[Piece] = []
    position, count = 0, ALIKE_MIN
    broken: InvalidMessage | None = None
    try:
        while position + HEADER_BYTES <= len(body):
            if (run := maybe_alike(body, position, count)) is not None:
                _append(pieces, run)
                position, count = run.end, min(2 * count, ALIKE_MAX)
                continue
            if not pieces or isinstance(pieces[-1], AlikeRun):
                pieces.append([])
            messages = pieces[-1]
            assert isinstance(messages, list)
            count = ALIKE_MIN
            if core.core is not None:
                found, position = _plain_messages(topic, partition, offset, body, position, PLAIN_MAX, crc32)
                messages += found
                if len(found) == PLAIN_MAX:
                    continue
            for _ in range(count):
                if (decoded := _decode_one(topic, partition, offset, body, position)) is None:
                    return _batch(topic, partition, offset, position, pieces), None
                message, position = decoded
                messages.append(message)
    except InvalidMessage as error:
        broken = error
    return _batch(topic, partition, offset, position, pieces), broken


def _append(pieces: list[Piece], run: AlikeRun) -> None:
    """Append *run*, as one with the run before it if both are alike."""
    last = pieces[-1] if pieces else None
    if isinstance(last, AlikeRun) and last.size == run.size:
        pieces[-1] = AlikeRun(run.body, last.position, run.size, last.count + run.count)
    else:
        pieces.append(run)


def _batch(topic: str, partition: Partition, offset: int, size: int, pieces: list[Piece]) -> Batch | None:
    full = [piece for piece in pieces if _count(piece)]
    return Batch(topic, partition, offset, offset + size, pieces=full) if full else None


def _plain_messages(
    topic: str, partition: Partition, offset: int, body: Body, position: int, count_max: int, crc: Crc32 | None
) -> tuple[list[ReceivedMessage], int]:
    """Return the plain messages at *position*, *count_max* at most, and the position of what the native core leaves to
    Python. *crc*: None if their checksums were verified."""
    found: tuple[list[ReceivedMessage], int] = core.core.plain_messages(
        ReceivedMessage, topic, partition, body, offset, position, count_max, DATA_BYTES_MAX, crc
    )
    return found


def _decode_one(
    topic: str, partition: Partition, offset: int, body: Body, position: int
) -> tuple[ReceivedMessage, int] | None:
    """Decode the message at *position*; return it and the next position, None if it is cut off. Raises
    InvalidMessage."""
    data = position + HEADER_BYTES
    if data > len(body):
        return None
    length, checksum, message_id, flag = HEADER.unpack_from(body, position)
    payload = bytes(body[data : data + length])
    is_plain = len(payload) == length <= DATA_BYTES_MAX and not flag
    if is_plain and crc32(payload) & CRC31_MASK == checksum:
        following = data + length
        fields = topic, partition, offset + position, message_id, flag, None, payload, offset + following
        return _new_tuple(ReceivedMessage, fields), following
    with memoryview(body)[position:] as view:  # not plain
        for start, next_offset, it in iter_frames(view, offset + position):
            return make_received(topic, partition, start, it, next_offset), next_offset - offset
    return None


def make_received(topic: str, partition: Partition, offset: int, message: Message, next_offset: int) -> ReceivedMessage:
    """Return *message* with its place."""
    fields = message.id, message.flag, message.attribute, message.payload
    found = ReceivedMessage(topic, partition, offset, *fields, next_offset)
    return found if message.traceparent is None else TracedMessage.of(found, message.traceparent)
