"""One attempt to have a batch stored: what is asked, what the answer means for the batch."""

from typing import NamedTuple

from journal.batches import BatchSequence
from meta_client.batching.batch import Batch
from meta_client.calls import checked_result, wait_result
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
from meta_client.opaques import next_opaque
from meta_client.pending_reply import PendingReply
from meta_client.protocol.answers import PutPlace, is_not_replicated, parse_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import MetaError, RemoteError
from meta_client.protocol.requests import MultiPut, Put
from meta_client.transport import Transport


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


def outcome_of(batch: Batch, reply: PendingReply) -> Outcome:
    """What *reply*, whose outcome is here, means for *batch*."""
    try:
        result = checked_result(reply.wait(0), f"mput {batch.topic}/{batch.partition}")
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


def sent_singly(connection: Transport, batch: Batch, timeout_s: float) -> list[PutPlace] | SendFailed:
    """Have *batch* stored by a broker that takes one message at a time; what became of it, after every answer."""
    what = f"put {batch.topic}/{batch.partition}"
    number = batch.partition.number
    try:
        replies = [
            connection.submit(Put(batch.topic, number, flag, crc31(body), None, next_opaque(), body))
            for flag, body in batch.messages()
        ]
        return [parse_put_place(wait_result(reply, timeout_s, what).message) for reply in replies]
    except RemoteError as error:
        return SendRefused(error.text or "the broker gave no reason", where(batch), error.status)
    except MetaError as error:
        return SendUnknown(str(error), where(batch))


def is_overdue(batch: Batch, now: float, timeout_s: float) -> bool:
    """Whether the answer to *batch* has been waited for long enough."""
    return min(batch.sent_at + timeout_s, batch.deadline) < now


def given_up(batch: Batch, error: Exception, now: float) -> SendFailed | None:
    """Why *batch*, which failed once more, is not tried again; None while it is."""
    if now < batch.deadline:
        return None
    kind = SendUnknown if batch.attempts else NoBroker
    return kind(f"delivery_timeout_s is over, given up after {batch.attempts} attempts: {error}", where(batch))


def closed(batch: Batch) -> SendFailed:
    """Why *batch* is not tried again once its client is closed."""
    if not batch.attempts:
        return NoBroker("the client was closed before it was sent", where(batch))
    return SendUnknown("the client was closed before the broker had acknowledged it", where(batch))


def where(batch: Batch) -> Destination:
    return Destination(batch.topic, batch.partition)
