"""Compressed messages through real brokers: permission to send, the bytes read, and the tools' output."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import SendRefused
from meta_client.metadata import allowed_codecs
from meta_client.protocol.checksum import crc31
from meta_client.protocol.compression import LENGTH, Codec, codec_number
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import encode_body, encode_frame, walk_frames
from meta_client.protocol.requests import MultiPut, Put, TopicVerb
from meta_client.protocol.responses import Result, Value
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq_bytes
from tests.fixtures.gets import read_topic
from tests.fixtures.topic_commands import done
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

GIB = 1024 * 1024 * 1024
TEXT = b"six lanterns, white; " * 50
CONFIG_BOTH = CONFIG + '\n[topics.both]\npartitions = 2\ncompression = ["zstd", "lz4"]\n'


@pytest.fixture
def both(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    """A broker whose topic `both` allows both codecs, and no other one any."""
    with running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG_BOTH) as process:
        yield process


def stored_codecs(broker: BrokerProcess, topic: str, partitions: int) -> list[int]:
    """The codec number of every message that stands in *topic*, as the broker stores it."""
    with WireClient(broker.port) as client:
        answers = [client.get(topic, partition, 0) for partition in range(partitions)]
    bodies = [answer.body for answer in answers if isinstance(answer, Value)]
    return [codec_number(frame.flag) for body in bodies for frame in walk_frames(body)]


def put(client: WireClient, topic: str, flag: int, body: bytes) -> Result:
    return client.result(Put(topic, 0, flag, crc31(body), None, client.opaque(), body))


def mput(client: WireClient, topic: str, *messages: tuple[int, bytes]) -> Result:
    frames = b"".join(encode_frame(0, *message) for message in messages)
    return client.result(MultiPut(topic, 0, len(messages), crc31(frames), None, None, client.opaque(), frames))


def test_every_way_of_sending_and_reading(both: BrokerProcess, zookeeper: Chroot) -> None:
    sent: list[tuple[str | None, bytes]] = []
    with Client(zookeeper.connect) as client:
        for codec in ("zstd", "lz4", None):
            producer = client.producer(compression=codec)
            for number, attribute in ((1, None), (2, "attr"), (3, "")):
                payload = b"%s %d " % (str(codec).encode(), number) + TEXT
                sent += [(attribute, payload + way) for way in (b"send", b"async", b"local", b"xa")]
                producer.send("both", payload + b"send", attribute)
                handle = producer.send_async("both", payload + b"async", attribute)
                with producer.transaction():
                    producer.send("both", payload + b"local", attribute)
                producer.tpc_begin(Xid.of(f"{codec}-{number}", ""), topics=("both",))
                producer.send("both", payload + b"xa", attribute)
                assert producer.tpc_prepare()
                producer.tpc_commit()
                handle.result(60)
        found = [(message.attribute, message.payload) for message in read_topic(client, "both")]
    assert sorted(found, key=repr) == sorted(sent, key=repr)
    codecs = stored_codecs(both, "both", 2)
    assert [codecs.count(number) for number in (0, 1, 2)] == [12, 12, 12]


def test_a_short_or_random_payload_stays_as_it_is(both: BrokerProcess, zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client:
        client.producer(compression="zstd").send("both", b"short" * 51)
        client.producer(compression="zstd").send("both", bytes(range(256)))
        client.producer(compression="zstd", compression_bytes_min=1).send("both", b"short" * 51)
    assert sorted(stored_codecs(both, "both", 2)) == [0, 0, 1]


def test_topics_that_do_not_allow_it_get_none(both: BrokerProcess, zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client:
        producer = client.producer(compression="lz4")
        producer.send("orders", TEXT, partition="0-0")
        producer.send_async("orders", TEXT, partition="0-0").result(60)
        assert stored_codecs(both, "orders", 1) == [0, 0]
        with WireClient(both.port) as wire:
            assert "compression=lz4 " in done(wire, TopicVerb.ALTER, "orders", compression="lz4")
    with Client(zookeeper.connect) as client:
        producer = client.producer(compression="lz4")
        producer.send("orders", TEXT, partition="0-0")
        assert stored_codecs(both, "orders", 1) == [0, 0, 2]
        client.producer(compression="zstd").send("orders", TEXT, partition="0-0")
        assert stored_codecs(both, "orders", 1) == [0, 0, 2, 0]
        with WireClient(both.port) as wire:
            done(wire, TopicVerb.ALTER, "orders", compression="none")
        with pytest.raises(SendRefused, match="topic orders does not allow lz4: send uncompressed") as refused:
            producer.send("orders", TEXT, partition="0-0")
        assert refused.value.status == 400
        assert [m.payload for m in read_topic(client, "orders")] == [TEXT] * 4


def test_a_decision_is_learned_without_being_waited_for(
    both: BrokerProcess, zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowed_codecs, "REFRESH_S", 0.05)
    with Client(zookeeper.connect) as client:
        producer = client.producer(compression="zstd")
        producer.send("orders", TEXT, partition="0-0")
        with WireClient(both.port) as wire:
            done(wire, TopicVerb.ALTER, "orders", compression="zstd")
        for _ in range(1000):
            producer.send("orders", TEXT, partition="0-0")
            if stored_codecs(both, "orders", 1)[-1]:
                return
    raise AssertionError("the producer never learned that it may compress")


def test_both_brokers_must_allow_it(both: BrokerProcess, zookeeper: Chroot, tmp_path: Path) -> None:
    other = CONFIG + '\n[topics.both]\npartitions = 2\ncompression = ["lz4"]\n'
    with running_broker(tmp_path / "second", zookeeper.connect, broker_id=1, config=other) as second:
        with Client(zookeeper.connect) as client:
            for codec in ("zstd", "lz4"):
                producer = client.producer(compression=codec)
                for partition in ("0-0", "1-0"):
                    producer.send("both", TEXT, partition=partition)
        assert stored_codecs(both, "both", 1) == stored_codecs(second, "both", 1) == [0, 2]


def test_a_broker_refuses_what_a_topic_does_not_allow(both: BrokerProcess) -> None:
    zstd, lz4, plain = encode_body(TEXT, None, Codec.ZSTD), encode_body(TEXT, "a", Codec.LZ4), (0, TEXT)
    with WireClient(both.port) as client:
        for topic, message, label in (("orders", zstd, "zstd"), ("orders", lz4, "lz4")):
            remedy = f"topic orders does not allow {label}: send uncompressed messages, or allow it with"
            for answer in (put(client, topic, *message), mput(client, topic, plain, message)):
                assert answer.status == 400
                assert remedy in answer.text
        bomb = Codec.ZSTD.flag, LENGTH.pack(GIB) + b"\x28\xb5\x2f\xfd" + bytes(100)
        strange = 0x4D51_0900, LENGTH.pack(1) + b"x"
        cut = Codec.LZ4.flag | 1, b"\0\0\0\x09attr"
        for flag, body in (bomb, strange, cut):
            assert put(client, "both", flag, body).status == 400
            assert not mput(client, "both", plain, (flag, body)).is_success
        assert f"{GIB} bytes once decompressed are outside" in put(client, "both", *bomb).text
        assert isinstance(client.get("both", 0, 0), Result)  # nothing was stored
        assert mput(client, "both", plain, zstd, lz4, zstd).is_success
        assert put(client, "both", *lz4).is_success
    assert stored_codecs(both, "both", 1) == [0, 1, 2, 1, 2]


def test_the_tools_tell(both: BrokerProcess, zookeeper: Chroot) -> None:
    def metaq(*words: str, stdin: bytes = b"") -> bytes:
        done = run_metaq_bytes(*words, stdin=stdin)
        done.check_returncode()
        return done.stdout

    metaq("produce", "both", "--zk", zookeeper.connect, "--compression", "zstd", stdin=TEXT + b"\n" + TEXT + b"\n")
    assert metaq("consume", "both", "--zk", zookeeper.connect) == TEXT + b"\n" + TEXT + b"\n"
    dumped = [json.loads(line) for line in metaq("journal", "dump", str(both.data), "--json").splitlines()]
    batches = [line["compressed"] for line in dumped if line["kind"] == "PUT_BATCH"]
    assert sum(counts["zstd"] for counts in batches) == 2
    assert b"  zstd=" in metaq("journal", "dump", str(both.data), "--kind", "PUT_BATCH")


def test_a_codec_that_there_is_not(both: BrokerProcess, zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(zookeeper.connect) as client:
        with pytest.raises(LocalProtocolError, match="compression 'gzip' is no codec: use lz4 or zstd"):
            client.producer(compression="gzip")
        monkeypatch.setattr("meta_client.client.is_installed", lambda codec: False)
        with pytest.raises(
            LocalProtocolError, match=r"needs the package zstandard: pip install 'metaq-broker\[compression\]'"
        ):
            client.producer(compression="zstd")
