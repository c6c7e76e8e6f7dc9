"""XA on the wire: what is asked of which broker, and which code each answer or silence becomes."""

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import ClientXaError, NoPartition, SendUnknown, TransactionMisuse
from meta_client.producer.producer import Producer
from meta_client.producer.xa_branch import BranchPhase
from meta_client.producer.xa_verbs import Listing
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import LocalProtocolError, XaError
from meta_client.protocol.requests import Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.xa import XaCode
from tests.meta_client.conftest import ScriptedBroker, StartBroker
from tests.meta_client.peer import HANG_UP, Handler, Peer, ok, opaque_of

XID = Xid(100, b"g1", b"b1")
NOTA = b"XAException:code=-4,msg=XA transaction 'XID:100:6731:6231:uq' has not been started."


def willing(request: Request) -> bytes:
    match request:
        case Put():
            return ok(request, b"100002 0 -1")
        case TransactionCommand(verb=TransactionVerb.PREPARE):
            return ok(request, b"0")
    return ok(request)


def on(verb: TransactionVerb, text: bytes | None, status: int = 500) -> Handler:
    """Return a handler that succeeds except for one verb, which gets *text*; None: no answer."""

    def handle(request: Request) -> bytes | None:
        if isinstance(request, TransactionCommand) and request.verb is verb:
            if text is None or text == HANG_UP:
                return text
            return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)
        return willing(request)

    return handle


def recovering(*keys: bytes) -> Handler:
    return on(TransactionVerb.RECOVER, b"\r\n".join(keys), 200)


def asked(peer: Peer) -> list[Request]:
    """Return a producer's requests, except the initial one for the version."""
    return [request for request in peer.received if not isinstance(request, Version)]


def verbs(peer: Peer) -> list[str]:
    return [request.verb.value if isinstance(request, TransactionCommand) else "put" for request in asked(peer)]


@pytest.fixture
def producer(client: Client) -> Producer:
    return client.producer(qualifier="uq")


@pytest.fixture
def broker(start_broker: StartBroker) -> ScriptedBroker:
    return start_broker(0, {"meta-test": 1}, willing)


def begun(producer: Producer) -> Producer:
    producer.tpc_begin(XID, topics=("meta-test",))
    producer.send("meta-test", b"hello")
    return producer


@pytest.mark.scenario("T05")
def test_the_trace_of_the_specification(producer: Producer, broker: ScriptedBroker) -> None:
    producer.tpc_begin(XID, topics=("meta-test",), timeout_s=29.5)
    assert producer.send("meta-test", b"hello").offset is None
    assert producer.tpc_prepare() is True
    assert producer.tpc_branch is not None
    producer.tpc_commit()
    assert producer.tpc_branch is None
    key, session = "XID:100:6731:6231:uq", producer.session_id
    lines = [encode_request(request)[0].rpartition(b" ")[0].decode() for request in asked(broker.peer)]
    assert lines == [
        f"transaction {key} {session} BEGIN 30 uq",
        f"put meta-test 0 5 0 907060870 {key}",
        f"transaction {key} {session} PREPARE uq",
        f"transaction {key} {session} COMMIT_TWO_PHASE uq",
    ]


def test_one_phase_and_rollback(producer: Producer, broker: ScriptedBroker) -> None:
    begun(producer).tpc_commit()
    begun(producer).tpc_rollback()
    begun(producer).tpc_prepare()
    producer.tpc_rollback(XID)
    producer.send("meta-test", b"")
    assert verbs(broker.peer) == (
        ["BEGIN", "put", "COMMIT_ONE_PHASE", "BEGIN", "put", "ROLLBACK", "BEGIN", "put", "PREPARE", "ROLLBACK", "put"]
    )


def test_a_read_only_branch_is_over(producer: Producer, broker: ScriptedBroker) -> None:
    broker.peer.handler = on(TransactionVerb.PREPARE, b"3", 200)
    producer.tpc_begin(XID, topics=("meta-test",))
    assert producer.tpc_prepare() is False
    assert producer.tpc_branch is None
    with pytest.raises(XaError, match="no branch was begun"):
        producer.tpc_commit()


def test_it_begins_where_all_topics_are(producer: Producer, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, willing)
    start_broker(1, {"orders": 1, "invoices": 1}, willing)
    start_broker(2, {"invoices": 1}, willing)
    for _ in range(5):
        producer.tpc_begin(XID, topics=("orders", "invoices"))
        assert producer.tpc_branch is not None
        assert producer.tpc_branch.broker_id == 1
        producer.send("orders", b"")
        producer.send("invoices", b"")
        with pytest.raises(NoPartition):
            producer.send("orders", b"", partition="0-0")
        producer.tpc_rollback()
    with pytest.raises(XaError, match=r"no broker that is up has all of the topics \['nothing', 'orders'\]") as caught:
        producer.tpc_begin(XID, topics=("orders", "nothing"))
    assert caught.value.code == XaCode.XAER_RMFAIL


