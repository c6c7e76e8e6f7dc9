"""Audit lines of resets, at a broker that goes while a reset is planned."""

import pytest

from meta_client.client import Client
from meta_client.errors import NotConnected
from meta_client.operations.positions import Positions
from tests.meta_client.conftest import StartBroker
from zk.tree.nodes import Partition


def test_a_reset_that_no_broker_can_note_is_refused(client: Client, start_broker: StartBroker) -> None:
    """It would be done without a line."""
    broker = start_broker(0, {"orders": 1})
    told: list[str] = []
    positions = Positions(client, told.append)
    broker.peer.close()
    with pytest.raises(NotConnected, match="the brokers of orders/0-0 can't note the reset"):
        positions.tell_reset("billing", {("orders", Partition(0, 0)): (None, 25)})
    assert len(told) == 1
