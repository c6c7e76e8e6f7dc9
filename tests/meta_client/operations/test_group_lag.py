"""Lag of a group, state by state."""

import pytest

from meta_client.operations.group_lag import Ends, Lag, LagState, lag_of
from meta_client.operations.positions import Range
from zk.groups.listing import PartitionProgress
from zk.tree.nodes import OffsetNode, Partition

KEY = "orders", Partition(0, 1)
HELD = Range(100, 500, None)


@pytest.mark.parametrize(
    ("stored", "held", "facts", "lag"),
    [
        (300, HELD, "", Lag(LagState.STORED, 200, 300)),
        (500, HELD, "", Lag(LagState.STORED, 0, None)),
        (50, HELD, "", Lag(LagState.BELOW_START, 400, 100)),
        (501, HELD, "", Lag(LagState.BEYOND_END)),
        (501, HELD, "slave", Lag(LagState.UNKNOWN)),
        (None, HELD, "", Lag(LagState.NO_OFFSET, 400, 100)),
        (300, None, "", Lag(LagState.UNKNOWN)),
        (300, Range(0, 0, None), "missing", Lag(LagState.NO_PARTITION)),
        (0, Range(0, 0, None), "missing", Lag(LagState.STORED, 0, None)),
        (None, Range(0, 0, None), "missing", Lag(LagState.NO_OFFSET, 0, None)),
    ],
)
def test_each_state(stored: int | None, held: Range | None, facts: str, lag: Lag) -> None:
    known = frozenset({KEY})
    ends = Ends(
        {} if held is None else {KEY: held},
        known if facts == "missing" else frozenset(),
        known if facts == "slave" else frozenset(),
        {},
        {},
        0,
    )
    assert lag_of(PartitionProgress(*KEY, stored=None if stored is None else OffsetNode(stored)), ends) == lag
    assert lag_of(PartitionProgress(*KEY, is_malformed=True), ends) == Lag(LagState.MALFORMED)
