"""XA branches at a broker that keeps the order: what travels together, and what each refusal or silence becomes."""

import contextlib
from collections.abc import Callable

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import ClientXaError, NoBroker, SendRefused, SendUnknown
from meta_client.producer.producer import Producer
from meta_client.producer.xa_branch import BranchPhase
from meta_client.protocol.errors import XaError
from meta_client.protocol.messages import iter_frames
from meta_client.protocol.requests import MultiPut, Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.version import version_text
from meta_client.protocol.xa import XaCode
from tests.meta_client.conftest import ScriptedBroker, StartBroker
from tests.meta_client.peer import HANG_UP, Handler, Peer, ok, opaque_of
from zk.tree.nodes import Partition

XID = Xid(100, b"g1", b"b1")
VERSION = version_text("9", ("mput",)).encode()
ANSWERED = Partition(0, 0)  # what the broker says, whatever it was asked
FULL = b"XAException:code=-3,msg=too many transactions"
NOTA = b"XAException:code=-4,msg=has not been started"


def refusal(request: Request, text: bytes, status: int = 500) -> bytes:
    return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)


def willing(request: Request) -> bytes:
    match request:
        case Version():
            return ok(request, VERSION)
        case Put() | MultiPut():
            return ok(request, b"100002 0 -1")
        case TransactionCommand(verb=TransactionVerb.PREPARE):
            return ok(request, b"0")
    return ok(request)


def but(refuses: Callable[[Request], bool], answer: Callable[[Request], bytes | None]) -> Handler:
    """Return a handler that answers with *answer* where *refuses* says so, and with success elsewhere."""
    return lambda request: answer(request) if refuses(request) else willing(request)


def is_put(request: Request) -> bool:
    return isinstance(request, (Put, MultiPut))


def is_verb(*wanted: TransactionVerb) -> Callable[[Request], bool]:
    return lambda request: isinstance(request, TransactionCommand) and request.verb in wanted


def seen(peer: Peer) -> list[str]:
    names = {Put: "put", MultiPut: "mput"}
    return [
        request.verb.value if isinstance(request, TransactionCommand) else names[type(request)]
        for request in peer.received
        if not isinstance(request, Version)
    ]


@pytest.fixture
def producer(client: Client) -> Producer:
    return client.producer(qualifier="uq")


@pytest.fixture
def broker(start_broker: StartBroker) -> ScriptedBroker:
    return start_broker(0, {"orders": 2, "invoices": 1}, willing)


def begun(producer: Producer, messages: int = 1, topic: str = "orders") -> list[Callable[..., object]]:
    producer.tpc_begin(XID, topics=("orders",))
    return [producer.send_async(topic, b"%d" % number).result for number in range(messages)]


def test_begin_messages_and_prepare_travel_together(producer: Producer, broker: ScriptedBroker) -> None:
    """The broker answers nothing before PREPARE is there, so a client that waited earlier would hang."""
    held: list[bytes] = []

    def handler(request: Request) -> bytes | None:
        if isinstance(request, Version):
            return willing(request)
        held.append(willing(request))
        return b"".join(held) if is_verb(TransactionVerb.PREPARE)(request) else None

    broker.peer.handler = handler
    results = begun(producer, 3)
    producer.send_async("invoices", b"alone", "attr")
    assert seen(broker.peer) == []
    assert producer.tpc_prepare() is True
    assert seen(broker.peer) == ["BEGIN", "mput", "put", "PREPARE"]
    assert [result() for result in results] == [(100_002 + n, ANSWERED, None) for n in range(3)]
    batch = next(request for request in broker.peer.received if isinstance(request, MultiPut))
    assert [it.payload for _, _, it in iter_frames(batch.body)] == [b"0", b"1", b"2"]
    assert str(batch.key) == "XID:100:6731:6231:uq"
    broker.peer.handler = willing
    producer.tpc_commit()
    assert seen(broker.peer)[-1] == "COMMIT_TWO_PHASE"


def test_a_branch_that_nothing_was_sent_for_leaves_no_trace(producer: Producer, broker: ScriptedBroker) -> None:
    begun(producer, 1)
    producer.tpc_rollback()
    assert producer.tpc_branch is None
    assert seen(broker.peer) == []
    producer.tpc_begin(XID, topics=("orders",))
    handle = producer.send_async("orders", b"")
    producer.tpc_rollback()
    with pytest.raises(NoBroker, match="its branch ended before it was sent"):
        handle.result()


