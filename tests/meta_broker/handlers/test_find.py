"""find on the wire, at a real broker: what it finds, refuses, and that it holds nobody up."""

import os
import signal
import time
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.answers import Found, FoundAt, parse_found
from meta_client.protocol.checksum import crc31
from meta_client.protocol.messages import encode_body, encode_frame
from meta_client.protocol.requests import Find, Get, MultiPut, Put, TopicCommand, TopicVerb, TransactionVerb, Version
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.peers import unserved_s
from tests.fixtures.wire import WireClient

MANY = 5000  # searches that would take a minute


def put(client: WireClient, attribute: str | None, payload: bytes = b"x", key: XaKey | None = None) -> tuple[int, int]:
    """Put a message to orders/0; its id and offset (-1 inside a branch)."""
    flag, body = encode_body(payload, attribute)
    answer = client.result(Put("orders", 0, flag, None, key, client.opaque(), body))
    assert answer.is_success, answer.text
    message_id, _, offset = map(int, answer.message.split())
    return message_id, offset


def find(client: WireClient, wanted: bytes | int, offset: int = 0, matches_max: int = 256) -> Found:
    answer = client.result(Find("orders", 0, offset, matches_max, wanted, client.opaque()))
    assert answer.is_success, answer.text
    return parse_found(answer.message)


def find_all(client: WireClient, wanted: bytes | int) -> list[FoundAt]:
    """From the start to the end, however many answers that takes."""
    found = find(client, wanted)
    matches = found.matches
    while found.next_offset < found.end:
        found = find(client, wanted, found.next_offset)
        matches += found.matches
    return matches


def test_by_key_and_by_id(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        assert find(client, b"a") == (0, 0, [])  # nothing was ever put there
        placed = [put(client, "abc"[number % 3], b"%d" % number) for number in range(30)]
        end = find(client, b"").end
        offsets = [offset for _, offset in placed]
        assert [at for at, _ in find_all(client, b"b")] == offsets[1::3]
        assert find_all(client, b"nothing") == []
        for number, (message_id, offset) in enumerate(placed):
            (match,) = find_all(client, message_id)
            assert match.offset == offset
            value = client.ask(Get("orders", "g", 0, offset, match.bytes, 1))
            assert isinstance(value, Value)
            assert bytes(value.body).endswith(b"%d" % number)
        for absent in (placed[0][0] - 1, placed[-1][0] + 1, placed[0][0] | 1 << 12, -1, 0, 2**63 - 1):
            assert find_all(client, absent) == []
        # No more than asked for, and on from there.
        first = find(client, b"a", matches_max=2)
        assert [match.offset for match in first.matches] == [offsets[0], offsets[3]]
        assert offsets[3] < first.next_offset <= offsets[6]
        assert find(client, b"a", first.next_offset, 1).matches[0].offset == offsets[6]
        assert find(client, b"a", end).matches == find(client, b"a", 2**63 - 1).matches == []
        assert find(client, b"a", -5, 1).matches[0].offset == 0


def test_a_transaction_is_found_once_it_is_committed_and_by_the_ids_it_was_put_with(lone_broker: BrokerProcess) -> None:
    key = XaKey(Xid.of("g", "b"), "uq")
    with WireClient(lone_broker.port) as client:
        client.verb(TransactionVerb.BEGIN, key)
        ids = [put(client, "tx", b"1", key)[0], put(client, "tx", b"2", key)[0]]
        time.sleep(0.01)
        plain, _ = put(client, "tx", b"plain")
        client.verb(TransactionVerb.PREPARE, key)
        assert len(find_all(client, b"tx")) == 1
        assert [find_all(client, message_id) for message_id in ids] == [[], []]
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, key)
        places = find_all(client, b"tx")
        assert len(places) == 3
        assert [find_all(client, message_id) for message_id in (plain, *ids)] == [[place] for place in places]
        rolled = XaKey(Xid.of("g", "c"), "uq")
        client.verb(TransactionVerb.BEGIN, rolled)
        gone, _ = put(client, "tx", b"3", rolled)
        client.verb(TransactionVerb.ROLLBACK, rolled)
        assert len(find_all(client, b"tx")) == 3
        assert find_all(client, gone) == []


