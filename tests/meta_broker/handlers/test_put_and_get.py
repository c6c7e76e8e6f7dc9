"""Effect of the configuration on put, get and offset (spec 1.5.2, 1.5.4, 4.2, 4.3)."""

from collections import Counter
from pathlib import Path

import pytest

from journal.records.producer_state import BatchSequence
from meta_client.protocol.checksum import crc31
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import OFFSET_END, PARTITION_ANY, Get, MultiPut, OffsetQuery, Put
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.peers import broker_with
from tests.fixtures.wire import Refused, WireClient


def test_partition_minus_one_goes_everywhere_and_the_answer_says_where(lone_broker: BrokerProcess) -> None:
    with WireClient(lone_broker.port) as client:
        places = [client.put("orders", PARTITION_ANY, b"%d" % number) for number in range(200)]
        for number, place in enumerate(places):
            assert place.offset is not None
            (_, message), *_ = client.read_all("orders", place.partition, place.offset)
            assert (message.payload, message.id) == (b"%d" % number, place.message_id)
    counted = Counter(place.partition for place in places)
    assert set(counted) == {0, 1, 2, 3}
    assert min(counted.values()) >= 20  # 50 are expected; fewer than 20 come once in 300 million runs


def test_a_numbered_batch_names_its_partition(lone_broker: BrokerProcess) -> None:
    """A repetition might be put to another one, where nobody knows it: it would be doubled."""
    frames = encode_frame(0, 0, b"hello")
    with WireClient(lone_broker.port) as client:
        for _ in range(10):
            put = MultiPut("orders", PARTITION_ANY, 1, crc31(frames), BatchSequence("shop", 1), None, 1, frames)
            answer = client.result(put)
            assert answer.status == 500
            assert answer.text.endswith(
                "a numbered batch names its partition: sent again it might be doubled elsewhere"
            )
        assert [client.read_all("orders", number) for number in range(4)] == [[], [], [], []]
        assert client.result(MultiPut("orders", PARTITION_ANY, 1, crc31(frames), None, None, 1, frames)).is_success


def test_a_numbered_batch_is_repeated_as_it_was(lone_broker: BrokerProcess) -> None:
    frames = encode_frame(0, 0, b"hello")

    def batch(count: int) -> MultiPut:
        whole = frames * count
        return MultiPut("orders", 0, count, crc31(whole), BatchSequence("shop", 1), None, 1, whole)

    with WireClient(lone_broker.port) as client:
        stored = client.result(batch(1))
        assert client.result(batch(1)).message == stored.message
        assert client.result(batch(2)).text.endswith("batch 1 had 1 messages before, now 2")
        assert len(client.read_all("orders", 0)) == 1


def test_a_get_returns_no_more_than_the_broker_or_the_client_says(tmp_path: Path) -> None:
    with (
        broker_with(tmp_path, transfer_bytes_max=1044, message_bytes_max=1024) as broker,
        WireClient(broker.port) as client,
    ):
        for _ in range(4):
            client.put("orders", 0, bytes(480))
        for bytes_max, size in ((1, 1), (1043, 1043), (1044, 1044), (1045, 1044), (2**31 - 1, 1044)):
            assert isinstance(value := client.get("orders", 0, 0, bytes_max), Value)
            assert len(value.body) == size
        assert isinstance(value := client.get("orders", 0, 1500, 1044), Value)
        assert len(value.body) == 500


@pytest.mark.parametrize("tells", [False, True])
def test_beyond_the_end(tmp_path: Path, tells: bool) -> None:
    """updateConsumerOffsets (spec 1.5.4 f): offset == end is a 404 all the same."""
    with broker_with(tmp_path, tell_end_offset=str(tells).lower()) as broker, WireClient(broker.port) as client:
        client.put("orders", 0, b"hello")
        at_end, beyond, far = (client.get("orders", 0, offset) for offset in (25, 26, OFFSET_END))
    assert at_end == Result(404, b"Could not find message at position 25", 2)
    assert beyond == (Result(301, b"25", 3) if tells else Result(404, b"Could not find message at position 26", 3))
    assert far == Result(301, b"25", 4)


def test_publish_and_subscribe_switches_are_zookeepers_affair(tmp_path: Path) -> None:
    config = CONFIG + "\n[topics.quiet]\naccept_publish = false\naccept_subscribe = false\n"
    with running_broker(tmp_path / "broker", None, config=config) as broker, WireClient(broker.port) as client:
        assert client.put("quiet", 0, b"hello").offset == 0
        assert [message.payload for _, message in client.read_all("quiet", 0)] == [b"hello"]


def test_fewer_partitions_and_a_topic_that_is_gone_stay_readable(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 3, b"kept")
            client.put("invoices", 1, b"kept too")
        assert broker.stop() == 0
    smaller = CONFIG.replace("[topics.orders]\npartitions = 4", "[topics.orders]\npartitions = 2")
    smaller = smaller.replace("[topics.invoices]\npartitions = 2\n", "")
    with running_broker(tmp_path / "broker", None, config=smaller) as broker, WireClient(broker.port) as client:
        for topic, partition, body in (("orders", 3, b"kept"), ("invoices", 1, b"kept too")):
            ((offset, message),) = client.read_all(topic, partition)
            assert (offset, message.payload) == (0, body)
            end = 20 + len(body)
            assert client.ask(OffsetQuery(topic, "g", partition, 999, 1)) == Result(200, b"%d" % end, 1)
        with pytest.raises(Refused, match=r"\[partition 'orders-3'\] failed\.Detail:wrong partition 3$"):
            client.put("orders", 3, b"no more")
        with pytest.raises(Refused, match=r"Detail:The server do not accept topic invoices$"):
            client.put("invoices", 1, b"no more")
        assert {client.put("orders", PARTITION_ANY, b"x").partition for _ in range(64)} == {0, 1}


@pytest.mark.scenario("A12")
def test_checks_come_in_the_ancestors_order(lone_broker: BrokerProcess) -> None:
    """Topic, partition, checksum (spec 1.5.2 c, d, f); for a get the partition, then the size (1.5.4 b, c)."""
    with WireClient(lone_broker.port) as client:
        refused = [
            client.result(Put(topic, partition, 0, 1, None, client.opaque(), b"hello")).text.partition("Detail:")[2]
            for topic, partition in (("nope", 99), ("orders", 99), ("orders", -2), ("orders", 0))
        ]
        assert refused == [
            "The server do not accept topic nope",
            "wrong partition 99",
            "wrong partition -2",
            "Checksum failure,message may be corrupted when transfering on networking.",
        ]
        assert client.result(Get("orders", "g", 0, 0, 0, 7)).status == 404
        client.put("orders", 0, b"x")
        assert client.result(Get("orders", "g", 0, -5, 0, 8)).status == 400


def test_stats_config_without_a_file_says_so(tmp_path: Path) -> None:
    """Spec 1.5.6: a 500, so that nobody takes nothing for an empty file."""
    broker = BrokerProcess(tmp_path / "broker", None)
    broker.has_config = False
    try:
        broker.start()
        with WireClient(broker.port) as client:
            client.socket.sendall(b"stats config 7\r\n")
            assert client.receive() == Result(500, b"Config file not found:this broker was started without --config", 7)
    finally:
        broker.kill()
