"""Which replica a reader should ask next, and how far a slave is behind."""

from collections.abc import Sequence
from zlib import crc32

from meta_broker.processors.context import Context
from meta_broker.store.partition_index import Place
from meta_client.protocol.encoder import data_line
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import READ_FROM_MASTER

# A slave sends a reader back once it is so much nearer to the end than what sent it there: a reader at the border would
# go to and fro.
NEAR: float = 0.5


def answer_line(context: Context, fetch: Fetch, size: int, log_end: int, places: Sequence[Place] = ()) -> bytes:
    """What goes before the *size* bytes of *places* that answer *fetch*."""
    behind = context.slave.behind() if context.slave is not None else None
    return data_line(size, log_end, read_from(context, fetch, places), fetch.opaque, behind)


def read_from(context: Context, fetch: Fetch, places: Sequence[Place]) -> str:
    """Whom to ask next, as responses.READ_FROM, for who is given *places*, none at the end of the partition.

    A master names a slave to who reads what is further behind than memory reaches, so that its disk is left to who
    writes. The same one each time, and partitions are spread over all that have got so far.
    """
    if not places:
        return READ_FROM_MASTER
    lsn = places[-1].lsn
    distance, far = context.store.journal.end - lsn, context.store.horizon.distance_max
    if context.slave is not None:
        return f"s{context.slave.slave_id}" if distance > far * NEAR else READ_FROM_MASTER
    if distance <= far:
        return READ_FROM_MASTER
    able = [replica.slave_id for replica in context.replicas() if replica.flushed > lsn]
    if not able:
        return READ_FROM_MASTER
    return f"s{able[crc32(b'%b-%d' % (fetch.topic.encode(), fetch.partition)) % len(able)]}"
