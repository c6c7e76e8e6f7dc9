"""Commands and brokers that answer wrongly, late, in parts, or in another version; and brokers that are away."""

import logging
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from journal.records.xid import XaKey, Xid
from journal.state.wall_clock import wall_clock_ms
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.store.message_store import MessageStore
from meta_client.client import Client
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import BrokerAway, NotConnected
from meta_client.operations.branches import NoBranch, OfflineBranches, OnlineBranches
from meta_client.operations.group_ends import with_all_partitions
from meta_client.operations.positions import Positions, PutTimes
from meta_client.operations.reading import Span, read_from, read_topic_messages
from meta_client.operations.searching import Wanted, search_partition
from meta_client.protocol.answers import Counted, Found, FoundAt, format_counted, format_found, format_keys
from meta_client.protocol.errors import InvalidMessage, RemoteError
from meta_client.protocol.id_layout import BIRTH_MS, BROKER_BITS, SEQUENCE_BITS
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import (
    BranchCommand,
    Count,
    Fetch,
    Find,
    Get,
    Offsets,
    Request,
    TransactionCommand,
    Version,
)
from meta_client.protocol.xa import XaCode, format_xa_failure
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import Answer, Answers, Handler, answering, listening
from zk.groups.listing import list_group
from zk.tree.nodes import Partition

A, B, AWAY = Partition(0, 0), Partition(0, 1), Partition(7, 0)
KEYS = XaKey(Xid.of("in", "doubt"), "q"), XaKey(Xid.of("later", "on"), "q")


def message_id(after_birth_ms: int, broker_id: int = 0) -> int:
    return (after_birth_ms << BROKER_BITS | broker_id) << SEQUENCE_BITS


FRAMES = [encode_frame(message_id(number), 0, b"%d" % number) for number in range(4)]
SIZE = len(FRAMES[0])
END = SIZE * len(FRAMES)


def read(request: Request) -> Answer:
    """Answer a Get as a partition that holds FRAMES."""
    assert isinstance(request, Get)
    return 200, b"".join(FRAMES)[request.offset : request.offset + request.bytes_max]


def moved_to(start: int, frame: bytes) -> Callable[[Request], Answer]:
    """Answer a Get as retention has it that left *frame* at *start*."""

    def get(request: Request) -> Answer:
        assert isinstance(request, Get)
        return (301, b"%d" % start) if request.offset != start else (200, frame)

    return get


@pytest.mark.parametrize(
    ("get", "put_ms"),
    [
        (moved_to(80, FRAMES[3]), BIRTH_MS + 3),
        (lambda request: (301, b"40"), None),  # over and over
        (lambda request: (200, FRAMES[3][:19]), None),
        (lambda request: (200, encode_frame(message_id(3, broker_id=5), 0, b"")), None),
    ],
    ids=["deleted meanwhile", "moved to where it is", "less than a header", "another broker's id"],
)
def test_the_time_of_a_message_is_its_brokers_or_unknown(
    client: Client, start_broker: StartBroker, get: Callable[[Request], Answer], put_ms: int | None
) -> None:
    start_broker(0, {"orders": 1}, answering({Get: get}))
    assert Positions(client).put_times({("orders", A): 40}).get(("orders", A)) == put_ms


def test_a_count_in_parts_is_added_up(client: Client, start_broker: StartBroker) -> None:
    def count(request: Request) -> Answer:
        assert isinstance(request, Count)
        return 200, format_counted(Counted(request.offset, min(request.offset + 100, 350), 350, 5))

    start_broker(0, {"orders": 1}, answering({Count: count}, "count"))
    assert Positions(client).messages({("orders", A): 100}) == {("orders", A): 15}


def test_a_broker_that_is_silent_on_several_partitions_is_told_once(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 2}, answering({Offsets: lambda request: (500, b"no")}, "offsets"))
    told: list[str] = []
    assert Positions(client, told.append).ranges([("orders", A), ("orders", B)]) == {}
    (said,) = told
    assert said.startswith("the ends of broker 0's partitions are missing: offsets of orders/0-0: ")


def test_a_broker_that_is_away_is_named(client: Client) -> None:
    told: list[str] = []
    positions = Positions(client, told.append)
    assert positions.ranges([("orders", AWAY)]) == {}
    assert told == [
        "the ends of broker 7's partitions are missing: broker 7 has no master in ZooKeeper: start it, or wait until "
        "it is back"
    ]
    with pytest.raises(NotConnected, match="no broker with id 7 is up"):
        positions.run_start("orders", AWAY, 100)
    with pytest.raises(NotConnected, match=r"brokers of orders/7-0 can't note the reset .* nothing was reset"):
        positions.tell_reset("billing", {("orders", AWAY): (None, 100)})
    with pytest.raises(BrokerAway, match="find in orders/7-0: its broker is not up"):
        list(search_partition(client, "orders", AWAY, None, Wanted(key="k"), 1))
    message = ReceivedMessage("orders", AWAY, 0, message_id(9, 7), 0, None, b"", SIZE)
    assert PutTimes(client).of(message) is None, "a genuine broker's ids tell nothing of times"


def test_a_broker_without_epochs_is_told_none(client: Client, start_broker: StartBroker) -> None:
    old = start_broker(0, {"orders": 1}, answering({}, "fetch"))
    new = start_broker(1, {"orders": 1}, answering({}, "fetch", "owner"))
    Positions(client).tell_epochs("billing", {("orders", A): 4, ("orders", Partition(1, 0)): 5})
    assert [it for it in old.peer.received if isinstance(it, Fetch)] == []
    assert [it.epoch for it in new.peer.received if isinstance(it, Fetch)] == [5]