def test_messages_that_could_not_be_sent_are_told_of_once_their_branch_ends(
    producer: Producer, broker: ScriptedBroker
) -> None:
    handles = begun(producer, 2)
    broker.peer.close()
    with pytest.raises(XaError, match="XAER_RMFAIL"):
        producer.tpc_prepare()
    producer.tpc_rollback()
    for handle in handles:
        with pytest.raises(NoBroker, match="its branch ended before it was sent"):
            handle()


def test_a_branch_without_messages(producer: Producer, broker: ScriptedBroker) -> None:
    broker.peer.handler = but(is_verb(TransactionVerb.PREPARE), lambda request: ok(request, b"3"))
    begun(producer, 0)
    assert producer.tpc_prepare() is False
    begun(producer, 0)
    producer.tpc_commit()
    assert producer.tpc_branch is None
    assert seen(broker.peer) == ["BEGIN", "PREPARE", "BEGIN", "COMMIT_ONE_PHASE"]


def test_send_waits_behind_what_was_sent_before(producer: Producer, broker: ScriptedBroker) -> None:
    results = begun(producer, 2)
    assert producer.send("orders", b"third").message_id == 100_002
    assert seen(broker.peer) == ["BEGIN", "mput", "put"]
    assert [result() for result in results]
    producer.send_async("orders", b"fourth").result()  # who asks for it has it sent
    assert seen(broker.peer) == ["BEGIN", "mput", "put", "put"]
    assert producer.tpc_prepare()


def test_a_large_branch_goes_as_it_comes(producer: Producer, broker: ScriptedBroker) -> None:
    payload = bytes(100_000)
    producer.tpc_begin(XID, topics=("orders",))
    for _ in range(60):
        producer.send_async("orders", payload)
    assert seen(broker.peer)[:2] == ["BEGIN", "mput"]
    assert producer.tpc_prepare()
    batches = [request for request in broker.peer.received if isinstance(request, MultiPut)]
    assert sum(batch.count for batch in batches) == 60
    assert max(len(batch.body) for batch in batches) <= 256 * 1024
    assert {batch.partition for batch in batches} == {0, 1}


@pytest.mark.parametrize("is_async", [True, False])
def test_a_refused_begin_is_raised_by_the_next_call(producer: Producer, broker: ScriptedBroker, is_async: bool) -> None:
    begins, rest = is_verb(TransactionVerb.BEGIN), is_verb(TransactionVerb.PREPARE, TransactionVerb.ROLLBACK)
    broker.peer.handler = lambda request: (
        refusal(request, FULL)
        if begins(request)
        else refusal(request, NOTA)
        if is_put(request) or rest(request)
        else willing(request)
    )
    producer.tpc_begin(XID, topics=("orders",))
    if is_async:
        producer.send_async("orders", b"")
    with pytest.raises(XaError, match="too many transactions") as caught:
        producer.tpc_prepare() if is_async else producer.send("orders", b"")
    assert caught.value.code == XaCode.XAER_RMERR
    assert "BEGIN" in str(caught.value)
    with pytest.raises(XaError, match="it is to be rolled back, because it did not begin"):
        producer.send_async("orders", b"")
    asked = seen(broker.peer)
    producer.tpc_rollback()
    assert seen(broker.peer) == asked  # there is nothing to roll back
    assert producer.tpc_branch is None


def test_a_refused_message_is_never_left_out_of_a_prepared_branch(producer: Producer, broker: ScriptedBroker) -> None:
    broker.peer.handler = but(is_put, lambda request: refusal(request, b"partition[0-1] has been closed", 403))
    results = begun(producer, 2)
    with pytest.raises(ClientXaError, match=r"PREPARE .*: XAER_RMERR: .*an operator closed this partition") as caught:
        producer.tpc_prepare()
    assert caught.value.code == XaCode.XAER_RMERR
    for result in results:
        with pytest.raises(SendRefused):
            result()
    assert producer.tpc_branch is not None
    assert producer.tpc_branch.state is BranchPhase.ROLLBACK_ONLY
    with pytest.raises(XaError, match="because the broker refused one of its messages"):
        producer.tpc_prepare()
    producer.tpc_rollback()
    assert seen(broker.peer) == ["BEGIN", "mput", "PREPARE", "ROLLBACK"]


def test_what_is_gone_already_is_rolled_back(producer: Producer, broker: ScriptedBroker) -> None:
    broker.peer.handler = lambda request: (
        refusal(request, b"no room")
        if is_put(request)
        else ok(request, b"3")
        if is_verb(TransactionVerb.PREPARE)(request)
        else refusal(request, NOTA)
        if is_verb(TransactionVerb.ROLLBACK)(request)
        else willing(request)
    )
    begun(producer)
    with pytest.raises(XaError, match="no room"):
        producer.tpc_prepare()
    producer.tpc_rollback()
    assert producer.tpc_branch is None


