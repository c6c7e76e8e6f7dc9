"""All ways to move an offset in a table. Uses a database through `OffsetRows`."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores.errors import OffsetsMalformed, TakenMeanwhile
from meta_client.consumer.offset_stores.row_key import OffsetRowKey, row_key
from meta_client.consumer.offset_stores.rows import OffsetRows
from meta_client.consumer.offsets import OffsetEntry
from zk.tree.nodes import INT64_MAX, NO_MESSAGE_ID, Partition


def read_offset(rows: OffsetRows, key: OffsetRowKey) -> int | None:
    """Return the stored offset; None if there is none. Raises OffsetsMalformed."""
    found = rows.read(key)
    if found is None:
        return None
    if not isinstance(found, int) or not 0 <= found <= INT64_MAX:
        raise OffsetsMalformed(
            f"group {key.group_id} is said to be at {found!r} of {key.topic}/{key.partition}, which can't be: "
            "correct or delete its row"
        )
    return found


def load(rows: OffsetRows, group: str, topic: str, partition: Partition, *, is_made: bool) -> int | None:
    """Do as read_offset, after making the table if it is missing, unless it *is_made*."""
    if not is_made:
        rows.create()
    return read_offset(rows, row_key(topic, partition, group))


def store(rows: OffsetRows, group: str, entries: Sequence[OffsetEntry]) -> None:
    """Store *entries*; without is_reset an offset that would go back is ignored."""
    for entry in entries:
        key = row_key(entry.topic, entry.partition, group)
        at_most = INT64_MAX if entry.is_reset else entry.offset
        if not rows.move(key, entry.offset, entry.message_id, 0, at_most) and read_offset(rows, key) is None:
            rows.insert(key, entry.offset, entry.message_id)


def take(rows: OffsetRows, group: str, batch: Batch) -> list[ReceivedMessage]:
    """Mark *batch* as consumed and return its unconsumed messages: usually all, those after the stored offset, or none.
    Raises TakenMeanwhile, OffsetsMalformed."""
    key = row_key(batch.topic, batch.partition, group)
    last_id = batch.messages[-1].message_id if batch.messages else NO_MESSAGE_ID
    if rows.move(key, batch.next_offset, last_id, 0, batch.offset):
        return list(batch.messages)
    stored = read_offset(rows, key)
    if stored is None:
        rows.insert(key, batch.next_offset, last_id)
        return list(batch.messages)
    if stored >= batch.next_offset:
        return []
    if not rows.move(key, batch.next_offset, last_id, stored, stored):
        raise TakenMeanwhile(
            f"{batch.topic}/{batch.partition} at {batch.offset}: another transaction of group {group} took some of it "
            "at the same moment: let this error out, and the batch comes again"
        )
    return [message for message in batch.messages if message.offset >= stored]


def batches(messages: Iterable[ReceivedMessage]) -> list[Batch]:
    """Group *messages*, which a program may have sorted, into batches by partition. Sorted, so that two transactions
    over several partitions lock rows in the same order and never deadlock."""
    by_place: dict[tuple[str, Partition], list[ReceivedMessage]] = {}
    for message in sorted(messages, key=attrgetter("offset")):
        by_place.setdefault((message.topic, message.partition), []).append(message)
    return [Batch(*key, some[0].offset, some[-1].next_offset, some) for key, some in sorted(by_place.items())]
