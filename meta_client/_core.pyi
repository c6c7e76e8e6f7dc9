from collections.abc import Callable
from typing import Any, Generic, TypeVar

from journal.records.xid import BranchKey
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.producer.batch import ProducerBatch
from meta_client.protocol.requests import Body, Put, TransactionCommand, TransactionVerb
from meta_client.protocol.responses import Result
from zk.tree.nodes import Partition

Crc32 = Callable[[Any], int]

Handle = TypeVar("Handle")

INTERFACE: int

class Intake(Generic[Handle]):
    def __new__(
        cls,
        locked: Callable[[], bool] | None,
        engine: object,
        open_batches: dict[Any, ProducerBatch],
        handle: Callable[[ProducerBatch, int], Handle],
        header_bytes: int,
        data_bytes_max: int,
        messages_max: int,
        batch_bytes: int,
        bytes_max: int,
    ) -> Intake[Handle]: ...
    # As results.QuickAdd.
    def add(
        self,
        topic: str,
        body: bytes,
        wanted: Partition | None = None,
        flag: int = 0,
        attribute: str | None = None,
        /,
    ) -> Handle | None: ...

# The number of whole messages of one length, sound by *crc32* and without any flag, that follow one another in *body*
# from *position* on, *count_max* at most; 0 if they are fewer than *least*.
def alike_frames(
    body: Body, position: int, least: int, count_max: int, data_bytes_max: int, crc32: Crc32, /
) -> int: ...

# Messages of *body* from *position* on, and the position after them: as many as are whole, sound by *crc32* (None: they
# were verified), without any flag but that of an attribute, and without trace context, *count_max* at most. None where
# offsets would pass 63 bits.
def plain_messages(
    kind: type[ReceivedMessage],
    topic: str,
    partition: Partition,
    body: Body,
    base: int,
    position: int,
    count_max: int,
    data_bytes_max: int,
    crc32: Crc32 | None,
    /,
) -> tuple[list[ReceivedMessage], int]: ...

# Write ids from *first_id* on into *frames*, up to *end*: as many as are whole, sound, and without a flag whose upper
# half is *magic*, *count* at most. Returns their number, and the position after them.
def stamp_frames(
    frames: bytearray, end: int, count: int, first_id: int, data_bytes_max: int, magic: int, crc32: Crc32, /
) -> tuple[int, int]: ...

# Append to *commands* the requests of *chunk* from *position* on, as decoder.Plain: puts into branches and transaction
# commands, in their newest forms. *branch_key* parses a key, *verbs* are by their names.
def branch_requests(
    put: type[Put],
    transaction: type[TransactionCommand],
    branch_key: Callable[[str], BranchKey],
    verbs: dict[bytes, TransactionVerb],
    chunk: bytes,
    position: int,
    commands: list[Any],
    line_bytes_max: int,
    body_bytes_max: int,
    /,
) -> int: ...

# Append to *commands* the results of *chunk* from *position* on, as decoder.Plain.
def plain_results(
    result: type[Result],
    chunk: bytes,
    position: int,
    commands: list[Any],
    line_bytes_max: int,
    body_bytes_max: int,
    /,
) -> int: ...
