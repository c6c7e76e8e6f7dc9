"""One attempt to have a batch stored: what is asked, what the answer means for the batch."""

from collections.abc import Collection
from typing import NamedTuple

from journal.batches import BatchSequence
from meta_client.batching.batch import Batch
from meta_client.calls import checked_result
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
from meta_client.pending_reply import PendingReply
from meta_client.protocol.answers import PutPlace, is_not_replicated, parse_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import MetaError, RemoteError
from meta_client.protocol.requests import MultiPut, Put


class Again(NamedTuple):
    """The batch may be stored or not: it is to be sent again, under its number, because of *error*."""

    error: Exception


Outcome = PutPlace | SendFailed | Again


def request_of(batch: Batch, producer: str, opaque: int) -> MultiPut:
    """The mput of *batch*, numbered among those of *producer*."""
    frames = batch.frames()
    sequence = BatchSequence(producer, batch.number)
    topic, partition = batch.topic, batch.partition.number
    return MultiPut(topic, partition, len(batch), crc31(frames), sequence, None, opaque, frames)


def put_of(batch: Batch, opaque: int) -> Put:
    """The put of the next message of *batch*, for a broker that takes one at a time.

    Such a broker may execute requests out of order: the next one goes when this one is answered.
    """
    flag, body = batch.next_message()
    return Put(batch.topic, batch.partition.number, flag, crc31(body), None, opaque, body)


def outcome_of(batch: Batch, reply: PendingReply) -> Outcome:
    """What *reply*, whose outcome is here, means for *batch*, or for the message of it that was sent alone."""
    try:
        result = checked_result(reply.wait(0), f"put {batch.topic}/{batch.partition}")
        return parse_put_place(result.message)
    except (ConnectionLost, ReplyTimeout) as error:
        return Again(error)
    except RemoteError as error:
        if is_not_replicated(error.text):
            return NotReplicated(error.text, where(batch))
        text = f"the broker refused: {error.text or 'it gave no reason'}"
        return SendRefused(" ".join(text.split()), where(batch), error.status)
    except MetaError as error:
        return SendUnknown(str(error), where(batch))


def unsendable(batch: Batch, extensions: Collection[str]) -> SendFailed | None:
    """Decide whether *batch* goes as one or singly to a broker with *extensions*; why it can't go at all.

    What has begun to go singly goes on so, and what may be stored under its number never goes without it.
    """
    if batch.goes_singly or "mput" in extensions:
        return None
    if batch.attempts:
        return SendUnknown("its broker, which may have stored it, would not know it again", where(batch))
    batch.goes_singly = True
    return None


def note_single(batch: Batch, outcome: Outcome) -> Again | None:
    """Note what became of the next message of *batch*, which was sent alone; why those behind it have to rest.

    One without an answer is not sent again: that could double it.
    """
    if not isinstance(outcome, Again):
        batch.note(outcome)
        return None
    batch.note(SendUnknown(str(outcome.error), where(batch)))
    return Again(ReplyTimeout("the message before it was not answered"))


def is_overdue(batch: Batch, now: float, timeout_s: float) -> bool:
    """Whether the answer to *batch*, or to its next message, has been waited for long enough.

    A message that goes singly has its own time: a broker may be slow with those before it without being silent.
    """
    limit = batch.sent_at + timeout_s
    return (limit if batch.goes_singly else min(limit, batch.deadline)) < now


def given_up(batch: Batch, error: Exception, now: float) -> SendFailed | None:
    """Why *batch*, which failed once more, is not tried again; None while it is."""
    if now < batch.deadline:
        return None
    kind = SendUnknown if batch.attempts else NoBroker
    return kind(f"delivery_timeout_s is over, given up after {batch.attempts} attempts: {error}", where(batch))


def closed(batch: Batch) -> SendFailed:
    """Why *batch*, or what is left of it, is not tried again once its client is closed."""
    unknown = SendUnknown("the client was closed before the broker had acknowledged it", where(batch))
    if batch.attempts and not batch.goes_singly:
        return unknown
    if batch.attempts:
        batch.note(unknown)
    return NoBroker("the client was closed before it was sent", where(batch))


def where(batch: Batch) -> Destination:
    return Destination(batch.topic, batch.partition)