def test_a_broker_that_is_down_is_passed_over_at_begin(producer: Producer, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, willing).peer.close()
    start_broker(1, {"orders": 1}, willing)
    for _ in range(4):
        producer.tpc_begin(XID, topics=("orders",))
        assert producer.tpc_branch is not None
        assert producer.tpc_branch.broker_id == 1
        producer.tpc_rollback()


@pytest.mark.scenario("T08")
@pytest.mark.parametrize(
    ("text", "code", "is_over"),
    [
        (NOTA, XaCode.XAER_NOTA, True),
        (b"XAException:code=7,msg=committed by hand", XaCode.XA_HEURCOM, True),
        (b"XAException:code=-6,msg=Cannot do 2 phase commit", XaCode.XAER_PROTO, False),
        (b"disk trouble", XaCode.XAER_RMERR, False),
        (b"", XaCode.XAER_RMFAIL, False),
        (HANG_UP, XaCode.XAER_RMFAIL, False),
    ],
)
def test_what_a_refused_commit_means(
    producer: Producer, broker: ScriptedBroker, text: bytes, code: XaCode, is_over: bool
) -> None:
    begun(producer).tpc_prepare()
    broker.peer.handler = on(TransactionVerb.COMMIT_TWO_PHASE, text)
    with pytest.raises(XaError, match=r"COMMIT_TWO_PHASE 100_ZzE=_YjE= on broker 0: ") as caught:
        producer.tpc_commit()
    assert caught.value.code == code
    assert (producer.tpc_branch is None) is is_over
    if not is_over:
        broker.peer.handler = willing
        producer.tpc_commit()  # again: it may or may not have happened


@pytest.mark.scenario("T08")
@pytest.mark.parametrize(
    ("verb", "code"),
    [(TransactionVerb.PREPARE, XaCode.XA_RBTIMEOUT), (TransactionVerb.COMMIT_ONE_PHASE, XaCode.XAER_RMFAIL)],
)
def test_what_silence_means(
    producer: Producer,
    broker: ScriptedBroker,
    monkeypatch: pytest.MonkeyPatch,
    verb: TransactionVerb,
    code: XaCode,
) -> None:
    begun(producer)
    broker.peer.handler = on(verb, None)
    with monkeypatch.context() as patch:
        for module in ("xa", "xa_verbs"):
            patch.setattr(f"meta_client.producer.{module}.REQUEST_TIMEOUT_S", 0.5)
        with pytest.raises(ClientXaError, match="no answer within") as caught:
            producer.tpc_prepare() if verb is TransactionVerb.PREPARE else producer.tpc_commit()
    assert caught.value.code == code
    producer.tpc_rollback()
    assert verbs(broker.peer)[-1] == "ROLLBACK"


def test_a_message_of_unknown_fate_leaves_only_rollback(producer: Producer, broker: ScriptedBroker) -> None:
    begun(producer)
    broker.peer.handler = lambda request: None
    with pytest.raises(SendUnknown):
        producer.send("meta-test", b"", timeout_s=0.5)
    broker.peer.handler = willing
    assert producer.tpc_branch is not None
    assert producer.tpc_branch.state is BranchPhase.ROLLBACK_ONLY
    with pytest.raises(XaError, match="to be rolled back"):
        producer.tpc_prepare()
    with pytest.raises(XaError, match="rolled back, because no answer came") as caught:
        producer.tpc_commit()
    assert caught.value.code == XaCode.XA_RBOTHER
    assert verbs(broker.peer) == ["BEGIN", "put", "put", "ROLLBACK"]


def test_what_can_never_begin(producer: Producer, broker: ScriptedBroker) -> None:
    with pytest.raises(TypeError, match="topics is the text 'orders': give a tuple of names"):
        producer.tpc_begin(XID, topics="orders")
    with pytest.raises(TypeError, match=r"a branch is named by an Xid, not str: Xid.of\("):
        producer.tpc_begin("42", ("orders",))  # type: ignore[arg-type]  # as users without types may
    for timeout_s in (-1, 2**31, float("inf"), float("nan")):
        with pytest.raises(LocalProtocolError, match=f"timeout_s is {timeout_s}: give seconds"):
            producer.tpc_begin(XID, topics=("orders",), timeout_s=timeout_s)
    for timeout_s in (-1, float("nan")):
        with pytest.raises(ValueError, match=f"timeout_s is {timeout_s}: give seconds, 0 or more"):
            producer.send("orders", b"x", timeout_s=timeout_s)
        with pytest.raises(ValueError, match=f"timeout_s is {timeout_s}: give seconds, 0 or more"):
            producer.flush(timeout_s)
    assert producer.tpc_branch is None
    assert broker.peer.received == []


