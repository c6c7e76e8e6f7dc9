"""Local transactions on the wire: the specification's trace, and every way they can go wrong."""

import threading

import pytest

from meta_client.client import Client
from meta_client.errors import (
    NoPartition,
    PartitionClosed,
    SendRefused,
    SendUnknown,
    TransactionFailed,
    TransactionMisuse,
    TransactionUnknown,
)
from meta_client.producer.producer import Producer
from meta_client.protocol.answers import NOT_REPLICATED
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.requests import Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.xa import XaCode, format_xa_failure
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import HANG_UP, Handler, Peer, ok, opaque_of


def willing(request: Request) -> bytes:
    return ok(request, b"100001 0 -1" if isinstance(request, Put) else b"")


def verbs(peer: Peer) -> list[str]:
    """Requests in order: verbs, and `put`."""
    return [
        request.verb.value if isinstance(request, TransactionCommand) else "put"
        for request in peer.received
        if not isinstance(request, Version)
    ]


def refuse(verb: TransactionVerb, answer: bytes) -> Handler:
    def handle(request: Request) -> bytes:
        if isinstance(request, TransactionCommand) and request.verb is verb:
            return answer if answer == HANG_UP else answer % opaque_of(request)
        return willing(request)

    return handle


@pytest.fixture
def producer(client: Client) -> Producer:
    return client.producer()


@pytest.mark.scenario("T04")
def test_the_trace_of_the_specification(producer: Producer, start_broker: StartBroker) -> None:
    peer = start_broker(0, {"meta-test": 1}, willing).peer
    with producer.transaction(timeout_s=9.2):
        result = producer.send("meta-test", b"hello")
    assert result.offset is None
    lines = [encode_request(request)[0].rpartition(b" ")[0].decode() for request in peer.received]
    key = f"TX:{producer.session_id}:1"
    assert lines == [
        "version",
        f"transaction {key} {producer.session_id} BEGIN 10",
        f"put meta-test 0 5 0 907060870 {key}",
        f"transaction {key} {producer.session_id} COMMIT_ONE_PHASE",
    ]


def test_a_time_limit_that_no_broker_takes_begins_nothing(producer: Producer) -> None:
    for timeout_s in (-1, 2**31, float("inf"), float("nan")):
        with pytest.raises(LocalProtocolError, match=f"timeout_s is {timeout_s}: give seconds"):
            producer.transaction(timeout_s)
    assert not producer.is_in_transaction


def test_it_stays_on_one_broker(producer: Producer, start_broker: StartBroker) -> None:
    peers = [start_broker(number, {"orders": 2, f"only-{number}": 1}, willing).peer for number in range(2)]
    with producer.transaction():
        brokers = {producer.send("orders", b"").partition.broker_id for _ in range(6)}
        other = 1 - brokers.copy().pop()
        with pytest.raises(NoPartition, match="does not have this topic"):
            producer.send(f"only-{other}", b"")
        with pytest.raises(NoPartition, match="the transaction is on broker"):
            producer.send("orders", b"", partition=f"{other}-0")
    assert len(brokers) == 1
    assert sorted(map(len, map(verbs, peers))) == [0, 8]


@pytest.mark.scenario("T04")
def test_an_exception_rolls_back(producer: Producer, start_broker: StartBroker) -> None:
    peer = start_broker(0, {"orders": 1}, willing).peer

    def fail_halfway() -> None:
        with producer.transaction():
            producer.send("orders", b"")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert verbs(peer) == ["BEGIN", "put", "ROLLBACK"]
    with producer.transaction() as empty:
        pass
    empty.rollback()
    assert len(peer.received) == 4


def test_a_refused_message_is_not_in_it_and_does_not_end_it(producer: Producer, start_broker: StartBroker) -> None:
    peer = start_broker(0, {"orders": 1}, willing).peer
    with producer.transaction():
        producer.send("orders", b"")
        peer.handler = lambda request: b"result 403 0 %d\r\n" % opaque_of(request)
        with pytest.raises(PartitionClosed):
            producer.send("orders", b"")
        peer.handler = willing
    assert verbs(peer) == ["BEGIN", "put", "put", "COMMIT_ONE_PHASE"]


