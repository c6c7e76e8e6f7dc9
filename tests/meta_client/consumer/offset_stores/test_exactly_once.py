"""Each message takes effect once and none is skipped, delivered in any order, committed or not.

Random deliveries against a plain account of what took effect, on a real SQLite: batches that overlap, come again, are
rolled back, or belong to a member that was given up; and resets in between.
"""

import sqlite3

from hypothesis import given, settings
from hypothesis import strategies as st

from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores.moves import read_offset, store, take
from meta_client.consumer.offset_stores.row_key import TABLE, row_key
from meta_client.consumer.offset_stores.rows import OffsetRows
from meta_client.consumer.offsets import OffsetEntry
from meta_client.sql.dbapi_executor import DbapiExecutor
from tests.fixtures.thoroughness import examples
from zk.tree.nodes import Partition

PLACE = Partition(0, 0)
FRAME = 25
TOTAL = 40

# A delivery: where a member stands, how many messages it gets, and whether its transaction commits.
DELIVERIES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 7), st.booleans()), max_size=60)
RESETS = st.dictionaries(st.integers(0, 59), st.integers(0, TOTAL - 1), max_size=3)


def batch(first: int, last: int) -> Batch:
    messages = [
        ReceivedMessage("orders", PLACE, number * FRAME, number, 0, None, b"", (number + 1) * FRAME)
        for number in range(first, last)
    ]
    return Batch("orders", PLACE, first * FRAME, last * FRAME, messages)


@settings(max_examples=examples(150), deadline=None)
@given(DELIVERIES, RESETS)
def test_each_message_takes_effect_once(deliveries: list[tuple[int, int, bool]], resets: dict[int, int]) -> None:
    connection = sqlite3.connect(":memory:")
    rows = OffsetRows(DbapiExecutor(connection), TABLE)
    rows.create()
    connection.execute("CREATE TABLE effects (number int)")
    connection.commit()
    members = [0, 0]  # where two members stand that both believe to own the partition
    expected: list[int] = []

    def deliver(first: int, count: int, *, commits: bool) -> bool:
        last = min(first + count, TOTAL)
        for message in take(rows, "billing", batch(first, last)):
            connection.execute("INSERT INTO effects VALUES (?)", (message.message_id,))
        if commits:
            connection.commit()
        else:
            connection.rollback()
        return commits

    for step, (member, count, commits) in enumerate(deliveries):
        if (to := resets.get(step)) is not None:
            store(rows, "billing", [OffsetEntry("orders", PLACE, to * FRAME, is_reset=True)])
            connection.commit()
            members = [to, to]  # nothing is delivered before the reset is stored
            expected = [number for (number,) in connection.execute("SELECT number FROM effects")]
        if members[member] < TOTAL and deliver(members[member], count, commits=commits):
            members[member] = min(members[member] + count, TOTAL)
    at = read_offset(rows, row_key("orders", PLACE, "billing")) or 0
    effects = [number for (number,) in connection.execute("SELECT number FROM effects")]
    since = effects[len(expected) :]
    last_reset = max((step for step in resets if step < len(deliveries)), default=None)
    begin = 0 if last_reset is None else resets[last_reset]
    assert since == list(range(begin, at // FRAME))
    connection.close()