def test_what_is_refused(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        _, offset = put(client, "a", b"payload")
        statuses = {
            Find("nowhere", 0, 0, 1, b"a", 1): 404,
            Find("orders", 4, 0, 1, b"a", 1): 404,
            Find("orders", -1, 0, 1, b"a", 1): 404,
            Find("orders", 0, offset + 1, 1, b"a", 1): 400,
        }
        for request, status in statuses.items():
            assert client.result(request).status == status, request
        assert "ask from where one does" in client.result(Find("orders", 0, 1, 1, b"a", 1)).text
        assert client.result(TopicCommand(TopicVerb.CLOSE, "orders", (("partitions", "0"),), 1)).is_success
        assert client.result(Find("orders", 0, 0, 1, b"a", 1)).status == 403


def test_a_long_search_is_answered_in_parts(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        put(client, "first")
        for _ in range(40):
            client.put("orders", 0, bytes(1 << 20))
        put(client, "last")
        first = find(client, b"last")
        assert first.matches == []
        assert 0 < first.next_offset < first.end
        (match,) = find_all(client, b"last")
        assert match.offset + match.bytes == first.end
        (match,) = find_all(client, b"first")
        assert match.offset == 0


def test_dozens_of_searches_delay_no_other_client(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client, WireClient(lone_broker.port) as other:
        frames = encode_frame(0, *encode_body(b"x" * 50, "key")) * 4000
        for _ in range(10):
            assert client.result(MultiPut("orders", 0, 4000, crc31(frames), None, None, 1, frames)).is_success
        # Not behind a search, and not behind all. Where the machine stalls, all wait: then the next thirty tell.
        searches = (search_beside(client, other, lone_broker.pid) for _ in range(5))
        search_s = next(search_s for search_s, wait_s in searches if wait_s < search_s)
        client.send(*(Find("orders", 0, 0, 256, b"yek", number) for number in range(MANY)))
    with WireClient(lone_broker.port) as client:  # a connection that closes ends its searches
        asked = time.monotonic()
        assert find(client, b"key", matches_max=1).matches
        assert time.monotonic() - asked < MANY * search_s / 2
        # A stop waits for none of them, and leaves none without an answer.
        # The bytes of the empty key, four zeros, stand in every frame, so that all of them are walked.
        client.send(*(Find("orders", 0, 0, 256, b"", number) for number in range(500)))
        assert client.receive().opaque == 0
        os.kill(lone_broker.pid, signal.SIGTERM)
        answers = [client.receive() for _ in range(499)]
        assert {answer.opaque for answer in answers} == set(range(1, 500))
        assert {answer.status for answer in answers if isinstance(answer, Result)} == {200, 503}
    assert lone_broker.wait() == 0


def search_beside(client: WireClient, other: WireClient, broker: int) -> tuple[float, float]:
    """Return how long each of thirty searches took, in seconds, and the median wait of *other* meanwhile, without that
    for a processor: its own, and that of the loop of the process *broker*."""
    before, waits = time.monotonic(), []
    client.send(*(Find("orders", 0, 0, 256, b"yek", number) for number in range(30)))
    for _ in range(20):
        asked, unserved = time.monotonic(), unserved_s() + unserved_s(broker)
        assert isinstance(other.ask(Version(1)), Result)
        waits.append(time.monotonic() - asked - (unserved_s() + unserved_s(broker) - unserved))
    assert {client.receive().opaque for _ in range(30)} == set(range(30))
    return (time.monotonic() - before) / 30, sorted(waits)[10]


@pytest.mark.parametrize("wanted", [b"k", 0])
def test_found_again_after_a_kill(lone_broker: BrokerProcess, wanted: bytes | int) -> None:
    with WireClient(lone_broker.port) as client:
        placed = [put(client, "k" if number % 5 == 0 else None) for number in range(50)]
        wanted = wanted or placed[20][0]
        before = find_all(client, wanted)
        assert before
    lone_broker.kill()
    lone_broker.start()
    with WireClient(lone_broker.port) as client:
        assert find_all(client, wanted) == before


def test_what_the_disk_does_not_give_back_is_no_proof_of_absence(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            for number in range(20):
                put(client, "a", bytes(100_000))
                assert len(find_all(client, b"a")) == number + 1
            (segment,) = broker.data.glob("*.journal")
            os.truncate(segment, 1_000_000)
            found = find(client, b"a", matches_max=5)
            assert len(found.matches) == 5
            answer = client.result(Find("orders", 0, 0, 256, b"a", 1))
            assert (answer.status, "it was truncated" in answer.text) == (500, True)
            assert client.result(Version(1)).is_success
    finally:
        broker.kill()
