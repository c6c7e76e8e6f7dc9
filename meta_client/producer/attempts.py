"""One attempt to store a batch: its request, and the outcome of the reply."""

from collections.abc import Collection
from typing import NamedTuple

from journal.records.producer_state import BatchSequence
from meta_client.errors import (
    ConnectionLost,
    Destination,
    NoBroker,
    NotReplicated,
    ReplyTimeout,
    SendFailed,
    SendRefused,
    SendUnknown,
)
from meta_client.net.calls import checked_result
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.batch import ProducerBatch
from meta_client.protocol.answers import PutPlace, is_not_replicated, parse_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import MetaError, RemoteError
from meta_client.protocol.requests import MultiPut, Put


class Retriable(NamedTuple):
    """The batch may be stored or not: send it again under its number, because of *error*."""

    error: Exception


Outcome = PutPlace | SendFailed | Retriable


def batch_request(batch: ProducerBatch, producer: str, opaque: int) -> MultiPut:
    """Return the mput of *batch*, numbered in the sequence of *producer*."""
    frames = batch.frames()
    sequence = BatchSequence(producer, batch.number)
    topic, partition = batch.topic, batch.partition.number
    return MultiPut(topic, partition, len(batch), crc31(frames), sequence, None, opaque, frames)


def put_request(batch: ProducerBatch, opaque: int) -> Put:
    """Return the put of the next message of *batch*, for a broker without `mput`.

    Such a broker may execute requests out of order: send the next one after this one is answered.
    """
    flag, body = batch.next_message()
    return Put(batch.topic, batch.partition.number, flag, crc31(body), None, opaque, body)


def outcome_of(batch: ProducerBatch, reply: PendingReply) -> Outcome:
    """Return the outcome of *reply*, which is done, for *batch* or for its message that was sent singly."""
    try:
        result = checked_result(reply.wait(0), f"put {batch.topic}/{batch.partition}")
        return parse_put_place(result.message)
    except (ConnectionLost, ReplyTimeout) as error:
        return Retriable(error)
    except RemoteError as error:
        if is_not_replicated(error.text):
            return NotReplicated(error.text, destination_of(batch))
        text = f"the broker refused: {error.text or 'it gave no reason'}"
        return SendRefused(" ".join(text.split()), destination_of(batch), error.status)
    except MetaError as error:
        return SendUnknown(str(error), destination_of(batch))


def unsendable(batch: ProducerBatch, extensions: Collection[str]) -> SendFailed | None:
    """Decide whether *batch* is sent whole or singly to a broker with *extensions*; return the failure if it can't be
    sent.

    A batch begun singly stays so, and a batch that may be stored under its number is never sent without it.
    """
    if batch.sends_singly or "mput" in extensions:
        return None
    if batch.attempts:
        return SendUnknown("its broker, which may have stored it, would not know it again", destination_of(batch))
    batch.sends_singly = True
    return None


def record_single(batch: ProducerBatch, outcome: Outcome) -> Retriable | None:
    """Record the outcome of a message that was sent singly; return the reason to back off, if any.

    A message without an answer is not sent again: a repetition could store it twice.
    """
    if not isinstance(outcome, Retriable):
        batch.record(outcome)
        return None
    batch.record(SendUnknown(str(outcome.error), destination_of(batch)))
    return Retriable(ReplyTimeout("the message before it was not answered"))


def is_overdue(batch: ProducerBatch, now: float, timeout_s: float) -> bool:
    """Return True if the answer to *batch*, or to its next message, is overdue.

    A message sent singly has its own time limit: a broker may be slow with the messages before it without being silent.
    """
    limit = batch.sent_at + timeout_s
    return (limit if batch.sends_singly else min(limit, batch.deadline)) < now


def timeout_failure(batch: ProducerBatch, error: Exception, now: float) -> SendFailed | None:
    """Return the failure of *batch* if its delivery time is over, else None."""
    if now < batch.deadline:
        return None
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