def test_a_message_of_unknown_fate_makes_it_rollback_only(producer: Producer, start_broker: StartBroker) -> None:
    peer = start_broker(0, {"orders": 1}, willing).peer
    transaction = producer.transaction()
    producer.send("orders", b"")
    peer.handler = lambda request: None
    with pytest.raises(SendUnknown):
        producer.send("orders", b"", timeout_s=0.5)
    peer.handler = willing
    with pytest.raises(TransactionFailed, match="begin another one"):
        producer.send("orders", b"")
    with pytest.raises(TransactionFailed, match="was rolled back, because no answer came"):
        transaction.commit()
    assert verbs(peer) == ["BEGIN", "put", "put", "ROLLBACK"]


def test_a_commit_that_is_refused_failed(producer: Producer, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, refuse(TransactionVerb.COMMIT_ONE_PHASE, b"result 500 3 %d\r\nno!"))
    transaction = producer.transaction()
    producer.send("orders", b"")
    with pytest.raises(TransactionFailed, match=r"commit of transaction TX:.*: .*no!.* do its work again"):
        transaction.commit()
    with pytest.raises(TransactionMisuse, match="is over"):
        transaction.commit()


def test_a_commit_without_answer_is_unknown(producer: Producer, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, refuse(TransactionVerb.COMMIT_ONE_PHASE, HANG_UP))
    transaction = producer.transaction()
    producer.send("orders", b"")
    with pytest.raises(TransactionUnknown, match="may have acted"):
        transaction.commit()


def test_a_commit_that_no_slave_has_yet_may_be_seen_or_not(producer: Producer, start_broker: StartBroker) -> None:
    text = format_xa_failure(XaCode.XAER_RMFAIL, f"COMMIT_ONE_PHASE of TX:s:1: {NOT_REPLICATED}: within 5 s").encode()
    refusal = b"result 500 " + str(len(text)).encode() + b" %d\r\n" + text
    peer = start_broker(0, {"orders": 1}, refuse(TransactionVerb.COMMIT_ONE_PHASE, refusal)).peer
    transaction = producer.transaction()
    producer.send("orders", b"")
    with pytest.raises(TransactionUnknown, match=NOT_REPLICATED):
        transaction.commit()
    assert verbs(peer) == ["BEGIN", "put", "COMMIT_ONE_PHASE"]  # no ROLLBACK of what is done


@pytest.mark.scenario("T04")
def test_a_connection_that_broke_before_the_commit_took_it_along(producer: Producer, start_broker: StartBroker) -> None:
    peer = start_broker(0, {"orders": 1}, willing).peer
    transaction = producer.transaction()
    producer.send("orders", b"")
    gone = threading.Event()
    peer.hang_up()
    while not gone.wait(0.01):
        try:
            producer.send("orders", b"")
        except Exception:
            gone.set()
    with pytest.raises(TransactionFailed):
        transaction.commit()
    assert peer.accepted == 1  # never on another connection: there the key would be unknown


def test_begin_refused_leaves_nothing(producer: Producer, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, refuse(TransactionVerb.BEGIN, b"result 500 3 %d\r\nno!"))
    with producer.transaction(), pytest.raises(SendRefused, match="the transaction did not begin"):
        producer.send("orders", b"")


@pytest.mark.scenario("T04")
def test_one_at_a_time(producer: Producer, start_broker: StartBroker) -> None:
    peer = start_broker(0, {"orders": 1}, willing).peer
    with producer.transaction() as transaction:
        with pytest.raises(TransactionMisuse, match="is not over: finish it before another one"):
            producer.transaction()
        transaction.commit()
        with pytest.raises(TransactionFailed):
            producer.send("orders", b"")  # inside the block it would go out of the transaction, unnoticed
    producer.send("orders", b"")
    assert verbs(peer) == ["put"]


def test_it_is_entered_once(producer: Producer, start_broker: StartBroker) -> None:
    """The inner block would commit, and what follows it would be sent plainly."""
    peer = start_broker(0, {"orders": 1}, willing).peer
    with (  # noqa: PT012 - the block is what is tested
        pytest.raises(TransactionMisuse, match="has been entered"),
        producer.transaction() as transaction,
    ):
        producer.send("orders", b"a")
        with transaction:
            producer.send("orders", b"b")
    assert verbs(peer) == ["BEGIN", "put", "ROLLBACK"]
    with pytest.raises(TransactionMisuse, match="is over"), transaction:
        producer.send("orders", b"c")
    assert verbs(peer) == ["BEGIN", "put", "ROLLBACK"]
