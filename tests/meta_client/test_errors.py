"""Errors reach other processes, as those of a pool's workers must."""

import pickle
from collections.abc import Iterator

import pytest

from journal.errors import CorruptJournal, JournalError
from journal.records.xid import Xid
from meta_client.consumer.offset_stores.errors import TakenMeanwhile
from meta_client.coordinator.errors import HeuristicOutcome
from meta_client.coordinator.participants import BranchEnd
from meta_client.errors import ClientXaError, Destination, OwnershipLost, TryAgain
from meta_client.protocol.errors import MetaError, Moved
from meta_client.protocol.xa import XaCode
from meta_client.transactions.errors import CopiedTable
from zk.errors import MalformedNode, ZooKeeperError
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition


def _kinds(base: type[Exception]) -> Iterator[type[Exception]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


@pytest.mark.parametrize("base", [MetaError, ZooKeeperError, JournalError])
def test_every_kind_is_pickled_without_its_constructor(base: type[Exception]) -> None:
    for kind in _kinds(base):
        made = kind.__new__(kind, "what it says")
        there = pickle.loads(pickle.dumps(made))
        assert (type(there), str(there)) == (kind, "what it says")


@pytest.mark.parametrize(
    "error",
    [
        TryAgain("no room", Destination("orders", Partition(0, 1), BrokerUrl("host", 8123)), 503),
        OwnershipLost([("orders", Partition(0, 1))]),
        Moved(301, "0", "get orders/0-1", 17, is_filtered=False),
        ClientXaError(XaCode.XAER_PROTO, "not prepared", "COMMIT"),
        HeuristicOutcome(Xid(1, b"gtrid", b""), "a broker", "commit", "no", BranchEnd.ROLLED_BACK),
        CopiedTable("shop", "there", "here"),
        TakenMeanwhile("let it out"),
        MalformedNode("/meta/brokers/ids/0", b"?", "a URL"),
        CorruptJournal(5, None, "a checksum", "a.journal"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_text_and_facts(error: Exception) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))
