"""Local transactions and XA through a real broker, killed and restarted on the way."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import SendRefused, TransactionFailed
from meta_client.producer.producer import Producer
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode
from tests.fixtures.broker import BrokerProcess
from tests.integration.conftest import Inbox, OpenClient, wait_until


def consumed(client: Client, *topics: str, group: str = "reader") -> list[bytes]:
    """Return the messages a group has seen once it reached the end."""
    inbox = Inbox()
    with client.consumer(group) as consumer:
        for topic in topics:
            consumer.subscribe(topic, inbox)
        consumer.start()
        wait_until(consumer.is_caught_up)
    return sorted(inbox.payloads.elements())


def consumed_by_ten_groups(client: Client, *topics: str) -> list[list[bytes]]:
    """Like consumed, for ten groups at the same time."""
    with ThreadPoolExecutor(10) as threads:
        return list(threads.map(lambda number: consumed(client, *topics, group=f"reader-{number}"), range(10)))


def by_ten_threads(work: Callable[[int], None]) -> None:
    """Call *work* with 0 to 9, each on a thread of its own; whatever one raises, this raises."""
    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(work, range(10))) == [None] * 10


@pytest.mark.scenario("T01")
def test_ten_producers_of_local_transactions_reach_ten_groups(broker: BrokerProcess, client: Client) -> None:
    """T01 of the acceptance list."""

    def work(worker: int) -> None:
        producer = client.producer()
        for number in range(5):
            with producer.transaction():
                producer.send("orders", b"%d-%d" % (worker, number))

    by_ten_threads(work)
    expected = [b"%d-%d" % (worker, number) for worker in range(10) for number in range(5)]
    assert consumed_by_ten_groups(client, "orders") == [expected] * 10
    del broker


def test_a_local_transaction_is_seen_whole_or_not_at_all(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    with producer.transaction():
        for number in range(5):
            producer.send("orders", b"kept-%d" % number)
        producer.send("invoices", b"kept-5")
        assert consumed(client, "orders", "invoices") == []
    dropped = producer.transaction()
    producer.send("orders", b"dropped")
    dropped.rollback()
    assert consumed(client, "orders", "invoices") == [b"kept-%d" % number for number in range(6)]
    del broker


def test_a_local_transaction_ends_with_its_connection(
    broker: BrokerProcess, client: Client, open_client: OpenClient
) -> None:
    doomed = open_client()
    producer = doomed.producer()
    transaction = producer.transaction()
    producer.send("orders", b"never")
    doomed.connections.close()
    with pytest.raises(TransactionFailed):
        transaction.commit()
    assert consumed(client, "orders") == []
    del broker


def test_prepared_branches_survive_a_killed_broker(
    broker: BrokerProcess, client: Client, open_client: OpenClient
) -> None:
    first, second, unprepared = (Xid.of(f"order-{number}", "metaq") for number in range(3))
    producers = [client.producer(qualifier="shop") for _ in range(3)]
    for producer, xid in zip(producers, (first, second, unprepared), strict=True):
        producer.tpc_begin(xid, topics=("orders", "invoices"))
        producer.send("orders", xid.gtrid)
        producer.send("invoices", xid.gtrid)
    assert producers[0].tpc_prepare() is True
    assert producers[1].tpc_prepare() is True
    broker.kill()
    with pytest.raises(XaError) as caught:
        producers[0].tpc_commit()
    assert caught.value.code == XaCode.XAER_RMFAIL
    broker.start()
    stranger = open_client().producer(qualifier="other")
    wait_until(lambda: is_complete(stranger))
    assert stranger.tpc_recover() == []
    recovering = open_client().producer(qualifier="shop")
    assert sorted(recovering.tpc_recover()) == [first, second]
    assert consumed(client, "orders", "invoices") == []
    recovering.tpc_commit(first)
    recovering.tpc_rollback(second)
    assert recovering.tpc_recover() == []
    assert consumed(client, "orders", "invoices") == [b"order-0", b"order-0"]
    with pytest.raises(XaError) as gone:
        recovering.tpc_commit(second)
    assert gone.value.code == XaCode.XAER_NOTA
    with pytest.raises(XaError) as presumed_aborted:
        producers[2].tpc_prepare()
    assert presumed_aborted.value.code == XaCode.XAER_NOTA


def is_complete(producer: Producer) -> bool:
    return not producer.tpc_list().failures


def test_an_empty_branch_is_read_only(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    producer.tpc_begin(Xid.of("empty", ""), topics=("orders",))
    assert producer.tpc_prepare() is False
    assert producer.tpc_recover() == []
    del broker


@pytest.mark.scenario("T03")
def test_a_branch_that_timed_out_is_gone(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    xid = Xid.of("late", "")
    producer.tpc_begin(xid, topics=("orders",), timeout_s=5)  # time enough to send on a busy machine
    producer.send("orders", b"late")
    wait_until(lambda: producer.tpc_status(xid, 0) is BranchStatus.ROLLED_BACK)
    with pytest.raises(SendRefused, match="has not been started"):
        producer.send("orders", b"later")
    with pytest.raises(XaError) as caught:
        producer.tpc_prepare()
    assert caught.value.code == XaCode.XAER_NOTA
    assert producer.tpc_branch is None
    assert consumed(client, "orders") == []
    del broker


def test_one_phase(broker: BrokerProcess, client: Client) -> None:
    producer = client.producer()
    producer.tpc_begin(Xid.of("one", ""), topics=("orders",))
    producer.send("orders", b"one phase", attribute="a")
    producer.tpc_commit()
    assert consumed(client, "orders") == [b"one phase"]
    del broker


@pytest.mark.scenario("T02")
def test_ten_producers_of_one_client_commit_every_other_branch(broker: BrokerProcess, client: Client) -> None:
    """T02 of the acceptance list: what was rolled back is seen by nobody, the rest by everybody, once."""

    def work(worker: int) -> None:
        producer = client.producer(qualifier="shop")
        for number in range(10):
            producer.tpc_begin(Xid.of(f"{worker}-{number}", ""), topics=("orders", "invoices"))
            for topic in ("orders", "invoices", "orders"):
                producer.send(topic, b"%d-%d" % (worker, number))
            if number % 2 == 0:
                producer.tpc_rollback()
            elif producer.tpc_prepare():
                producer.tpc_commit()

    by_ten_threads(work)
    expected = sorted(
        b"%d-%d" % (worker, number) for worker in range(10) for number in range(1, 10, 2) for _ in range(3)
    )
    assert consumed_by_ten_groups(client, "orders", "invoices") == [expected] * 10
    assert client.producer(qualifier="shop").tpc_recover() == []
    del broker


def test_the_outcome_of_a_branch_finished_elsewhere_is_known(
    broker: BrokerProcess, client: Client, open_client: OpenClient
) -> None:
    """The broker answers only that there is no such branch; its record of outcomes gives the rest, even after a
    crash."""
    names = [Xid.of(f"order-{number}", "metaq") for number in range(4)]
    owners = [client.producer("shop") for _ in names]
    for owner, xid in zip(owners, names, strict=True):
        owner.tpc_begin(xid, ["orders"])
        owner.send("orders", xid.gtrid)
        owner.tpc_prepare()
    operator = open_client().producer("shop")
    for xid in names[:2]:
        operator.tpc_commit(xid)
    for xid in names[2:]:
        operator.tpc_rollback(xid)
    broker.kill()
    broker.start()
    wait_until(lambda: operator.tpc_list().failures == {})
    owners[0].tpc_commit()  # as wanted: an answer that got lost looks the same
    with pytest.raises(XaError, match="has been committed before, not by this producer") as caught:
        owners[1].tpc_rollback()
    assert caught.value.code == XaCode.XA_HEURCOM
    with pytest.raises(XaError, match="has been rolled back before, not by this producer") as caught:
        owners[2].tpc_commit()
    assert caught.value.code == XaCode.XA_HEURRB
    owners[3].tpc_rollback()
    assert [owner.tpc_branch for owner in owners] == [None] * 4
    assert [operator.tpc_status(xid, 0) for xid in (*names, Xid.of("never", "metaq"))] == [
        *(BranchStatus.COMMITTED, BranchStatus.COMMITTED),
        *(BranchStatus.ROLLED_BACK, BranchStatus.ROLLED_BACK, BranchStatus.UNKNOWN),
    ]
    assert consumed(client, "orders") == [b"order-0", b"order-1"]