def test_a_message_id_of_another_broker_is_not_searched_for(client: Client) -> None:
    with listening(answering({}, "find")) as peer:
        assert list(search_partition(client, "orders", A, peer.url, Wanted(message_id=message_id(3, 5)), 9)) == []
        assert [type(request) for request in peer.received] == [Version]


def test_a_search_in_parts_leaves_out_what_was_deleted_meanwhile(client: Client) -> None:
    """Retention deletes the first message between the broker's answer and its reading."""

    def find(request: Request) -> Answer:
        assert isinstance(request, Find)
        at = request.offset
        return 200, format_found(Found(min(at + 2 * SIZE, END), END, [FoundAt(at, SIZE), FoundAt(at + SIZE, SIZE)]))

    def get(request: Request) -> Answer:
        assert isinstance(request, Get)
        return read(request) if request.offset >= SIZE else (301, b"%d" % SIZE)

    with listening(answering({Find: find, Get: get}, "find")) as peer:
        wanted = Wanted(key="k")
        hits = list(search_partition(client, "orders", A, peer.url, wanted, 9))
        assert hits == [], "they have another key than the broker said"
        hits = list(search_partition(client, "orders", A, peer.url, Wanted(message_id=message_id(1)), 9))
        assert [(hit.message.offset, hit.time_ms) for hit in hits] == [(SIZE, BIRTH_MS + 1)]


def test_a_refusal_ends_reading_unless_it_follows(
    client: Client, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = 0

    def get(request: Request) -> Answer:
        nonlocal refusals
        if refusals:
            refusals -= 1
            return 500, b"a disk"
        return read(request)

    offsets: Answers = {Offsets: lambda request: (200, b"0 %d 0" % END), Get: get}
    start_broker(0, {"orders": 1}, answering(offsets, "offsets"))
    refusals = 2
    with pytest.raises(RemoteError, match="a disk"):
        list(read_topic_messages(client, "orders", Span(), follow=False))
    with caplog.at_level(logging.INFO, "meta_client.operations.reading"):
        found = islice(read_topic_messages(client, "orders", Span(), follow=True), len(FRAMES))
        assert [message.payload for message in found] == [b"0", b"1", b"2", b"3"]
    (record,) = caplog.records
    assert record.getMessage().startswith("waiting for the broker: get orders/0-0 at 0 from ")


def test_a_message_larger_than_a_request_is_asked_for_again_and_a_broken_one_is_an_error(client: Client) -> None:
    broken = bytearray(b"".join(FRAMES))
    broken[SIZE + 4] ^= 1  # the second's checksum

    def get(request: Request) -> Answer:
        assert isinstance(request, Get)
        return 200, bytes(broken[request.offset : request.offset + request.bytes_max])

    with listening(answering({Get: get})) as peer:
        found = read_from(client, "orders", A, peer.url, 0, bytes_max=SIZE - 1)
        assert next(found).payload == b"0"
        with pytest.raises(InvalidMessage):
            next(found)
        sizes = [it.bytes_max for it in peer.received if isinstance(it, Get)]
        assert sizes[0] == SIZE - 1 < sizes[1]


def test_a_member_of_a_topic_that_can_not_be_hides_no_partition(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1})
    client.session.write_many({"/meta/consumers/billing/ids/billing_java": b"a/b,orders"})
    (listing,) = with_all_partitions(client, [list_group(client.session, "billing")])
    assert listing.members == {"billing_java": {"a/b", "orders"}}
    assert [(it.topic, it.partition) for it in listing.progress] == [("orders", A)]


def branches_of(show: Callable[[Request], Answer], *extensions: str) -> Handler:
    return answering({TransactionCommand: lambda _: (200, format_keys(KEYS)), BranchCommand: show}, *extensions)


def test_a_branch_that_ended_meanwhile_is_left_out(client: Client, start_broker: StartBroker) -> None:
    """Only the branch that is gone: a broker that fails is told with its reason."""

    def show(request: Request) -> Answer:
        assert isinstance(request, BranchCommand)
        if request.key == KEYS[0]:
            return 500, format_xa_failure(code, "no").encode()
        return 200, b'{"key":"%s","state":"prepared","messages":1,"bytes":9}' % str(request.key).encode()

    start_broker(0, {"orders": 1}, branches_of(show, "branch"))
    branches = OnlineBranches(client)
    code = XaCode.XAER_NOTA
    assert [report["key"] for report in branches.listed(None)] == [str(KEYS[1])]
    assert branches.failures == {}
    code = XaCode.XAER_RMFAIL
    assert branches.listed(None) == []
    assert "code=-7,msg=no" in branches.failures[0]


def test_branches_beyond_the_number_asked_for_are_named(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, branches_of(lambda _: (400, b"")))
    branches = OnlineBranches(client)
    (report,) = branches.listed(None, 1)
    assert report == {"key": str(KEYS[0]), "state": "prepared", "broker": 0}
    assert branches.left_out == {0: KEYS[1:]}
    assert branches.findings() == [], "a broker without a ledger is asked for none"


def test_a_stopped_brokers_directory_names_the_branch_that_it_lacks(tmp_path: Path) -> None:
    MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms).close()
    with pytest.raises(NoBranch, match=f"{re.escape(str(tmp_path))} holds no branch {KEYS[0]} in doubt: see metaq txn"):
        OfflineBranches(tmp_path).show(KEYS[0], 0)
