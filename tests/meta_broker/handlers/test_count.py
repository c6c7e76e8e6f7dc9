"""count on the wire, at a real broker: as many messages as a reader finds, however they were put."""

from typing import cast

import pytest

from journal.errors import StorageFailed
from journal.records.xid import XaKey, Xid
from meta_broker.handlers.count import _count_front
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.partition_index import StoredExtent
from meta_client.protocol.answers import Counted, parse_counted
from meta_client.protocol.checksum import crc31
from meta_client.protocol.compression import Codec
from meta_client.protocol.messages import HEADER_BYTES, encode_body, encode_frame
from meta_client.protocol.requests import Count, MultiPut, TakeCheckpoint, TopicCommand, TopicVerb, TransactionVerb
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient

KEY = XaKey(Xid(1, b"count", b"b"), "test")


def count(client: WireClient, offset: int, topic: str = "orders") -> Counted:
    answer = client.result(Count(topic, 0, offset, client.opaque()))
    assert answer.is_success, answer.text
    return parse_counted(answer.message)


def counted_from(client: WireClient, offset: int) -> int:
    """From *offset* to the end, however many answers that takes."""
    found = count(client, offset)
    assert found.start == offset
    messages = found.messages
    while found.next_offset < found.end:
        found = count(client, found.next_offset)
        messages += found.messages
    return messages


def put_many(client: WireClient, sizes: list[int], key: XaKey | None = None, codec: Codec | None = None) -> None:
    frames = b"".join(encode_frame(0, *encode_body(b"x" * size, None, codec)) for size in sizes)
    answer = client.result(MultiPut("orders", 0, len(sizes), crc31(frames), None, key, client.opaque(), frames))
    assert answer.is_success, answer.text


def check(client: WireClient) -> int:
    """Compare counts at every message, and inside of some, with the messages themselves; return their number."""
    offsets = [offset for offset, _ in client.read_all("orders", 0)]
    for number, offset in enumerate(offsets):
        assert counted_from(client, offset) == len(offsets) - number
        assert counted_from(client, offset + 1) == len(offsets) - number - 1, "what begins there"
        assert counted_from(client, offset + 19) == len(offsets) - number - 1
    return len(offsets)


def test_as_many_as_there_are(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        assert count(client, 5) == (0, 0, 0, 0)
        assert client.result(Count("orders", 99, 0, 1)).status == 404
        client.result(TopicCommand(TopicVerb.ALTER, "orders", (("compression", "lz4"),), client.opaque()))
        client.verb(TransactionVerb.BEGIN, KEY, qualifier="test")
        for number in range(20):
            client.put("orders", 0, b"one")
            put_many(client, [number, 0, 300])
            client.put("orders", 0, b"later", KEY)
            put_many(client, [5, number], KEY)
        put_many(client, [2000, 3000], codec=Codec.LZ4)
        assert check(client) == 20 * 4 + 2, "a branch that is open does not count"
        client.verb(TransactionVerb.PREPARE, KEY)
        assert client.result(TakeCheckpoint(client.opaque())).is_success
        client.verb(TransactionVerb.COMMIT_TWO_PHASE, KEY)
        total = check(client)
        assert total == 20 * 7 + 2
        end = count(client, 0).end
        assert count(client, -1) == (0, end, end, total)
        assert count(client, end) == count(client, 2**63 - 1) == (end, end, end, 0)
    lone_broker.kill()
    lone_broker.start()
    with WireClient(lone_broker.port) as client:
        assert check(client) == total


def test_a_message_of_negative_length_is_damage() -> None:
    class Read:
        def run(self) -> bytes:
            return bytes(HEADER_BYTES) + b"\xff" * HEADER_BYTES

    front, below = StoredExtent(0, 4096, 2 * HEADER_BYTES, 2), dict[StoredExtent, int]()
    with pytest.raises(StorageFailed, match=f"the message at LSN {4096 + HEADER_BYTES} has -1 bytes"):
        _count_front(cast(ColdRead, Read()), front, below)
    assert below == {}
