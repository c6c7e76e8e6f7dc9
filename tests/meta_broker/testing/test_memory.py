"""Faults that only a cluster in memory can inject, and its ZooKeeper compared with a real one."""

import random
import time
from collections.abc import Callable

import pytest

from journal.records.producer_state import BatchSequence
from journal.records.xid import XaKey, Xid
from meta_broker.testing.memory.cluster import MemoryCluster
from meta_broker.testing.memory.session import MemorySession
from meta_broker.testing.memory.tree import Tree
from meta_client.consumer.config import ConsumerConfig
from meta_client.errors import PartitionClosed
from meta_client.net.opaques import next_opaque
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import (
    PARTITION_ANY,
    MultiPut,
    OffsetQuery,
    Request,
    Stats,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
)
from meta_client.protocol.responses import Result
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession
from zk.tree.transactions import Check, Create, Operation, Remove, Write

CONFIG = ConsumerConfig(backoff_s_max=0.05)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_two_brokers_of_which_one_goes_and_comes() -> None:
    with MemoryCluster({"orders": 2}, brokers=(0, 1)) as cluster:
        client = cluster.client()
        producer = client.producer()
        assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0, 1}
        cluster.kill(1)
        assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0}
        cluster.start(1)
        wait_until(lambda: len(client.topology.view("orders", 1).available) == 4)
        assert {producer.send("orders", b"").partition.broker_id for _ in range(8)} == {0, 1}


def test_a_session_that_expires_loses_its_partitions_and_gets_them_again() -> None:
    with MemoryCluster() as cluster:
        client, rival = cluster.client(), cluster.client()
        producer = rival.producer()
        producer.send("orders", b"")
        seen: list[bytes] = []
        with client.consumer("g", config=CONFIG) as first, rival.consumer("g", config=CONFIG) as second:
            for consumer in (first, second):
                consumer.subscribe("orders", on_message=lambda message: seen.append(message.payload))
                consumer.start()
            wait_until(lambda: len(first.owned()) == len(second.owned()) == 1)
            before = len(first.rebalances())
            cluster.expire(client)
            wait_until(lambda: len(first.rebalances()) > before)
            wait_until(lambda: len(first.owned()) == len(second.owned()) == 1)
            for number in range(10):
                producer.send("orders", b"%d" % number)
            wait_until(lambda: set(seen) >= {b"%d" % number for number in range(10)})


def test_closed_partitions() -> None:
    with MemoryCluster() as cluster:
        producer = cluster.client().producer()
        producer.send("orders", b"")
        cluster.close_partition("orders", "0-1")
        assert {producer.send("orders", b"").partition.number for _ in range(4)} == {0}
        with pytest.raises(PartitionClosed):
            producer.send("orders", b"", partition="0-1")
        cluster.close_partition("orders", "0-1", is_closed=False)
        producer.send("orders", b"", partition="0-1")


def test_what_has_no_form_on_the_wire_is_refused_here_too() -> None:
    with MemoryCluster({"two words": 1}) as cluster, pytest.raises(LocalProtocolError, match="white space"):
        cluster.client().producer().send("two words", b"")


def test_what_no_producer_sends_is_answered_as_by_a_real_broker() -> None:
    key, frame = XaKey(Xid.of("g", "b"), "q"), encode_frame(0, 0, b"x")
    with MemoryCluster({"orders": 2}) as cluster:
        client = cluster.client()
        link = client.connections.get(client.topology.read_masters()[0], 1)

        def asked(request: Request) -> tuple[int, str]:
            answer = link.submit(request).wait(60)
            assert isinstance(answer, Result)
            return answer.status, answer.text

        def verb(verb: TransactionVerb, key: XaKey | None) -> tuple[int, str]:
            return asked(TransactionCommand(key, "s", verb, None, "q", next_opaque()))

        def batch(number: int, partition: int, base: int = 0) -> tuple[int, str]:
            sequence = BatchSequence("shop", number)
            return asked(MultiPut("orders", partition, 1, crc31(frame), sequence, None, next_opaque(), frame))

        for each in (TransactionVerb.BEGIN, TransactionVerb.PREPARE):
            status, text = verb(each, None)
            assert (status, "null is no transaction" in text) == (500, True)
        assert [verb(TransactionVerb.BEGIN, key), verb(TransactionVerb.BEGIN, key)] == [(200, ""), (200, "")]
        assert verb(TransactionVerb.STATUS, key) == (200, "active")
        assert "there is no heuristic decision" in verb(TransactionVerb.FORGET, key)[1]
        first = batch(1, 0)
        assert batch(1, 0) == first
        assert batch(2, 7)[1] == "wrong partition 7"
        assert batch(3, PARTITION_ANY)[0] == 200
        assert asked(TopicCommand(TopicVerb.SHOW, "orders", (), next_opaque())) == (200, "partitions=2")
        assert asked(OffsetQuery("orders", "g", 0, 99_999, next_opaque()))[0] == 200
        status, text = asked(Stats("", next_opaque()))
        assert (status, "a broker in memory knows no Stats" in text) == (400, True)


def act(session: ZooKeeperSession, dice: random.Random) -> object:
    """One random step, and all that can be seen of it."""
    path = "/" + "/".join(dice.choice("ab") for _ in range(dice.randint(1, 3)))
    data = dice.randbytes(3)
    version = dice.choice([-1, 0, 1])
    match dice.randrange(8):
        case 0:
            return session.create(path, data)
        case 1:
            return session.create(f"{path}/e{dice.randrange(2)}", data, ephemeral=True)
        case 2:
            return session.delete(path, version)
        case 3:
            return session.exchange(path, data, dice.choice([None, 0, 1]))
        case 4:
            session.write(path, data)
            return session.read(path) is not None
        case 5:
            return session.update_many({path: data})
        case 6:
            operations: list[Operation] = [Check(path, version), Write(path, data, version), Create(f"{path}/c", data)]
            operations += [Remove(f"{path}/c", version), Create(f"{path}/t", data, ephemeral=True)]
            return session.transact_many([tuple(dice.sample(operations, 2))])
        case _:
            node = session.read(path)
            seen = None if node is None else (node.data, bool(node.session_id), node.version)
            return seen, sorted(session.children(path))


def test_its_tree_does_what_zookeeper_does(zookeeper: Chroot) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    told: list[str] = []
    with ZooKeeperSession(zookeeper.connect, session_timeout_ms=60_000) as real, MemorySession(Tree()) as memory:
        both = (real, random.Random(seed)), (memory, random.Random(seed))
        for step in range(400):
            try:
                first, second = (act(session, dice) for session, dice in both)
            except Exception as error:
                raise AssertionError(f"step {step}") from error
            assert first == second, f"step {step}"
        memory.children("/", lambda event: told.append("/"))
        memory.create("/new")
        memory.create("/newer")
    assert told == ["/"]