@pytest.mark.scenario("T05")
def test_calls_out_of_order(producer: Producer, broker: ScriptedBroker) -> None:
    for call in (producer.tpc_prepare, producer.tpc_commit, producer.tpc_rollback):
        with pytest.raises(XaError, match="no branch was begun"):
            call()
    begun(producer)
    with pytest.raises(XaError) as duplicate:
        producer.tpc_begin(XID)
    with pytest.raises(XaError) as nested:
        producer.tpc_begin(Xid.of("other", ""))
    assert (duplicate.value.code, nested.value.code) == (XaCode.XAER_DUPID, XaCode.XAER_PROTO)
    with pytest.raises(TransactionMisuse, match="is active: finish it before a local transaction"):
        producer.transaction()
    producer.tpc_prepare()
    with pytest.raises(XaError, match="is prepared, not active"):
        producer.send("meta-test", b"")
    producer.tpc_begin(Xid.of("other", ""))  # the prepared one stays in doubt, at its broker
    producer.tpc_rollback()
    producer.tpc_commit(XID)
    with producer.transaction(), pytest.raises(XaError, match=r"local transaction TX:.* is not over"):
        producer.tpc_begin(XID)
    assert verbs(broker.peer)[-2:] == ["ROLLBACK", "COMMIT_TWO_PHASE"]


@pytest.mark.scenario("T06")
def test_recover_remembers_who_listed_what(producer: Producer, start_broker: StartBroker) -> None:
    first = start_broker(0, {"orders": 1}, recovering(b"XID:100:6731:6231:uq"))
    second = start_broker(1, {"orders": 1}, recovering(b"XID:1:61:62:uq", b"XID:1:63:64:other", b"TX:s:1"))
    assert producer.tpc_recover() == [XID, Xid(1, b"a", b"b")]
    producer.tpc_commit(Xid(1, b"a", b"b"))
    producer.tpc_rollback(XID)
    assert verbs(first.peer) == ["RECOVER", "ROLLBACK"]
    assert verbs(second.peer) == ["RECOVER", "COMMIT_TWO_PHASE"]


def test_a_branch_that_was_not_listed_yet_is_looked_for(producer: Producer, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, recovering(b"XID:100:6731:6231:uq"))
    producer.tpc_forget(XID)
    assert verbs(broker.peer) == ["RECOVER", "FORGET"]
    with pytest.raises(XaError, match="no broker lists it as prepared under qualifier uq") as caught:
        producer.tpc_commit(Xid(1, b"never", b""))
    assert caught.value.code == XaCode.XAER_NOTA


def test_an_unreachable_broker_makes_the_list_incomplete_never_shorter(
    producer: Producer, start_broker: StartBroker
) -> None:
    start_broker(0, {"orders": 1}, recovering(b"XID:100:6731:6231:uq"))
    start_broker(1, {"orders": 1}, recovering()).peer.close()
    with pytest.raises(XaError, match=r"RECOVER on broker 1: .*refused") as caught:
        producer.tpc_recover()
    assert caught.value.code == XaCode.XAER_RMFAIL
    with pytest.raises(XaError, match="no broker that answered lists it") as unknown:
        producer.tpc_commit(Xid(1, b"elsewhere", b""))
    assert unknown.value.code == XaCode.XAER_RMFAIL  # not NOTA: broker 1 may well hold it
    producer.tpc_commit(XID)
    listing = producer.tpc_list()
    assert list(listing.keys) == [0]
    assert list(listing.failures) == [1]


def test_without_any_broker_nothing_is_known(producer: Producer) -> None:
    """They may not be up yet, or it is the wrong ZooKeeper: a transaction manager must not forget what it decided."""
    for ask in (producer.tpc_recover, lambda: producer.tpc_commit(XID), lambda: producer.tpc_rollback(XID)):
        with pytest.raises(XaError, match=r"no broker is registered in ZooKeeper.*: start the brokers, or ") as caught:
            ask()
        assert caught.value.code == XaCode.XAER_RMFAIL
    assert producer.tpc_list() == Listing()


def test_a_crashed_broker_is_missed(producer: Producer, client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, recovering())
    client.session.write("/meta/brokers/ids/7", b"meta://127.0.0.1:1")  # what a crash leaves behind (spec 6.2)
    client.session.write("/meta/brokers/ids/8", b"")  # what a clean stop leaves while slaves are up
    with pytest.raises(XaError, match="broker 7 has no master in ZooKeeper: start it"):
        producer.tpc_recover()
    assert list(producer.tpc_list().failures) == [7]


@pytest.mark.scenario("T07")
def test_a_broker_that_comes_back_elsewhere_gets_the_commit(
    producer: Producer, broker: ScriptedBroker, start_broker: StartBroker
) -> None:
    begun(producer).tpc_prepare()
    broker.registration.unregister()
    broker.peer.close()
    with pytest.raises(XaError) as caught:
        producer.tpc_commit()
    assert caught.value.code == XaCode.XAER_RMFAIL
    again = start_broker(0, {"meta-test": 1}, willing)
    producer.tpc_commit()
    assert verbs(again.peer) == ["COMMIT_TWO_PHASE"]


def test_a_break_during_prepare(producer: Producer, broker: ScriptedBroker) -> None:
    begun(producer)
    broker.peer.handler = on(TransactionVerb.PREPARE, HANG_UP)
    with pytest.raises(XaError, match="lost before the answer") as caught:
        producer.tpc_prepare()
    assert caught.value.code == XaCode.XAER_RMFAIL
    producer.tpc_rollback()
