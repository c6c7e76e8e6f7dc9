"""A broker in memory: answers requests by the real one's rules, with its texts where clients depend on them.

It has no thread: replies are made by the requesting thread, or by the one whose put ends a wait.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from journal.records.header import Offset
from journal.records.producer_state import BatchSequence, SequenceTooOld, StoredBatch
from journal.records.states import BranchNotStarted, BranchState, VerbRefused, XaCode
from journal.records.xid import LocalKey
from meta_broker.testing.memory.branches import MemoryBranches, PartitionNumber
from meta_broker.testing.memory.partitions import MemoryPartition, MemoryStore
from meta_client.net.pending_reply import PendingReply
from meta_client.protocol.answers import PartitionOffsets, PutPlace, format_keys, format_offset_range, format_put_place
from meta_client.protocol.id_layout import BIRTH_MS, BROKER_BITS, SEQUENCE_BITS
from meta_client.protocol.messages import DATA_BYTES_MAX, encode_frame
from meta_client.protocol.requests import (
    OFFSET_END,
    PARTITION_ANY,
    Fetch,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Request,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)
from meta_client.protocol.responses import READ_FROM_MASTER, Data, Response, Result, Value
from meta_client.protocol.stamping import stamp_ids
from meta_client.protocol.status import Status
from meta_client.protocol.version import version_text
from meta_client.protocol.xa import format_xa_failure

EXTENSIONS = ("mput", "fetch", "offsets", "status")
IDS_ALIGNED = 1 << SEQUENCE_BITS  # ids of one batch agree in all but so many low bits

MemoryClock = Callable[[], float]


class Refusal(Exception):
    """Ends a request with *status* and the text."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class _Waiting:
    fetch: Fetch
    reply: PendingReply
    owner: object
    due: float


