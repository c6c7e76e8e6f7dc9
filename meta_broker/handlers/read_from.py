"""Chooses the replica a reader should fetch from next, and reports a slave's lag."""

from collections.abc import Sequence
from zlib import crc32

from meta_broker.handlers.context import Context
from meta_broker.store.partition_index import JournalSlice
from meta_client.protocol.encoder import data_line
from meta_client.protocol.requests import Fetch
from meta_client.protocol.responses import READ_FROM_MASTER

# A slave sends a reader back below this part of the distance at which the master sends it away: hysteresis.
LEAVE_RATIO: float = 0.5


def answer_line(context: Context, fetch: Fetch, size: int, log_end: int, places: Sequence[JournalSlice] = ()) -> bytes:
    """Return the header for the *size* bytes of *places* that answer *fetch*."""
    behind = context.slave.lag() if context.slave is not None else None
    return data_line(size, log_end, read_from(context, fetch, places), fetch.opaque, behind)


def read_from(context: Context, fetch: Fetch, places: Sequence[JournalSlice]) -> str:
    """Return the replica to fetch from next, as responses.READ_FROM; no *places*: at the end of the partition.

    A master names a slave to readers that are further behind than memory reaches, so that its disk is left to writes:
    the same slave each time, with partitions spread over all slaves that have got so far.
    """
    if not places:
        return READ_FROM_MASTER
    lsn = places[-1].lsn
    distance, hot_bytes = context.store.journal.end - lsn, context.store.page_cache.hot_bytes
    if context.slave is not None:
        return f"s{context.slave.slave_id}" if distance > hot_bytes * LEAVE_RATIO else READ_FROM_MASTER
    if distance <= hot_bytes:
        return READ_FROM_MASTER
    able = [replica.slave_id for replica in context.replicas() if replica.flushed > lsn]
    if not able:
        return READ_FROM_MASTER
    return f"s{able[crc32(b'%b-%d' % (fetch.topic.encode(), fetch.partition)) % len(able)]}"