def test_a_commit_in_one_phase_waits_for_every_message_first(producer: Producer, broker: ScriptedBroker) -> None:
    broker.peer.handler = but(is_put, lambda request: refusal(request, b"no room"))
    begun(producer)
    with pytest.raises(XaError, match="rolled back, because the broker refused one of its messages") as caught:
        producer.tpc_commit()
    assert caught.value.code == XaCode.XA_RBOTHER
    broker.peer.handler = willing
    begun(producer)
    producer.tpc_commit()
    assert seen(broker.peer) == ["BEGIN", "put", "ROLLBACK", "BEGIN", "put", "COMMIT_ONE_PHASE"]


@pytest.mark.parametrize(
    ("silent", "code"),
    [
        (is_put, XaCode.XAER_RMERR),
        (is_verb(TransactionVerb.PREPARE), XaCode.XA_RBTIMEOUT),
        (is_verb(TransactionVerb.BEGIN), XaCode.XA_RBTIMEOUT),
    ],
    ids=["put", "prepare", "begin"],
)
def test_what_silence_means(
    producer: Producer,
    broker: ScriptedBroker,
    monkeypatch: pytest.MonkeyPatch,
    silent: Callable[[Request], bool],
    code: XaCode,
) -> None:
    broker.peer.handler = but(silent, lambda request: None)
    begun(producer)
    with monkeypatch.context() as patch:
        for module in ("xa", "xa_verbs", "branch_pipeline"):
            patch.setattr(f"meta_client.producer.{module}.REQUEST_TIMEOUT_S", 1.0)
        with pytest.raises(XaError, match="gave no answer") as caught:
            producer.tpc_prepare()
    assert caught.value.code == code
    producer.tpc_rollback()  # whatever it was: the broker is told
    assert seen(broker.peer)[-1] == "ROLLBACK"


def test_a_connection_that_breaks_under_messages_makes_them_rollback_only(
    producer: Producer, broker: ScriptedBroker
) -> None:
    broker.peer.handler = but(is_put, lambda request: HANG_UP)
    handle = begun(producer)[0]
    with pytest.raises(SendUnknown):
        handle()
    broker.peer.handler = willing
    with pytest.raises(XaError, match="the request may have acted") as caught:
        producer.tpc_prepare()
    assert caught.value.code == XaCode.XAER_RMERR
    producer.tpc_rollback()
    assert seen(broker.peer)[-1] == "ROLLBACK"


@pytest.mark.parametrize("later", [NOTA, b"XAException:code=106,msg=it has timed out"], ids=["gone", "timed out"])
def test_a_broker_that_dies_under_begin_takes_the_next_branch(
    producer: Producer, broker: ScriptedBroker, later: bytes
) -> None:
    """The restarted broker lacks the branch: rolled back once, and its producer is free."""
    broker.peer.handler = but(is_verb(TransactionVerb.BEGIN), lambda request: HANG_UP)
    begun(producer)
    with pytest.raises(XaError, match="XAER_RMFAIL"):
        producer.tpc_prepare()
    assert producer.tpc_branch is not None
    assert producer.tpc_branch.state is BranchPhase.ROLLBACK_ONLY
    broker.peer.handler = but(is_verb(TransactionVerb.ROLLBACK), lambda request: refusal(request, later))
    with contextlib.nullcontext() if later == NOTA else pytest.raises(XaError, match="it has timed out"):
        producer.tpc_rollback()
    assert producer.tpc_branch is None
    broker.peer.handler = willing
    begun(producer)
    assert producer.tpc_prepare()


def genuine(request: Request) -> bytes:
    """A broker whose version text promises nothing."""
    return ok(request) if isinstance(request, Version) else willing(request)


def test_a_broker_that_keeps_no_order_is_asked_one_by_one(
    producer: Producer, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.peer.handler = genuine
    handles = begun(producer, 3)
    assert seen(broker.peer) == ["BEGIN", "put", "put", "put"]
    assert all(handle() for handle in handles)
    assert producer.tpc_prepare()
    producer.tpc_commit()
    assert seen(broker.peer) == ["BEGIN", "put", "put", "put", "PREPARE", "COMMIT_TWO_PHASE"]
    broker.peer.handler = lambda request: None if is_put(request) else genuine(request)
    with monkeypatch.context() as patch:
        patch.setattr("meta_client.producer.branch_pipeline.REQUEST_TIMEOUT_S", 1.0)
        handle = begun(producer, 1)[0]  # waits for an answer, in vain
    with pytest.raises(SendUnknown, match="gave no answer within"):
        handle()
    with pytest.raises(XaError, match="XAER_RMERR"):
        producer.tpc_prepare()
    producer.tpc_rollback()
