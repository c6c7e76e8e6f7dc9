"""Text of the relay's row: what was written is read, and nothing else is."""

import pytest

from meta_client.outbox.batches import BatchBranch, branches_of, dump, load
from meta_client.outbox.errors import DamagedRow
from meta_client.transactions.names import TableName
from zk.tree.nodes import Partition

GTRID = f"{TableName('0' * 32).qualifier}-{'n' * 22}"
RESTS = "", ', "0", []', ", 0, [1]", ", true, []", ', 0, "ab"'


def test_branches_by_broker_are_read_as_written() -> None:
    places = [("b", Partition(1, 0)), ("a", Partition(1, 2)), ("a", Partition(0, 1)), ("a", Partition(0, 3))]
    branches = branches_of(GTRID, places)
    assert branches == [BatchBranch(GTRID, 0, ("a",)), BatchBranch(GTRID, 1, ("a", "b"))]
    assert load(dump(branches)) == tuple(branches)
    assert load("") == load("[]") == ()


@pytest.mark.parametrize(
    "text",
    [
        *("{", "1", "null", '"x"', "[1]", "[[]]", "[" * 100_000),
        *(f'[["{gtrid}"{rest}]]' for gtrid, rest in [("x", ", 0, []"), *((GTRID, each) for each in RESTS)]),
    ],
)
def test_anything_else_is_damage(text: str) -> None:
    with pytest.raises(DamagedRow, match="column batches of metaq_outbox_relay is damaged"):
        load(text)
