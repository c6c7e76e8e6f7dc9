"""One attempt to store a batch: its request, and the outcome of the reply.

A batch that a metaq broker may have got is sent again under the same number until it is answered: it is stored once. To
a broker without `mput`, which may execute requests out of order, messages go one by one, each after the one before it
in its partition is answered. A message whose answer is lost is not sent again there: that could store it twice.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from journal.records.producer_state import BatchSequence
from meta_client.errors import (
    ConnectionLost,
    Destination,
    NoBroker,
    NotReplicated,
    ReplyTimeout,
    SendFailed,
    SendUnknown,
    TryAgain,
)
from meta_client.metadata.topology import TopicView
from meta_client.net.calls import checked_result
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.producer.batch import ProducerBatch
from meta_client.producer.results import put_failure
from meta_client.protocol.answers import PutPlace, parse_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import MetaError
from meta_client.protocol.frame_columns import encode_frames
from meta_client.protocol.requests import MultiPut, Put
from zk.tree.nodes import Partition


class SendAttempt(NamedTuple):
    """A request to submit on *connection*: a numbered batch, or one message for a broker without `mput`."""

    connection: Transport
    opaque: int
    topic: str
    partition: Partition
    sequence: BatchSequence | None  # None: one message
    flags: Sequence[int]
    bodies: Sequence[bytes]

    def request(self) -> Put | MultiPut:
        topic, number, opaque = self.topic, self.partition.number, self.opaque
        if self.sequence is None:
            (flag,), (body,) = self.flags, self.bodies
            return Put(topic, number, flag, crc31(body), None, opaque, body)
        frames = encode_frames(self.flags, self.bodies)
        return MultiPut(topic, number, len(self.bodies), crc31(frames), self.sequence, None, opaque, frames)


@dataclass(frozen=True, slots=True)  # and those below: as tuples they would be equal to one another
class Connected:
    """A broker is connected; it has these *extensions*."""

    connection: Transport
    extensions: Collection[str]


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """A broker could not be connected; with the present views of the topics that needed it."""

    error: Exception
    views: Mapping[str, TopicView | None]


@dataclass(frozen=True, slots=True)
class Retriable:
    """The batch may be stored or not: send it again under its number, because of *error*."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Deferred:
    """The broker takes nothing for now, or has the batch on the master alone: send it again under its number.
    *failure*: its outcome if its time is over."""

    failure: TryAgain | NotReplicated


AttemptOutcome = PutPlace | SendFailed | Retriable | Deferred


def outcome_of(batch: ProducerBatch, reply: PendingReply) -> AttemptOutcome:
    """Return the outcome of *reply*, which is done, for *batch* or for its message that was sent singly."""
    try:
        result = checked_result(reply.wait(0), f"put {batch.topic}/{batch.partition}")
        return parse_put_place(result.message)
    except (ConnectionLost, ReplyTimeout) as error:
        return Retriable(error)
    except MetaError as error:
        failure = put_failure(error, destination_of(batch))
        if isinstance(failure, TryAgain | NotReplicated) and not batch.sends_singly:
            return Deferred(failure)
        return failure


def unsendable(batch: ProducerBatch, *, takes_batches: bool) -> SendFailed | None:
    """Decide whether *batch* is sent whole or singly to a broker that has `mput`, or not; return the failure if it
    can't be sent.

    A batch begun singly stays so, and a batch that may be stored under its number is never sent without it.
    """
    if batch.sends_singly or takes_batches:
        return None
    if batch.attempts:
        return SendUnknown("its broker, which may have stored it, would not know it again", destination_of(batch))
    batch.sends_singly = True
    return None


def record_single(batch: ProducerBatch, outcome: AttemptOutcome) -> Retriable | None:
    """Record the outcome of a message that was sent singly; return the reason to back off, if any.

    A message without an answer is not sent again: a repetition could store it twice.
    """
    assert not isinstance(outcome, Deferred)
    if not isinstance(outcome, Retriable):
        batch.record(outcome)
        return None
    batch.record(SendUnknown(str(outcome.error), destination_of(batch)))
    return Retriable(ReplyTimeout("the message before it was not answered"))


def is_overdue(batch: ProducerBatch, now: float, limit: float) -> bool:
    """Return True if the answer to *batch*, or to its next message, which is due at *limit*, is overdue.

    A message sent singly has its own time limit: a broker may be slow with the messages before it without being silent.
    """
    return (limit if batch.sends_singly else min(limit, batch.deadline)) < now


def timeout_failure(batch: ProducerBatch, error: BaseException, now: float) -> SendFailed | None:
    """Return the failure of *batch* if its delivery time is over, else None."""
    if now < batch.deadline:
        return None
    if isinstance(batch.refusal, NotReplicated) or (batch.refusal is not None and not batch.attempts):
        return batch.refusal
    kind = SendUnknown if batch.attempts else NoBroker
    return kind(f"delivery_timeout_s is over, given up after {batch.attempts} attempts: {error}", destination_of(batch))


def closed_failure(batch: ProducerBatch) -> SendFailed:
    """Return the failure of *batch*, or of its rest, when its client is closed."""
    unknown = SendUnknown("the client was closed before the broker had acknowledged it", destination_of(batch))
    if batch.attempts and not batch.sends_singly:
        return unknown
    if batch.attempts:
        batch.record(unknown)
    return NoBroker("the client was closed before it was sent", destination_of(batch))


def destination_of(batch: ProducerBatch) -> Destination:
    return Destination(batch.topic, batch.partition)