class MemoryBroker:
    """One broker's messages and branches. Any thread.

    *topics* are names or patterns with their numbers of partitions; *topic_used* is called at the first put to a name
    that a pattern covers. *clock* returns seconds.
    """

    def __init__(
        self, broker_id: int, topics: dict[str, int], clock: MemoryClock, topic_used: Callable[[str, int], None]
    ) -> None:
        self.broker_id = broker_id
        self._topics = topics
        self._clock = clock
        self._topic_used = topic_used
        self._lock = threading.RLock()  # guards everything below
        self._store = MemoryStore()
        self._branches = MemoryBranches(self._commit)
        self._used = {name for name in topics if "*" not in name}
        self._waiting: list[_Waiting] = []
        self._next_id = 0
        self._counter = 0  # of puts that leave the partition to the broker
        self._new: list[str] = []  # topics to announce

    def ask(self, request: Request, owner: object, reply: PendingReply) -> None:
        """Answer *request* from connection *owner*, now or once there is something, and the waiting fetches it
        wakes.
        """
        with self._lock:
            self._branches.expire(self._clock())
            answers = [(reply, answer)] if (answer := self._answer(request, owner, reply)) is not None else []
            answers += self._woken()
            new, self._new = self._new, []
        for topic in new:
            self._topic_used(topic, self._partitions(topic))
        for waiting, response in answers:  # without the lock: callbacks may send requests
            waiting.succeed(response)

    def gone(self, owner: object) -> None:
        """Clean up after a closed connection."""
        with self._lock:
            self._branches.gone(owner)
            self._waiting = [waiting for waiting in self._waiting if waiting.owner is not owner]

    def restart(self) -> None:
        """Keep only acknowledged messages and prepared branches, as a start after a crash does."""
        with self._lock:
            self._branches.lose_unprepared()

    def close_partition(self, topic: str, number: int, *, is_closed: bool = True) -> None:
        """Close or open the partition for puts and gets, as an operator does."""
        with self._lock:
            self._store.of(topic, number).is_closed = is_closed

    # -- requests; the lock is held -------------------------------------------------------------------------------

    def _answer(self, request: Request, owner: object, reply: PendingReply) -> Response | None:
        opaque = getattr(request, "opaque", 0)
        try:
            match request:
                case Put() | MultiPut():
                    return Result(Status.SUCCESS, self._put(request, owner), opaque)
                case Get():
                    return Value(self._read(request), opaque)
                case Fetch():
                    return self._fetch(request, owner, reply)
                case OffsetQuery():
                    return Result(Status.SUCCESS, b"%d" % self._known(request).nearest(request.offset), opaque)
                case Offsets():
                    known = self._store.find(request.topic, request.partition) or self._empty(request)
                    found = PartitionOffsets(0, known.end, known.at_time(request.time_ms))
                    return Result(Status.SUCCESS, format_offset_range(found), opaque)
                case TransactionCommand():
                    return self._transaction(request, owner)
                case Version():
                    return Result(Status.SUCCESS, version_text("memory", EXTENSIONS).encode(), opaque)
                case TopicCommand(verb=TopicVerb.SHOW):
                    return Result(Status.SUCCESS, b"partitions=%d" % self._partitions(request.topic), opaque)
            raise Refusal(Status.BAD_REQUEST, f"a broker in memory knows no {type(request).__name__}: take a real one")
        except Refusal as error:
            return Result(error.status, str(error).encode(), opaque)
        except VerbRefused as error:
            is_local = isinstance(error, BranchNotStarted) and isinstance(error.key, LocalKey)
            text = error.text if is_local else format_xa_failure(error.code, error.text)
            return Result(Status.INTERNAL_ERROR, text.encode(), opaque)

    def _put(self, put: Put | MultiPut, owner: object) -> bytes:
        number = put.partition
        if number == PARTITION_ANY and put.key is None and (count := self._partitions(put.topic)):
            self._counter += 1
            number = self._counter % count
        sequence = put.sequence if isinstance(put, MultiPut) else None
        if sequence is not None and (stored := self._stored(sequence, put.topic, number)) is not None:
            return format_put_place(PutPlace(stored.first_id, number, stored.base))
        self._check_place(put.topic, number)
        count = put.count if isinstance(put, MultiPut) else 1
        first_id, frames = self._stamped(put, count)
        if put.key is not None:
            self._branches.put(put.key, owner, (put.topic, number), frames)
            return format_put_place(PutPlace(first_id, number, None))
        base = self._append((put.topic, number), frames)
        if sequence is not None:
            note = StoredBatch(sequence.number, Offset(base), count, first_id)
            self._store.batches.note(sequence.producer, put.topic, number, note)
        return format_put_place(PutPlace(first_id, number, base))

    def _stored(self, sequence: BatchSequence, topic: str, number: int) -> StoredBatch | None:
        try:
            return self._store.batches.find(sequence, topic, number)
        except SequenceTooOld as error:
            raise Refusal(Status.INTERNAL_ERROR, str(error)) from error

    def _check_place(self, topic: str, number: int) -> None:
        if (found := self._store.find(topic, number)) is not None and found.is_closed:
            raise Refusal(Status.FORBIDDEN, f"partition[{self.broker_id}-{number}] has been closed")
        if not (count := self._partitions(topic)):
            raise Refusal(Status.INTERNAL_ERROR, f"The server do not accept topic {topic}")
        if not 0 <= number < count:
            raise Refusal(Status.INTERNAL_ERROR, f"wrong partition {number}")
        if topic not in self._used:
            self._used.add(topic)
            self._new.append(topic)

    def _stamped(self, put: Put | MultiPut, count: int) -> tuple[int, bytes]:
        first_id = max(self._next_id, _first_id_at(self._clock(), self.broker_id))
        if first_id % IDS_ALIGNED + count > IDS_ALIGNED:
            first_id += IDS_ALIGNED - first_id % IDS_ALIGNED
        self._next_id = first_id + count
        if isinstance(put, Put):
            return first_id, encode_frame(first_id, put.flag, put.body)
        frames = bytearray(put.body)
        try:
            stamp_ids(frames, count, first_id, DATA_BYTES_MAX)
        except ValueError as error:
            raise Refusal(Status.BAD_REQUEST, str(error)) from error
        return first_id, bytes(frames)

    def _append(self, place: PartitionNumber, frames: bytes) -> int:
        return self._store.of(*place).append(frames, int(self._clock() * 1000))

    def _commit(self, place: PartitionNumber, frames: bytes) -> None:
        self._append(place, frames)

    def _read(self, request: Get | Fetch) -> bytes:
        """Read the requested bytes. Raises Refusal if there are none, or not any more."""
        found = self._known(request) if isinstance(request, Get) else self._of(request)
        if request.bytes_max <= 0:
            raise Refusal(Status.BAD_REQUEST, f"Bad request,invalid max size:{request.bytes_max}")
        at_end = request.offset == found.end and isinstance(request, Fetch)
        if not 0 <= request.offset < found.end and not at_end:
            if request.offset == OFFSET_END or request.offset < 0:
                raise Refusal(Status.MOVED, str(found.end if request.offset > 0 else 0))
            raise Refusal(Status.NOT_FOUND, f"Could not find message at position {request.offset}")
        return found.read(request.offset, request.bytes_max)

    def _fetch(self, fetch: Fetch, owner: object, reply: PendingReply) -> Response | None:
        body = self._read(fetch)
        if len(body) < fetch.bytes_min and fetch.wait_ms > 0:
            self._waiting.append(_Waiting(fetch, reply, owner, self._clock() + fetch.wait_ms / 1000))
            return None
        return Data(body, self._of(fetch).end, READ_FROM_MASTER, fetch.opaque)

    def _woken(self) -> list[tuple[PendingReply, Response]]:
        """Return replies to fetches whose wait is over."""
        now, kept = self._clock(), []
        answers: list[tuple[PendingReply, Response]] = []
        for waiting in self._waiting:
            fetch = waiting.fetch
            if self._of(fetch).end - fetch.offset < fetch.bytes_min and waiting.due > now:
                kept.append(waiting)
            elif (answer := self._answer(replace(fetch, wait_ms=0), waiting.owner, waiting.reply)) is not None:
                answers.append((waiting.reply, answer))
        self._waiting = kept
        return answers

    def _known(self, request: Get | OffsetQuery) -> MemoryPartition:
        """Return a partition that was put to. Raises Refusal."""
        found = self._store.find(request.topic, request.partition)
        if found is None or not found.end:
            text = f"The topic `{request.topic}` in partition `{request.partition}` is not exists"
            raise Refusal(Status.NOT_FOUND, text)
        return self._open(found, request.partition)

    def _of(self, request: Fetch) -> MemoryPartition:
        """Return an offered partition, put to or not. Raises Refusal."""
        found = self._store.find(request.topic, request.partition) or self._empty(request)
        return self._open(found, request.partition)

    def _open(self, found: MemoryPartition, number: int) -> MemoryPartition:
        if found.is_closed:
            raise Refusal(Status.FORBIDDEN, f"Partition[{self.broker_id}-{number}] has been closed")
        return found

    def _empty(self, request: Fetch | Offsets) -> MemoryPartition:
        if not 0 <= request.partition < self._partitions(request.topic):
            text = f"The topic `{request.topic}` in partition `{request.partition}` is not exists"
            raise Refusal(Status.NOT_FOUND, text)
        return MemoryPartition()

    def _transaction(self, request: TransactionCommand, owner: object) -> Response | None:
        message = b""
        match request.verb:
            case TransactionVerb.BEGIN:
                self._branches.begin(request, owner, self._clock())
            case TransactionVerb.END:
                return None
            case TransactionVerb.PREPARE:
                state = self._branches.end(request, owner)
                message = b"%d" % (XaCode.XA_OK if state is BranchState.PREPARED else XaCode.XA_RDONLY)
            case TransactionVerb.COMMIT_ONE_PHASE | TransactionVerb.COMMIT_TWO_PHASE | TransactionVerb.ROLLBACK:
                self._branches.end(request, owner)
            case TransactionVerb.RECOVER:
                message = format_keys(self._branches.prepared(request.qualifier))
            case TransactionVerb.STATUS:
                message = self._branches.status(request.key, owner).encode()
            case TransactionVerb.FORGET:
                self._branches.find(request.key, owner)
                raise VerbRefused(XaCode.XAER_PROTO, "Cannot forget it: there is no heuristic decision.")
        return Result(Status.SUCCESS, message, request.opaque)

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0: it is not accepted."""
        if (count := self._topics.get(topic)) is not None:
            return count
        for pattern, count in self._topics.items():
            if "*" in pattern and re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), topic):
                return count
        return 0


def _first_id_at(now: float, broker_id: int) -> int:
    """Return a broker's first id at a time in Unix seconds; like a real one's, it contains both."""
    milliseconds = int(now * 1000) - BIRTH_MS
    return (milliseconds << BROKER_BITS | broker_id % (1 << BROKER_BITS)) << SEQUENCE_BITS
