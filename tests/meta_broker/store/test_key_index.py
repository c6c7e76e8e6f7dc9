"""The key index of a topic at a real broker: the same answers with and without it, whatever became of its files."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.protocol.answers import parse_found
from meta_client.protocol.checksum import crc31
from meta_client.protocol.messages import encode_body, encode_frame
from meta_client.protocol.requests import Find, MultiPut, TopicCommand, TopicVerb, TransactionVerb
from meta_client.protocol.responses import Value
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.keyed import INDEXED, KEYS, PAYLOAD, check_found, covered, find_all, wait_covered, write_keyed
from tests.fixtures.wire import WireClient


def flip(directory: Path) -> None:
    for path in directory.glob("*.keys"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)


@pytest.fixture
def indexed(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(tmp_path / "broker", None, config=INDEXED)


def test_the_same_answers_live_after_a_kill_and_after_damage(indexed: BrokerProcess) -> None:
    broker, random = indexed, Random(3)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            write_keyed(client, random)
            key = XaKey(Xid.of("g", "b"), "uq")
            client.verb(TransactionVerb.BEGIN, key)
            write_keyed(client, random, key)
            client.verb(TransactionVerb.PREPARE, key)
            for _ in range(3):
                write_keyed(client, random)
            wait_covered(broker, 4 * 300 * PAYLOAD - 262_144)
            check_found(client)
            client.verb(TransactionVerb.COMMIT_TWO_PHASE, key)
            write_keyed(client, random)
            wait_covered(broker, 6 * 300 * PAYLOAD - 262_144)
            check_found(client)
        keys = broker.data / "keys" / "orders-0"
        for damage in (lambda directory: None, shutil.rmtree, flip):
            broker.kill()
            damage(keys)
            broker.start()
            with WireClient(broker.port) as client:
                check_found(client)
                wait_covered(broker, 6 * 300 * PAYLOAD - 262_144)
                check_found(client)
        assert broker.log.count("key index block dropped") >= 1
        assert broker.stop() == 0
    finally:
        broker.kill()
    broker.audit()


def test_one_request_looks_through_what_has_blocks(indexed: BrokerProcess) -> None:
    try:
        indexed.start()
        with WireClient(indexed.port) as client:
            for _ in range(40):
                client.put("orders", 0, bytes(1 << 20))
            wait_covered(indexed, 40 << 20)
            first = Find("orders", 0, 0, 1, KEYS[0].encode(), 1)
            next_offset, end, matches = parse_found(client.result(first).message)
            assert next_offset == end > 40 << 20  # without them it takes two (test_find.py)
            assert matches == []
    finally:
        indexed.kill()


def test_blocks_of_another_journal_are_noticed(indexed: BrokerProcess, tmp_path: Path) -> None:
    other = BrokerProcess(tmp_path / "other", None, config=INDEXED)
    try:
        for broker, seed in ((other, 1), (indexed, 2)):
            broker.start()
            with WireClient(broker.port) as client:
                frames = b"".join(
                    encode_frame(0, *encode_body(bytes(PAYLOAD), KEYS[(number + seed) % 40])) for number in range(600)
                )
                for _ in range(2):
                    batch = MultiPut("orders", 0, 600, crc31(frames), None, None, 1, frames)
                    assert client.result(batch).is_success
                wait_covered(broker, 2 * len(frames) - 262_144)
            assert broker.stop() == 0
        shutil.rmtree(indexed.data / "keys")
        shutil.copytree(other.data / "keys", indexed.data / "keys")
        indexed.start()
        with WireClient(indexed.port) as client:
            check_found(client)
            wait_covered(indexed, 2 * 600 * PAYLOAD - 262_144)
            check_found(client)
        assert "of another journal" in indexed.log
    finally:
        other.kill()
        indexed.kill()


def test_switched_on_and_off_while_the_broker_runs(lone_broker: BrokerProcess) -> None:
    def alter(index: str) -> str:
        return client.result(TopicCommand(TopicVerb.ALTER, "orders", (("index", index),), client.opaque())).text

    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, lone_broker.log
            time.sleep(0.05)

    with WireClient(lone_broker.port) as client:
        for _ in range(4):
            write_keyed(client, Random(5))
        check_found(client)
        assert covered(lone_broker) == 0
        assert " index=attribute " in alter("attribute")
        wait_covered(lone_broker, 3 * 300 * PAYLOAD)  # what was there before, too
        check_found(client)
        assert " index=none " in alter("none")
        wait_until(lambda: not (lone_broker.data / "keys" / "orders-0").exists())
        check_found(client)


def test_retention_takes_the_blocks_along(tmp_path: Path) -> None:
    config = (
        INDEXED.replace("segment_bytes = 4194304", "segment_bytes = 2162688")
        .replace("[zookeeper]", "[retention]\nbytes = 2000000\nwhen = 0.2\n\n[zookeeper]")
        .replace("[broker]\n", "[broker]\nmessage_bytes_max = 1000000\n")
    )
    broker = BrokerProcess(tmp_path / "broker", None, config=config)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            for _ in range(40):
                write_keyed(client, Random(5))
                time.sleep(0.02)
            wait_covered(broker, 262_144)
            deadline = time.monotonic() + 60
            directory = broker.data / "keys" / "orders-0"
            while min((path.name for path in directory.glob("*.keys")), default="0")[:19].strip("0") == "":
                assert time.monotonic() < deadline, broker.log
                write_keyed(client, Random(5))
                time.sleep(0.2)
            start = int(client.result(Find("orders", 0, 0, 1, b"none", 1)).message.split()[1])
            assert start > 0
            messages = find_all(client, KEYS[0].encode())
            assert messages
            for at, size in messages[-3:]:  # the first ones may go meanwhile
                assert isinstance(client.get("orders", 0, at, size), Value)
        assert broker.stop() == 0
    finally:
        broker.kill()
