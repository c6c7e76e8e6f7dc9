"""A branch's requests that arrive together: judged one by one, answered each, whichever answer takes another along."""

from journal.records.xid import XaKey, Xid
from meta_broker.store.message_store import RUNS_PER_TURN
from meta_client.protocol.requests import Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.responses import Result
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient

KEY = XaKey(Xid.of("flight", ""), "uq")
OTHER = XaKey(Xid.of("other", ""), "uq")


def verb(verb: TransactionVerb, opaque: int, key: XaKey = KEY) -> TransactionCommand:
    return TransactionCommand(key, "s", verb, None, "uq", opaque)


def put(opaque: int, key: XaKey = KEY) -> Put:
    return Put("orders", 0, 0, None, key, opaque, b"m")


def statuses(client: WireClient, *requests: Request) -> dict[int, int]:
    """Send them in one go; the status that each is answered with, by opaque."""
    client.send(*requests)
    answers = [client.receive() for _ in requests]
    assert all(isinstance(answer, Result) for answer in answers)
    return dict(sorted((answer.opaque, answer.status) for answer in answers if isinstance(answer, Result)))


def test_every_pipelined_request_is_answered(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        # Nothing waits for a PREPARE that is not there.
        begin = verb(TransactionVerb.BEGIN, 1)
        assert statuses(client, begin, put(2), Version(3), put(4)) == dict.fromkeys((1, 2, 3, 4), 200)
        flight: tuple[Request, ...]
        flight = put(5), Version(6), verb(TransactionVerb.PREPARE, 7), put(8), verb(TransactionVerb.BEGIN, 9)
        assert statuses(client, *flight) == {5: 200, 6: 200, 7: 200, 8: 500, 9: 200}
        flight = (
            verb(TransactionVerb.COMMIT_TWO_PHASE, 10),
            Version(11),
            verb(TransactionVerb.BEGIN, 12),
            put(13),
            put(14),
        )
        assert statuses(client, *flight) == dict.fromkeys(range(10, 15), 200)
        assert len(client.read_all("orders", 0)) == 3


def test_two_pipelined_branches_keep_their_answers(lone_broker: BrokerProcess) -> None:
    begin, prepare, commit = TransactionVerb.BEGIN, TransactionVerb.PREPARE, TransactionVerb.COMMIT_ONE_PHASE
    with WireClient(lone_broker.port) as client:
        flight = verb(begin, 1), verb(begin, 2, OTHER), put(3), put(4, OTHER), verb(prepare, 5), put(6, OTHER)
        assert statuses(client, *flight) == dict.fromkeys(range(1, 7), 200)
        assert statuses(client, put(7, OTHER), verb(commit, 8, OTHER), verb(prepare, 9)) == {7: 200, 8: 200, 9: 500}
        assert len(client.read_all("orders", 0)) == 3


def test_a_peer_that_leaves_in_the_middle_of_a_pipeline_leaves_nothing(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        client.send(verb(TransactionVerb.BEGIN, 1), put(2), verb(TransactionVerb.PREPARE, 3))
    with WireClient(lone_broker.port) as client:
        while not (listed := client.verb(TransactionVerb.RECOVER, None)):
            pass
        assert listed.decode() == str(KEY)
        client.verb(TransactionVerb.ROLLBACK, KEY)
        assert client.verb(TransactionVerb.RECOVER, None) == b""


def test_a_commit_of_more_extents_than_one_turn_shows_is_whole_when_it_is_answered(lone_broker: BrokerProcess) -> None:
    count, piece = 2 * RUNS_PER_TURN + 500, 500
    with WireClient(lone_broker.port) as client:
        client.verb(TransactionVerb.BEGIN, KEY)
        for first in range(0, count, piece):
            answered = statuses(client, *(put(number) for number in range(first, first + piece)))
            assert set(answered.values()) == {200}
        commit, after = verb(TransactionVerb.COMMIT_ONE_PHASE, count), Put("orders", 0, 0, None, None, count + 1, b"a")
        assert statuses(client, commit, after) == {count: 200, count + 1: 200}
        payloads = [message.payload for _, message in client.read_all("orders", 0)]
        assert payloads == [b"m"] * count + [b"a"]
