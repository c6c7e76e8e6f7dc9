"""Rows of a master that waits for nobody, and partitions whose broker is away."""

import pytest

from meta_client.consumer.browsing import _checked
from meta_client.errors import BrokerAway
from meta_client.operations.broker_rows import parse_report, rows_of
from meta_client.operations.positions import Range
from meta_client.operations.reading import _known
from zk.brokers.cluster import BrokerEntry
from zk.brokers.replication import ReplicationNode
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

KEY = "orders", Partition(0, 1)
ENTRY = BrokerEntry(BrokerUrl("b", 8123), {})


@pytest.mark.parametrize(
    ("report", "node", "state", "in_sync"),
    [
        ("master mode sync in_sync - state refusing epoch 3", None, "refusing", "none"),
        ("master mode async in_sync - epoch 3", None, "async", None),
        (None, ReplicationNode(epoch=2, mode="sync", in_sync=()), "silent", "none"),
        (None, ReplicationNode(epoch=2, mode="sync", in_sync=(4, 5)), "silent", "4,5"),
        (None, None, "silent", None),
    ],
)
def test_a_masters_row(report: str | None, node: ReplicationNode | None, state: str, in_sync: str | None) -> None:
    row, *slaves = rows_of(0, ENTRY, None if report is None else parse_report(report), node)
    assert (row["state"], row["in_sync_set"], row["epoch"]) == (state, in_sync, 3 if report else node and node.epoch)
    assert [slave["state"] for slave in slaves] == ["not-connected"] * len(node.in_sync if node else ())


def test_a_partition_whose_broker_is_away_cannot_be_read() -> None:
    held = {KEY: Range(0, 1, None)}
    assert _known([KEY], held) is held
    for read in (lambda: _known([KEY], {}), lambda: _checked(*KEY, None)):
        with pytest.raises(BrokerAway, match=r"read orders/0-1: .*not up"):
            read()
